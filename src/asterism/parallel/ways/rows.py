"""Keys travel to the queries that read them, and queries that read nearly everything to the keys; see `ByRows`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.devices import ByRows, Communication, Shards, Transfers
from asterism.kernels.merging import Result, merged, merged_at
from asterism.parallel.compute import Call
from asterism.parallel.delivery import Coming, Delivery, deliver
from asterism.parallel.exchange import Flight, Hop, Route, inserted, together
from asterism.parallel.indices import TokenIndices
from asterism.parallel.key_marks import Marks
from asterism.parallel.local import Local, positions_in, reading
from asterism.patterns.intervals import Integers


@dataclass(frozen=True, eq=False)
class QueryAnswers:
    """Queries that all ranks answer with their own keys. Positions and indices are int64.

    queries   how they come to this rank; its own rows are those that it asks
    order     [asking]: sorts [own | what came] by position
    attended  what this rank answers, to all of them
    merged    which of the answers this rank merges: neighbours, an even part
    sent      the other answers, to the ranks that merge them; from each rank come its answers to those merged here
    kept      which of those merged are of its own queries, as indices among them
    back      the others, to the ranks whose queries they are; from each rank come those of this one that it merged
    """

    queries: Delivery
    order: TokenIndices
    attended: Local
    merged: TokenIndices
    sent: Hop
    kept: TokenIndices
    back: Hop


@dataclass(frozen=True, eq=False)
class RowsOf:
    """The way as one rank sees it. Positions and indices are int64.

    keys      how those come that its queries read, and those that all ranks get
    free      indices of its queries that it answers itself, ascending, and `asked` of those that it asks everyone
    interior  the free ones and its own keys
    border    those of them that read received keys, at `border_indices` among them
    at_once   instead of both, where most queries are of the border: these and all keys, of which so many as `before`
              were received from ranks before this one; merging would take longer than it could hide
    answers   to the queries of all ranks that ask everyone; None where there are none
    together  sorts [free | those that ask everyone] by position
    """

    keys: Delivery
    free: TokenIndices
    asked: TokenIndices
    interior: Local
    border: Local
    border_indices: TokenIndices
    at_once: Local | None
    before: int
    answers: QueryAnswers | None
    together: TokenIndices


def run(call: Call, way: ByRows) -> Result:
    """The results of this rank's queries."""
    own = call.plan.derived(rows_of, way, call.rank)
    segments = call.marks.segments
    marks = _marks(call, own.keys, call.marks, own.before if own.at_once is not None else None)
    asking = _asked_marks(call, own, segments)
    free, asked = own.free.part_from(call.q, own.asked)
    of_free = Marks(segments=segments).take(own.free)
    keys = Coming(call, own.keys, (call.k, call.v))
    questions = None if own.answers is None else Coming(call, own.answers.queries, (asked,))
    if questions is not None:
        questions.start()  # these first: they are few, and are answered while keys are on their way
        questions.go_on()
    keys.start()
    if own.at_once is None:
        if not own.border.is_empty:
            free, at_border = own.border_indices.share(free)
        result = call.attend(own.interior, free, keys.own[0], keys.own[1], call.marks, of_free.segments)
    keys.go_on()
    partial = None
    if own.answers is not None and questions is not None:
        partial = _answer(call, own.answers, questions, keys.own, asking)
    k, v = keys.rows() if own.at_once is None else keys.among_own(own.before)
    if own.at_once is not None:
        result = call.attend(own.at_once, free, k, v, marks, of_free.segments)
    elif not own.border.is_empty:
        of_border = of_free.take(own.border_indices).segments
        result = merged_at(result, call.attend(own.border, at_border, k, v, marks, of_border), own.border_indices)
    if partial is None or own.answers is None:
        return result
    return _joined(own, result, _merge_answers(call, own.answers, *partial))


def rows_of(plan: Communication, way: ByRows, rank: int) -> RowsOf:
    """What rank `rank` does.

    Two ranks have four tokens each, a query reads itself and the key before it, and queries 5 and 6 ask everyone. On
    rank 1, where indices count from token 4, free = [0, 3] and asked = [1, 2]. Key 3 comes, before all own ones:
    before = 0 + 1. Only query 4 reads it: border_indices = [0]. [4, 7 | 5, 6] is sorted by together = [0, 2, 3, 1].
    """
    keys = deliver(plan.keys, way.direct, positions_in(way.shared), rank)
    first, past = plan.queries.range(rank)
    asking = positions_in(way.asking)
    free = np.setdiff1d(np.arange(first, past), asking, assume_unique=True)
    asked = asking[(asking >= first) & (asking < past)]
    at, own = free + plan.query_offset, np.arange(*plan.keys.range(rank))
    border = reading(plan, way.pattern, free, keys.positions)
    before = int(np.searchsorted(keys.positions, plan.keys.range(rank)[0]))
    every = np.insert(keys.positions, before, own)
    return RowsOf(
        keys=keys,
        free=TokenIndices(free - first),
        asked=TokenIndices(asked - first),
        interior=Local(way.pattern, at, own, plan.keys.length),
        border=Local(way.pattern, at[border], keys.positions, plan.keys.length),
        border_indices=TokenIndices(border),
        at_once=Local(way.pattern, at, every, plan.keys.length) if 2 * len(border) > len(free) else None,
        before=before,
        answers=_answers(plan, way, asking, rank) if len(asking) else None,
        together=TokenIndices(np.argsort(np.concatenate([free, asked]), kind="stable")),
    )


