"""How a rank computes its part of each share of a communication plan, forward; autograd makes the way back of it.

Every share gives the results of this rank's queries, and what it received. All ranks make the same exchanges in the
same order, whether they have something to send or not; what is computed meanwhile is each rank's own affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism import kernels
from asterism.compiler.devices import ByHeads, ByResidues, ByRows, Communication, Ring, Shards, Share
from asterism.compiler.devices.communication import some_heads
from asterism.kernels.merging import Result, merged, merged_at, unread
from asterism.kernels.terms.terms import DistanceTable, Terms
from asterism.parallel.context import SequenceParallel
from asterism.parallel.exchange import Flight, Hop, Route, begin, finish, whole
from asterism.parallel.laying import Stretch, laid
from asterism.parallel.marks import Marks
from asterism.parallel.places import Places
from asterism.parallel.ring import KernelQuestion, Questions, RingTurn, round_the_ring
from asterism.parallel.routes import Answers, Delivery, Local, RowsOf, residues_of, ring_of, rows_of


@dataclass(frozen=True, eq=False)
class Call:
    """What a rank is asked: its shards of q, k and v [B, heads, tokens, features], the marks of its keys, and the
    options of every local computation. `received` is all that came from other ranks and has gradients."""

    context: SequenceParallel
    plan: Communication
    q: Tensor
    k: Tensor
    v: Tensor
    marks: Marks
    options: dict[str, Any]
    received: list[Tensor] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.context.rank

    def send(self, *pieces: tuple[Tensor, Hop]) -> tuple[Flight, tuple[Tensor, ...]]:
        return begin(self.context.group, pieces)

    def receive(self, flight: Flight) -> list[tuple[Tensor, ...]]:
        """What came, by tensor and rank."""
        found = finish(flight)
        self.received.extend(x for parcels in found for x in parcels if x.is_floating_point())
        return found

    def exchange(self, *pieces: tuple[Tensor, Hop]) -> tuple[Tensor, ...]:
        """What comes, waited for at once, of each tensor the rows from all ranks."""
        flight, _ = self.send(*pieces)
        return tuple(_together(x) for x in self.receive(flight))

    def attend(self, local: Local, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Result:
        """The results of some queries, whose segments are `own`, against some keys that are both here."""
        if local.is_empty or not len(q):
            return unread(q, k, v)
        found = []
        for _, questions in self.questions(local, q, k, v, marks, own):
            answers = (kernels.attend(*x.tensors, x.rule, return_lse=True, **x.options) for x in questions)
            found.append(merged([Result(*answer) for answer in answers]))
        return Result(*(torch.cat(x, dim=2) if len(x) > 1 else x[0] for x in zip(*found, strict=True)))

    def questions(self, local: Local, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Questions:
        """What kernels are asked: for places of neighbouring queries, disjoint sets of keys one after another."""
        terms, with_segments = self.options["terms"], marks.segments is not None
        by_distance = terms is not None and (terms.bias is not None or terms.relative is not None)
        if not (by_distance or with_segments):
            at_once = KernelQuestion((q, k, v), local.rule, self.options | {"key_mask": marks.key_mask})
            yield Places.first(q.shape[2]), iter([at_once])
            return
        for block in laid(local, by_distance, with_segments):
            segments = None if own is None else block.queries.take(own[:, None])[:, 0]
            asked = block.queries.take(q)
            yield block.queries, (self._laid(x, asked, k, v, marks, segments) for x in block.stretches)

    def _laid(self, keys: Stretch, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> KernelQuestion:
        """Neighbouring queries and some keys, laid as these say."""
        k, v, marks = keys.chosen.take(k), keys.chosen.take(v), marks.take(keys.chosen)
        if keys.size > len(keys.at):
            marks = marks._replace(key_mask=marks.readable(len(k), len(keys.at), k.device))
            k, v = (keys.at.put(x.new_zeros((*x.shape[:2], keys.size, x.shape[3])), x) for x in (k, v))
            marks = Marks(*(None if x is None else _laid_out(x, keys) for x in marks))
        segments = marks.segments
        if segments is not None and own is not None:
            here = Places(np.arange(keys.offset, keys.offset + q.shape[2]))
            segments = here.put(segments[:, None], own[:, None])[:, 0]
        more = {"key_mask": marks.key_mask, "segments": segments, "query_offset": keys.offset}
        return KernelQuestion((q, k, v), keys.rule, self.options | more)


def _laid_out(mark: Tensor, keys: Stretch) -> Tensor:
    """[B, keys] as [B, size], with 0 or False in the gaps."""
    return keys.at.put(mark.new_zeros((len(mark), 1, keys.size)), mark[:, None])[:, 0]


def results_of(call: Call) -> Result:
    """All shares of the plan, one after another."""
    return merged([_one(call, share) for share in call.plan.shares])


def _one(call: Call, share: Share) -> Result:
    match share:
        case ByRows():
            return _by_rows(call, share)
        case ByResidues():
            return _by_residues(call, share)
        case ByHeads():
            return _by_heads(call, share)
        case Ring():
            return _by_ring(call, share)


def _together(parcels: Sequence[Tensor]) -> Tensor:
    """[B, heads, rows, ...] one after another."""
    some = [x for x in parcels if x.shape[2]] or parcels[:1]
    return torch.cat(some, dim=2) if len(some) > 1 else some[0]


def _inserted(rows: Tensor, more: Tensor, before: int) -> Tensor:
    """[B, heads, rows, ...] of two tensors, where so many rows of the first stand before all of the second.

    A slice of all rows is left out, because its gradient would be a copy.
    """
    if before in (0, rows.shape[2]):
        return _together([rows, more] if before else [more, rows])
    return _together([rows[:, :, :before], more, rows[:, :, before:]])


@dataclass(eq=False)
class _Coming:
    """Rows on their way to this rank, in up to two hops: `own` are tensors [B, heads, tokens, ...] of its shard, and
    `came` the parcels of each that are there, as the delivery's `order` takes them."""

    call: Call
    delivery: Delivery
    own: tuple[Tensor, ...]
    taken: tuple[Tensor, ...] = ()
    flight: Flight | None = None
    came: list[list[Tensor]] = field(default_factory=list)

    def start(self) -> tuple[Tensor, ...]:
        """Sends the first hop; the own tensors, for who reads them from now on."""
        if (second := self.delivery.second) is not None:
            shared = [second.taken.share(x) for x in self.own]
            self.own, self.taken = tuple(x for x, _ in shared), tuple(x for _, x in shared)
        if (hop := self.delivery.first) is not None:
            self.flight, self.own = self.call.send(*((x, hop) for x in self.own))
        return self.own

    def go_on(self) -> None:
        """Starts the second hop, for which it waits for the first."""
        if (second := self.delivery.second) is not None:
            self._land()
            held = [_together(parcels or [x[:, :, :0]]) for parcels, x in zip(self.came, self.own, strict=True)]
            pieces = *((x, second.own) for x in self.taken), *((x, second.held) for x in held)
            self.flight, same = self.call.send(*pieces)
            self.came = [[x] for x in same[len(self.own) :]]

    def rows(self) -> tuple[Tensor, ...]:
        """All that came, in the order of its positions."""
        self._land()
        none = (x[:, :, :0] for x in self.own)
        return tuple(self.delivery.order.take(_together(x or [y])) for x, y in zip(self.came, none, strict=True))

    def among_own(self, before: int) -> tuple[Tensor, ...]:
        """The own rows as well, before which so many of those that came stand."""
        if self.delivery.second is None and self.delivery.first is not None:
            self._land()
            rank = self.call.rank
            return tuple(_together([*x[:rank], own, *x[rank:]]) for x, own in zip(self.came, self.own, strict=True))
        return tuple(_inserted(x, own, before) for x, own in zip(self.rows(), self.own, strict=True))

    def _land(self) -> None:
        self.came = self.came or [[] for _ in self.own]
        if self.flight is not None:
            for number, parcels in enumerate(self.call.receive(self.flight)):
                self.came[number % len(self.own)].extend(parcels)
        self.flight = None


