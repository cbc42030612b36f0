"""What one rank does of a communication plan: which of its rows go where, and what it computes. Numbers only."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from asterism.compiler.devices import ByResidues, ByRows, Communication, Ring, Shards, Transfers
from asterism.compiler.devices.needs import QueryRuns, needed, restricted, runs, terms
from asterism.memo import cached_property, remembering
from asterism.parallel.exchange import Hop, Route, whole
from asterism.parallel.places import Places
from asterism.patterns import Pattern, part
from asterism.patterns.intervals import Integers

_BORDER_BLOCK = 64
"""So many queries at a time are found to read received keys or not."""


@dataclass(frozen=True, eq=False)
class Second:
    """The second hop of rows: `own` of those that are `taken` from the own rows, `held` of what came first."""

    taken: Places
    own: Hop
    held: Hop


@dataclass(frozen=True, eq=False)
class Delivery:
    """Rows that come to this rank in up to two hops; None for one that no rank has rows for.

    first      from the ranks that own them
    second     from the ranks to which they came first, whether they own them or not
    order      sorts [what came first | what owners sent in the second hop | what others did] by position
    positions  those of all, in order
    """

    first: Hop | None
    second: Second | None
    order: Places
    positions: Integers

    def among(self, own: Integers) -> "Delivery":
        """The same where the own rows are these of the shard."""
        first, second = self.first, self.second
        if first is not None:
            first = Hop(first.rows.among(own), first.route)
        if second is not None:
            second = replace(second, taken=second.taken.among(own))
        return replace(self, first=first, second=second)


@dataclass(frozen=True, eq=False)
class Local:
    """A pattern between some queries and some keys of this rank, by their positions in the sequence."""

    pattern: Pattern
    queries: Integers
    keys: Integers
    length: int

    @property
    def is_empty(self) -> bool:
        return not (len(self.queries) and len(self.keys))

    @cached_property
    def rule(self) -> Pattern:
        return part(self.pattern, self.length, as_runs(self.queries), as_runs(self.keys))


@dataclass(frozen=True, eq=False)
class Answers:
    """Queries that all ranks answer with their own keys.

    queries   how they come to this rank; its own rows are those that it asks
    order     sorts [own | what came] by position
    attended  what this rank answers, to all of them
    merged    which of the answers it merges; `sent` are those that other ranks do
    kept      which of those merged are of its own queries; those of others go `back` to them
    """

    queries: Delivery
    order: Places
    attended: Local
    merged: Places
    sent: Hop
    kept: Places
    back: Hop


@dataclass(frozen=True, eq=False)
class RowsOf:
    """A share by rows, as one rank sees it.

    free      places of its queries that it answers itself, ascending, and `asked` of those that it asks everyone
    interior  these and its own keys
    border    those of them that read received keys, at `border_places` among them
    at_once   instead of both, where most queries are of the border: these and all keys, of which so many as `before`
              were received from ranks before this one; merging would take longer than it could hide
    together  sorts [free | those that ask everyone] by position
    """

    keys: Delivery
    free: Places
    asked: Places
    interior: Local
    border: Local
    border_places: Places
    at_once: Local | None
    before: int
    answers: Answers | None
    together: Places


@dataclass(frozen=True, eq=False)
class ResiduesOf:
    """A share by residues: this rank's tokens in the order in which they leave and `back`, and what it computes."""

    rows: Places
    route: Route
    attended: Local
    back: Places

    @cached_property
    def leaving(self) -> Hop:
        return Hop(self.rows, self.route)

    @cached_property
    def returning(self) -> Hop:
        return whole(self.route.back)