def _answers(plan: Communication, way: ByRows, asking: Integers, rank: int) -> QueryAnswers:
    """What rank `rank` does about the queries at positions `asking`, int64 [asking], ascending.

    In the example of `rows_of`, where both are rank 1's, rank 0 merges the answers to query 5, and rank 1 those to 6:

            merged  sent           kept  back
    rank 0  [0]     [1] to rank 1  []    [0] to rank 1
    rank 1  [1]     [0] to rank 0  [0]   nothing; query 5 comes
    """
    queries, everyone = plan.queries, range(plan.devices)
    delivery = deliver(queries, Transfers.none(queries.devices), asking, rank)
    first, past = queries.range(rank)
    parts = Shards.even(len(asking), queries.devices)  # who merges which: of indices among `asking`
    begin, end = (int(place) for place in np.searchsorted(asking, [first, past]))
    own = asking[begin:end]
    start, stop = parts.range(rank)
    mine, all_of_them = np.arange(stop - start), np.arange(len(asking))
    is_own = (asking[start:stop] >= first) & (asking[start:stop] < past)
    owners = np.bincount(queries.owners(asking[start:stop]), minlength=queries.devices)
    # Each rank merged as many of this one's queries as its part has in common with begin .. end - 1.
    came = tuple(max(0, min(end, parts.range(other)[1]) - max(begin, parts.range(other)[0])) for other in everyone)
    return QueryAnswers(
        queries=delivery.among(own - first),
        order=TokenIndices(np.argsort(np.concatenate([own, delivery.positions]), kind="stable")),
        attended=Local(way.pattern, asking + plan.query_offset, np.arange(*plan.keys.range(rank)), plan.keys.length),
        merged=TokenIndices(all_of_them[start:stop]),
        sent=Hop(
            TokenIndices(np.delete(all_of_them, slice(start, stop))),
            Route(_without(parts.sizes, rank), _without((len(mine),) * queries.devices, rank)),
        ),
        kept=TokenIndices(mine[is_own]),
        back=Hop(
            TokenIndices(mine[~is_own]), Route(_without(tuple(int(x) for x in owners), rank), _without(came, rank))
        ),
    )


def _without(counts: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Nothing goes to the rank itself."""
    return tuple(0 if other == rank else count for other, count in enumerate(counts))


def _asked_marks(call: Call, own: RowsOf, segments: Tensor | None) -> Marks:
    """The segments of the queries that all ranks answer."""
    if own.answers is None or segments is None:
        return Marks()
    asked = Marks(segments=segments).take(own.asked)
    came = _marks(call, own.answers.queries, asked)
    both = (x.segments[:, None] for x in (asked, came) if x.segments is not None)
    return Marks(segments=own.answers.order.take(torch.cat(list(both), dim=2))[:, 0])


def _joined(own: RowsOf, free: Result, asked: Result) -> Result:
    """Results by the indices of their queries."""
    if not len(own.asked):
        return free
    if (run := own.asked.run) is not None:
        return Result(*(inserted(x, y, run.start) for x, y in zip(free, asked, strict=True)))
    return Result(*(own.together.take(torch.cat(pair, dim=2)) for pair in zip(free, asked, strict=True)))


def _marks(call: Call, delivery: Delivery, own: Marks, before: int | None = None) -> Marks:
    """The marks of the tokens that come, which have no gradient; those of the own ones as well, in between."""
    if (rows := own.rows) is None:
        return own
    coming = Coming(call, delivery, (rows,))
    coming.start()
    coming.go_on()
    return own.read(*(coming.rows() if before is None else coming.among_own(before)))


def _answer(
    call: Call, answers: QueryAnswers, questions: Coming, keys: tuple[Tensor, ...], marks: Marks
) -> tuple[Result, Flight]:
    """What this rank's keys say to the queries that all ranks answer: the part that it merges, and the others sent."""
    queries = answers.order.take(together([*questions.own, *questions.rows()]))
    partial = call.attend(answers.attended, queries, keys[0], keys[1], call.marks, marks.segments)
    flight, _ = call.send(*((x, answers.sent) for x in partial))
    return Result(*(answers.merged.take(x) for x in partial)), flight


def _merge_answers(call: Call, answers: QueryAnswers, own: Result, flight: Flight) -> Result:
    """The results of this rank's queries that all ranks answered."""
    parts = zip(*call.receive(flight), strict=True)
    complete = merged([own, *(Result(*pair) for pair in parts if pair[0].shape[2])])
    back = call.receive(call.send(*((x, answers.back) for x in complete))[0])
    rank = call.rank
    pairs = zip(back, complete, strict=True)
    return Result(*(together([*x[:rank], answers.kept.take(mine), *x[rank:]]) for x, mine in pairs))