def _by_rows(call: Call, share: ByRows) -> Result:
    own = rows_of(call.plan, share, call.rank)
    segments = call.marks.segments
    marks = _marks(call, own.keys, call.marks, own.before if own.at_once is not None else None)
    asking = _asked_marks(call, own, segments)
    free, asked = own.free.part_from(call.q, own.asked)
    of_free = Marks(segments=segments).take(own.free)
    keys = _Coming(call, own.keys, (call.k, call.v))
    questions = None if own.answers is None else _Coming(call, own.answers.queries, (asked,))
    if questions is not None:
        questions.start()  # these first: they are few, and are answered while keys are on their way
        questions.go_on()
    keys.start()
    if own.at_once is None:
        if not own.border.is_empty:
            free, at_border = own.border_places.share(free)
        result = call.attend(own.interior, free, *keys.own, call.marks, of_free.segments)
    keys.go_on()
    partial = None
    if own.answers is not None and questions is not None:
        partial = _answer(call, own.answers, questions, keys.own, asking)
    k, v = keys.rows() if own.at_once is None else keys.among_own(own.before)
    if own.at_once is not None:
        result = call.attend(own.at_once, free, k, v, marks, of_free.segments)
    elif not own.border.is_empty:
        of_border = of_free.take(own.border_places).segments
        result = merged_at(result, call.attend(own.border, at_border, k, v, marks, of_border), own.border_places)
    if partial is None or own.answers is None:
        return result
    return _joined(own, result, _merge_answers(call, own.answers, *partial))


