"""How a rank computes its part of each share of a communication plan, forward; autograd makes the way back of it.

Every share gives the results of this rank's queries, and what it received. All ranks make the same exchanges in the
same order, whether they have something to send or not; what is computed meanwhile is each rank's own affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism import kernels
from asterism.compiler.devices import Communication, Heads, Residues, Ring, Rows, Share
from asterism.compiler.devices.communication import some_heads
from asterism.parallel.context import SequenceParallel
from asterism.parallel.exchange import Flight, Route, begin, finish
from asterism.parallel.laying import Stretch, laid
from asterism.parallel.marks import Marks
from asterism.parallel.merging import Result, merged, merged_at, unread
from asterism.parallel.places import Places
from asterism.parallel.routes import Answers, Delivery, Hop, Local, residues_of, ring_of, rows_of


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

    def send(self, *pieces: tuple[Tensor, Route]) -> Flight:
        """Rows along the third dimension of [B, heads, rows, ...]."""
        return begin(self.context.group, [(rows.movedim(2, 0), route) for rows, route in pieces])

    def receive(self, flight: Flight) -> tuple[Tensor, ...]:
        found = finish(flight)
        self.received.extend(x for x in found if x.is_floating_point())
        return tuple(x.movedim(0, 2) for x in found)

    def attend(self, local: Local, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Result:
        """The results of some queries, whose segments are `own`, against some keys that are both here."""
        if local.is_empty or not len(q):
            return unread(q, k, v)
        terms, with_segments = self.options["terms"], marks.segments is not None
        by_distance = terms is not None and (terms.bias is not None or terms.relative is not None)
        if not (by_distance or with_segments):
            options = self.options | {"key_mask": marks.key_mask, "return_lse": True}
            return Result(*kernels.attend(q, k, v, local.rule, **options))
        found = []
        for block in laid(local, by_distance, with_segments):
            segments = None if own is None else block.queries.take(own[:, None])[:, 0]
            asked = block.queries.take(q)
            found.append(merged([self._attend_to(x, asked, k, v, marks, segments) for x in block.stretches]))
        return Result(*(torch.cat(x, dim=2) if len(x) > 1 else x[0] for x in zip(*found, strict=True)))

    def _attend_to(self, keys: Stretch, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Result:
        """The results of neighbouring queries against some keys, laid as these say."""
        k, v, marks = keys.chosen.take(k), keys.chosen.take(v), marks.take(keys.chosen)
        if keys.size > len(keys.at):
            marks = marks._replace(key_mask=marks.readable(len(k), len(keys.at), k.device))
            k, v = (keys.at.put(x.new_zeros((*x.shape[:2], keys.size, x.shape[3])), x) for x in (k, v))
            marks = Marks(*(None if x is None else _laid_out(x, keys) for x in marks))
        segments = marks.segments
        if segments is not None and own is not None:
            here = Places(np.arange(keys.offset, keys.offset + q.shape[2]))
            segments = here.put(segments[:, None], own[:, None])[:, 0]
        more = {"key_mask": marks.key_mask, "segments": segments, "query_offset": keys.offset, "return_lse": True}
        return Result(*kernels.attend(q, k, v, keys.rule, **(self.options | more)))


def _laid_out(mark: Tensor, keys: Stretch) -> Tensor:
    """[B, keys] as [B, size], with 0 or False in the gaps."""
    return keys.at.put(mark.new_zeros((len(mark), 1, keys.size)), mark[:, None])[:, 0]


def results_of(call: Call) -> Result:
    """All shares of the plan, one after another."""
    return merged([_one(call, share) for share in call.plan.shares])


def _one(call: Call, share: Share) -> Result:
    match share:
        case Rows():
            return _by_rows(call, share)
        case Residues():
            return _by_residues(call, share)
        case Heads():
            return _by_heads(call, share)
        case Ring():
            return _by_ring(call, share)


@dataclass(eq=False)
class _Coming:
    """Rows on their way to this rank, in up to two hops: `own` are tensors [B, heads, tokens, ...] of its shard."""

    call: Call
    delivery: Delivery
    own: tuple[Tensor, ...]
    flight: Flight | None = None
    came: list[tuple[Tensor, ...]] = field(default_factory=list)

    def start(self) -> tuple[Tensor, ...]:
        """Sends the first hop; the own tensors, for one attention that reads them meanwhile."""
        if (hop := self.delivery.first) is None:
            return self.own
        shared = [hop.rows.share(x) for x in self.own]
        self.flight = self.call.send(*((rows, hop.route) for _, rows in shared))
        return tuple(x for x, _ in shared)

    def go_on(self) -> None:
        """Waits for the first hop and starts the second."""
        if self.flight is not None:
            self.came.append(self.call.receive(self.flight))
        self.flight = None
        if (hop := self.delivery.second) is not None:
            held = self.came[0] if self.came else tuple(x[:, :, :0] for x in self.own)
            both = tuple(torch.cat(pair, dim=2) for pair in zip(self.own, held, strict=True))
            self.flight = self._send(hop, both)

    def rows(self) -> tuple[Tensor, ...]:
        """All that came, in the order of its positions."""
        if self.flight is not None:
            self.came.append(self.call.receive(self.flight))
        if not self.came:
            return tuple(x[:, :, :0] for x in self.own)
        everything = tuple(torch.cat(x, dim=2) if len(x) > 1 else x[0] for x in zip(*self.came, strict=True))
        return tuple(self.delivery.order.take(x) for x in everything)

    def _send(self, hop: Hop, tensors: tuple[Tensor, ...]) -> Flight:
        return self.call.send(*((hop.rows.take(x), hop.route) for x in tensors))


def _by_rows(call: Call, share: Rows) -> Result:
    own = rows_of(call.plan, share, call.rank)
    segments = call.marks.segments
    marks = _marks(call, own.keys, call.marks)
    asking = Marks() if own.answers is None else _marks(call, own.answers.queries, Marks(segments=segments))
    keys = _Coming(call, own.keys, (call.k, call.v))
    asked = None if own.answers is None else _Coming(call, own.answers.queries, (call.q,))
    own_keys, own_values = keys.start()
    if asked is not None:
        asked.start()
    free, of_free = own.free.take(call.q), Marks(segments=segments).take(own.free)
    result = None
    if own.at_once is None:
        if not own.border.is_empty:
            free, at_border = own.border_places.share(free)
        result = call.attend(own.interior, free, own_keys, own_values, call.marks, of_free.segments)
    keys.go_on()
    flight = None if asked is None or own.answers is None else _answer(call, own.answers, asked, asking)
    k, v = keys.rows()
    if result is None:
        assert own.at_once is not None
        k, v = (_inserted(ours, theirs, own.before) for ours, theirs in ((call.k, k), (call.v, v)))
        every = Marks(*(_inserted_marks(*pair, own.before) for pair in zip(call.marks, marks, strict=True)))
        result = call.attend(own.at_once, free, k, v, every, of_free.segments)
    elif not own.border.is_empty:
        of_border = of_free.take(own.border_places).segments
        border = call.attend(own.border, at_border, k, v, marks, of_border)
        result = merged_at(result, border, own.border_places)
    if flight is None or own.answers is None:
        return result
    answered = _merge_answers(call, own.answers, *flight)
    return Result(*(own.together.take(torch.cat(pair, dim=2)) for pair in zip(result, answered, strict=True)))


def _inserted(ours: Tensor, theirs: Tensor, before: int) -> Tensor:
    """This rank's keys [B, H, N, ...] among those that came, so many of which stand before them."""
    return torch.cat([theirs[:, :, :before], ours, theirs[:, :, before:]], dim=2)