@remembering
def rows_of(plan: Communication, share: ByRows, rank: int) -> RowsOf:
    """What rank `rank` does of a share by rows."""
    keys = _deliver(plan.keys, share.direct, _positions(share.shared), rank)
    first, past = plan.queries.range(rank)
    asking = _positions(share.asking)
    free = np.setdiff1d(np.arange(first, past), asking, assume_unique=True)
    asked = asking[(asking >= first) & (asking < past)]
    at, own = free + plan.query_offset, np.arange(*plan.keys.range(rank))
    border = _reading(plan, share.pattern, free, keys.positions)
    before = int(np.searchsorted(keys.positions, plan.keys.range(rank)[0]))
    every = np.insert(keys.positions, before, own)
    return RowsOf(
        keys=keys,
        free=Places(free - first),
        asked=Places(asked - first),
        interior=Local(share.pattern, at, own, plan.keys.length),
        border=Local(share.pattern, at[border], keys.positions, plan.keys.length),
        border_places=Places(border),
        at_once=Local(share.pattern, at, every, plan.keys.length) if 2 * len(border) > len(free) else None,
        before=before,
        answers=_answers(plan, share, asking, rank) if len(asking) else None,
        together=Places(np.argsort(np.concatenate([free, asked]), kind="stable")),
    )


def _answers(plan: Communication, share: ByRows, asking: Integers, rank: int) -> Answers:
    queries, everyone = plan.queries, range(plan.ranks)
    delivery = _deliver(queries, Transfers.none(queries.ranks), asking, rank)
    first, past = queries.range(rank)
    parts = Shards.even(len(asking), queries.ranks)
    begin, end = (int(place) for place in np.searchsorted(asking, [first, past]))
    own = asking[begin:end]
    start, stop = parts.range(rank)
    mine, all_of_them = np.arange(stop - start), np.arange(len(asking))
    is_own = (asking[start:stop] >= first) & (asking[start:stop] < past)
    owners = np.bincount(queries.owners(asking[start:stop]), minlength=queries.ranks)
    came = tuple(max(0, min(end, parts.range(other)[1]) - max(begin, parts.range(other)[0])) for other in everyone)
    return Answers(
        queries=delivery.among(own - first),
        order=Places(np.argsort(np.concatenate([own, delivery.positions]), kind="stable")),
        attended=Local(share.pattern, asking + plan.query_offset, np.arange(*plan.keys.range(rank)), plan.keys.length),
        merged=Places(all_of_them[start:stop]),
        sent=Hop(
            Places(np.delete(all_of_them, slice(start, stop))),
            Route(_without(parts.sizes, rank), _without((len(mine),) * queries.ranks, rank)),
        ),
        kept=Places(mine[is_own]),
        back=Hop(Places(mine[~is_own]), Route(_without(tuple(int(x) for x in owners), rank), _without(came, rank))),
    )


@remembering
def residues_of(plan: Communication, share: ByResidues, rank: int) -> ResiduesOf:
    """What rank `rank` does of a share by residues."""
    tokens, parts = plan.keys, Shards.even(share.period, plan.keys.ranks)
    own = parts.owners(np.arange(*tokens.range(rank)) % share.period)
    everyone = np.arange(tokens.length)
    mine = everyone[parts.owners(everyone % share.period) == rank]
    sent = np.bincount(own, minlength=tokens.ranks)
    received = np.bincount(tokens.owners(mine), minlength=tokens.ranks)
    leaving = np.argsort(own, kind="stable")
    return ResiduesOf(
        rows=Places(leaving),
        route=Route(tuple(int(x) for x in sent), tuple(int(x) for x in received)),
        attended=Local(share.pattern, mine, mine, tokens.length),
        back=Places(np.argsort(leaving, kind="stable")),
    )


@remembering
def ring_of(plan: Communication, share: Ring, rank: int) -> tuple[Local, ...]:
    """What rank `rank` computes at each step, with the keys of the rank that is as many before it."""
    first, past = plan.queries.range(rank)
    found = []
    for step in range(plan.ranks):
        keys = np.arange(*plan.keys.range((rank - step) % plan.ranks))
        reading = _reading(plan, share.pattern, np.arange(first, past), keys)
        queries = np.arange(first, past) + plan.query_offset if len(reading) else _nothing()
        found.append(Local(share.pattern, queries, keys, plan.keys.length))
    return tuple(found)