def _asked_marks(call: Call, own: RowsOf, segments: Tensor | None) -> Marks:
    """The segments of the queries that all ranks answer."""
    if own.answers is None or segments is None:
        return Marks()
    asked = Marks(segments=segments).take(own.asked)
    came = _marks(call, own.answers.queries, asked)
    both = (x.segments[:, None] for x in (asked, came) if x.segments is not None)
    return Marks(segments=own.answers.order.take(torch.cat(list(both), dim=2))[:, 0])


def _joined(own: RowsOf, free: Result, asked: Result) -> Result:
    """Results by the places of their queries."""
    if not len(own.asked):
        return free
    if (run := own.asked.run) is not None:
        return Result(*(_inserted(x, y, run.start) for x, y in zip(free, asked, strict=True)))
    return Result(*(own.together.take(torch.cat(pair, dim=2)) for pair in zip(free, asked, strict=True)))


def _marks(call: Call, delivery: Delivery, own: Marks, before: int | None = None) -> Marks:
    """The marks of the tokens that come, which have no gradient; those of the own ones as well, in between."""
    if (rows := own.rows) is None:
        return own
    coming = _Coming(call, delivery, (rows,))
    coming.start()
    coming.go_on()
    return own.read(*(coming.rows() if before is None else coming.among_own(before)))


def _answer(
    call: Call, answers: Answers, questions: _Coming, keys: tuple[Tensor, ...], marks: Marks
) -> tuple[Result, Flight]:
    """What this rank's keys say to the queries that all ranks answer: the part that it merges, and the others sent."""
    queries = answers.order.take(_together([*questions.own, *questions.rows()]))
    partial = call.attend(answers.attended, queries, *keys, call.marks, marks.segments)
    flight, _ = call.send(*((x, answers.sent) for x in partial))
    return Result(*(answers.merged.take(x) for x in partial)), flight


def _merge_answers(call: Call, answers: Answers, own: Result, flight: Flight) -> Result:
    """The results of this rank's queries that all ranks answered."""
    parts = zip(*call.receive(flight), strict=True)
    complete = merged([own, *(Result(*pair) for pair in parts if pair[0].shape[2])])
    back = call.receive(call.send(*((x, answers.back) for x in complete))[0])
    rank = call.rank
    pairs = zip(back, complete, strict=True)
    return Result(*(_together([*x[:rank], answers.kept.take(mine), *x[rank:]]) for x, mine in pairs))