def _inserted_marks(ours: Tensor | None, theirs: Tensor | None, before: int) -> Tensor | None:
    if ours is None or theirs is None:
        return None
    return _inserted(ours[:, None], theirs[:, None], before)[:, 0]


def _marks(call: Call, delivery: Delivery, own: Marks) -> Marks:
    """The marks of the tokens that come, which have no gradient."""
    if (rows := own.rows) is None:
        return own
    coming = _Coming(call, delivery, (rows,))
    coming.start()
    coming.go_on()
    return own.read(*coming.rows())


def _answer(call: Call, answers: Answers, asked: _Coming, marks: Marks) -> tuple[Result, Flight]:
    """What this rank's keys say to the queries that all ranks answer: the part that it merges, and the others sent."""
    asked.go_on()
    queries = torch.cat([answers.own.take(call.q), *asked.rows()], dim=2)
    segments = None
    if marks.segments is not None and call.marks.segments is not None:
        both = torch.cat([answers.own.take(call.marks.segments[:, None]), marks.segments[:, None]], dim=2)
        segments = answers.order.take(both)[:, 0]
    partial = call.attend(answers.attended, answers.order.take(queries), call.k, call.v, call.marks, segments)
    flight = call.send(*((answers.others.take(x), answers.parts) for x in partial))
    return Result(*(answers.merged.take(x) for x in partial)), flight