def _deliver(shards: Shards, direct: Transfers, shared: Integers, rank: int) -> Delivery:
    """How rows come: `direct` ones from their owners, the others to a rank each, and from there to all."""
    ranks = shards.ranks
    parts = [shared[slice(*Shards.even(len(shared), ranks).range(target))] for target in range(ranks)]
    owners = [shards.owners(piece) for piece in parts]

    def first(source: int, target: int) -> Integers:
        own = parts[target][owners[target] == source]
        return _nothing() if source == target else np.union1d(direct.positions(source, target), own)

    def second(source: int, target: int, *, own: bool) -> Integers:
        piece = parts[source]
        if source == target or not len(piece):
            return _nothing()
        to_target = direct.target == target
        held = _positions(np.stack([direct.start[to_target], direct.stop[to_target]], axis=1))
        is_own = owners[source] == source
        sent = (owners[source] != target) & (is_own if own else ~is_own)
        return np.setdiff1d(piece[sent], held, assume_unique=True)

    everyone, both = range(ranks), (True, False)
    came = [first(source, rank) for source in everyone]
    came_second = [[second(source, rank, own=own) for source in everyone] for own in both]
    goes = [first(rank, target) for target in everyone]
    goes_second = [[second(rank, target, own=own) for target in everyone] for own in both]
    some = len(direct.start) or any((owners[target] != target).any() for target in everyone)
    some_second = any(len(second(*pair, own=own)) for pair in product(everyone, everyone) for own in both)
    held = np.concatenate(came)
    all_came = np.concatenate([held, *came_second[0], *came_second[1]])
    order = np.argsort(all_came, kind="stable")
    start = shards.range(rank)[0]
    twice = None
    if some_second:
        of_own, of_held = (np.concatenate(each) for each in goes_second)
        # What came first ascends: from each rank in order, and ranks hold one stretch after another.
        rows = Places.first(len(of_own)), Places(of_held).among(held)
        hops = (Hop(*one) for one in zip(rows, map(_route, goes_second, came_second), strict=True))
        twice = Second(Places(of_own - start), *hops)
    return Delivery(
        first=Hop(Places(np.concatenate(goes) - start), _route(goes, came)) if some else None,
        second=twice,
        order=Places(order),
        positions=all_came[order],
    )


def _reading(plan: Communication, pattern: Pattern, free: Integers, received: Integers) -> Integers:
    """Places among `free` of the queries that may read received keys."""
    if not (len(free) and len(received)):
        return _nothing()
    starts, stops = runs(free)
    counts = -(-(stops - starts) // _BORDER_BLOCK)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(starts, counts) + within * _BORDER_BLOCK
    end = np.minimum(begin + _BORDER_BLOCK, np.repeat(stops, counts))
    offset, blocks = plan.query_offset, len(begin)
    found = terms(pattern, max(plan.keys.length, offset + plan.queries.length))
    reach = needed(found, QueryRuns(begin + offset, end + offset, np.arange(blocks), blocks), plan.keys.length)
    reading = np.unique(restricted(reach, *runs(received)).triples()[0])
    return np.flatnonzero(np.isin(np.repeat(np.arange(blocks), end - begin), reading))


def _route(sent: list[Integers], received: list[Integers]) -> Route:
    return Route(tuple(map(len, sent)), tuple(map(len, received)))


def _without(counts: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Nothing goes to the rank itself."""
    return tuple(0 if other == rank else count for other, count in enumerate(counts))


def _positions(intervals: Integers) -> Integers:
    return np.concatenate([_nothing(), *(np.arange(start, stop) for start, stop in intervals.tolist())])


def as_runs(positions: Integers) -> Integers:
    return np.stack(runs(positions), axis=1)


def _nothing() -> Integers:
    return np.zeros(0, np.int64)