def _by_residues(call: Call, share: ByResidues) -> Result:
    own = residues_of(call.plan, share, call.rank)
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.exchange((rows, own.leaving)))
    q, k, v = call.exchange(*((x, own.leaving) for x in (call.q, call.k, call.v)))
    result = call.attend(own.attended, q, k, v, marks, marks.segments)
    return Result(*(own.back.take(x) for x in call.exchange(*((x, own.returning) for x in result))))


def _by_heads(call: Call, share: ByHeads) -> Result:
    plan, ranks = call.plan, call.context.ranks
    of_queries, of_keys = (_to_all(shards, call.rank) for shards in (plan.queries, plan.keys))
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.exchange((torch.cat([rows] * ranks, dim=2), of_keys)))
    pieces = ((call.q, of_queries), (call.k, of_keys), (call.v, of_keys))
    q, k, v = call.exchange(*((_heads_after_another(x, ranks), hop) for x, hop in pieces))
    heads = q.shape[1]
    rule = some_heads(share.pattern, call.rank * heads, (call.rank + 1) * heads)
    assert rule is not None, "no plan cuts the heads of such a pattern"
    positions = np.arange(plan.queries.length) + plan.query_offset
    result = call.attend(
        Local(rule, positions, np.arange(plan.keys.length), plan.keys.length), q, k, v, marks, marks.segments
    )
    back = call.exchange(*((x, whole(of_queries.route.back)) for x in result))
    return Result(*(x.unflatten(2, (ranks, call.q.shape[2])).movedim(2, 1).flatten(1, 2) for x in back))


def _to_all(shards: Shards, rank: int) -> Hop:
    return whole(Route((shards.sizes[rank],) * shards.ranks, shards.sizes))


def _heads_after_another(x: Tensor, ranks: int) -> Tensor:
    """[B, H, N, ...] -> [B, H / ranks, ranks * N, ...]: for each rank its heads of all tokens."""
    return torch.cat(x.chunk(ranks, dim=1), dim=2)


def _by_ring(call: Call, share: Ring) -> Result:
    steps, segments = ring_of(call.plan, share, call.rank), call.marks.segments
    terms, learned = _learned(call)

    def questions(step: int, tensors: Sequence[Tensor], marks: Marks, learned: Sequence[Tensor]) -> Questions:
        if steps[step].is_empty:
            return iter(())
        q, k, v = tensors
        options = call.options | {"terms": _with(terms, learned)}
        return replace(call, options=options).questions(steps[step], q, k, v, marks, segments)

    turn = RingTurn(call.context, call.plan.keys.sizes, call.marks, questions)
    return round_the_ring(turn, (call.q, call.k, call.v), learned)


def _learned(call: Call) -> tuple[Terms | None, list[Tensor]]:
    """The terms, and tensors of them that may have gradients. A bias that has some becomes a table of all distances,
    whose gradient makes those of whatever it was computed from."""
    terms, plan = call.options["terms"], call.plan
    if terms is None:
        return None, []
    bias = terms.bias
    if bias is not None and not isinstance(bias, DistanceTable) and bias.table(0, 1).requires_grad:
        first, past = (end + plan.query_offset for end in plan.queries.range(call.rank))
        first -= plan.keys.length - 1
        bias = DistanceTable(bias.table(first, max(first, past)), first)
    terms = replace(terms, bias=bias)
    return terms, [x for x in (getattr(bias, "values", None), terms.relative) if isinstance(x, Tensor)]


def _with(terms: Terms | None, learned: Sequence[Tensor]) -> Terms | None:
    """The terms with these tensors instead of those that `_learned` named."""
    if terms is None or not learned:
        return terms
    *values, relative = learned if terms.relative is not None else (*learned, None)
    bias = replace(terms.bias, values=values[0]) if values else terms.bias
    return replace(terms, bias=bias, relative=relative)