def _merge_answers(call: Call, answers: Answers, own: Result, flight: Flight) -> Result:
    """The results of this rank's queries that all ranks answered."""
    outs, lses = (x.split([count for count in answers.parts.received if count], dim=2) for x in call.receive(flight))
    complete = merged([own, *(Result(*pair) for pair in zip(outs, lses, strict=True))])
    back = call.receive(call.send(*((answers.away.take(x), answers.returned) for x in complete)))
    before = answers.before
    return Result(
        *(
            torch.cat([theirs[:, :, :before], answers.kept.take(x), theirs[:, :, before:]], dim=2)
            for x, theirs in zip(complete, back, strict=True)
        )
    )


def _by_residues(call: Call, share: Residues) -> Result:
    own = residues_of(call.plan, share, call.rank)
    tensors = [call.q, call.k, call.v]
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.receive(call.send((own.rows.take(rows), own.route))))
    q, k, v = call.receive(call.send(*((own.rows.take(x), own.route) for x in tensors)))
    result = call.attend(own.attended, q, k, v, marks, marks.segments)
    back = call.receive(call.send(*((x, own.route.back) for x in result)))
    return Result(*(own.back.take(x) for x in back))


def _by_heads(call: Call, share: Heads) -> Result:
    plan, ranks = call.plan, call.context.ranks
    of_queries, of_keys = (
        Route((shards.sizes[call.rank],) * ranks, shards.sizes) for shards in (plan.queries, plan.keys)
    )
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.receive(call.send((torch.cat([rows] * ranks, dim=2), of_keys))))
    pieces = ((call.q, of_queries), (call.k, of_keys), (call.v, of_keys))
    q, k, v = call.receive(call.send(*((_heads_after_another(x, ranks), route) for x, route in pieces)))
    heads = q.shape[1]
    rule = some_heads(share.pattern, call.rank * heads, (call.rank + 1) * heads)
    assert rule is not None, "no plan cuts the heads of such a pattern"
    positions = np.arange(plan.queries.length) + plan.query_offset
    result = call.attend(
        Local(rule, positions, np.arange(plan.keys.length), plan.keys.length), q, k, v, marks, marks.segments
    )
    back = call.receive(call.send(*((x, of_queries.back) for x in result)))
    return Result(*(x.unflatten(2, (ranks, call.q.shape[2])).movedim(2, 1).flatten(1, 2) for x in back))


def _heads_after_another(x: Tensor, ranks: int) -> Tensor:
    """[B, H, N, ...] -> [B, H / ranks, ranks * N, ...]: for each rank its heads of all tokens."""
    return torch.cat(x.chunk(ranks, dim=1), dim=2)


def _by_ring(call: Call, share: Ring) -> Result:
    steps, ranks, sizes = ring_of(call.plan, share, call.rank), call.context.ranks, call.plan.keys.sizes
    k, v, marks, results = call.k, call.v, call.marks, []
    for step, local in enumerate(steps):
        flights = []
        if step + 1 < ranks:
            route = _handed_on(call.rank, step, sizes)
            if (rows := marks.rows) is not None:
                flights.append(call.send((rows, route)))
            flights.append(call.send((k, route), (v, route)))
        if not local.is_empty or not step:
            results.append(call.attend(local, call.q, k, v, marks, call.marks.segments))
        if flights:
            *came, (k, v) = (call.receive(flight) for flight in flights)
            marks = marks.read(*came[0]) if came else marks
    return merged(results)


def _handed_on(rank: int, step: int, sizes: Sequence[int]) -> Route:
    """To the next rank the shard that is held, and from the one before that which it holds."""
    ranks = len(sizes)
    sent, received = [0] * ranks, [0] * ranks
    sent[(rank + 1) % ranks] = sizes[(rank - step) % ranks]
    received[rank - 1] = sizes[(rank - step - 1) % ranks]
    return Route(tuple(sent), tuple(received))
