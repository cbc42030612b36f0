"""Keys travel to the queries that read them, and queries that read nearly everything travel to the keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from asterism.compiler.devices.communication import Communication, TokenPlace
from asterism.compiler.devices.needs import QueryRuns, Term, needed, readable, restricted, runs
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import Collective, RowShape, Transfers
from asterism.patterns.intervals import Integers, Intervals, covered_below, within
from asterism.patterns.pattern import Pattern

_PARTS_READ = (2, 8, 32)
"""Queries may ask everyone that read more than one in so many keys."""

_FEW = 8
"""Queries that ask are at most one for so many keys: more would be dense attention in another guise."""

_MOST_ASKERS = 2**16
"""Above so many queries that may ask everyone, none are looked at one by one, and none ask."""


@dataclass(frozen=True, eq=False)
class ByRows:
    """Which keys go where, and which queries.

    pattern  its part of the rule
    direct   keys that go straight to a device that needs them: windows' halos, random blocks
    shared   int64 [m, 2], intervals of keys that most devices need, such as global tokens: all devices get them, in
             two hops, so that their owner does not send them to everyone: an even part to each device, and from there
             to all
    asking   int64 [m, 2], intervals of queries that read nearly everything: they go to all devices in two hops, each
             device answers with its own keys, and the answers return in two hops: each device merges an even part of
             the queries, and their owners get what is merged
    """

    pattern: Pattern
    direct: Transfers
    shared: Integers
    asking: Integers
    ignores_the_pattern: ClassVar[bool] = False

    @classmethod
    def offers(cls, place: TokenPlace, pattern: Pattern, found: Sequence[Term]) -> Iterator[tuple["ByRows"]]:
        """The simplest first: which queries ask, and which keys all get."""
        for asking in _askers(place, found):
            wanted = _remote(found, _blocks(place, asking, place.sample), place.keys)
            for shared in _shared(wanted, len(place.sample) or place.keys.devices):
                yield (cls(pattern, _transfers(_without(wanted, shared), place.keys), shared, asking),)

    def collectives(self, plan: Communication, shape: RowShape) -> Iterator[Collective]:
        """Keys in two hops; queries in two hops, and their results back in two."""
        key, query, result = shape.key, shape.query, shape.result
        direct, devices = self.direct, plan.devices
        shared, asking = _Hops.of(self.shared, plan.keys), _Hops.of(self.asking, plan.queries)
        source = np.concatenate([direct.source, shared.owner])
        target = np.concatenate([direct.target, shared.part])
        rows = np.concatenate([direct.stop - direct.start, shared.count])
        yield Collective.sparse("keys", source, target, rows, key, devices)
        yield shared.second("keys, second hop", key)
        yield Collective.sparse("queries", asking.owner, asking.part, asking.count, query, devices)
        yield asking.second("queries, second hop", query)
        some = (asking.sizes > 0).astype(np.int64)
        sent, received = (asking.rows - asking.sizes) * result, asking.sizes * (devices - 1) * result
        yield Collective("partial results", sent, received, some.sum() - some, some * (devices - 1))
        yield Collective.sparse("results", asking.part, asking.owner, asking.count, result, devices)

    def held(self, plan: Communication, shape: RowShape) -> Integers:
        """What comes straight, and what all get but those who own it."""
        hops = _Hops.of(self.shared, plan.keys)
        return (self.direct.counts_received() + hops.rows - hops.owned()) * shape.key

    def title(self, plan: Communication) -> str:
        """What moves, in words."""
        most = int(self.direct.counts_received().max(initial=0))
        parts = [f"keys go where they are read (at most {most:,} straight to a rank)"]
        if len(self.shared):
            parts.append(f"{_count(self.shared):,} that most ranks need go to all in two hops")
        if len(self.asking):
            parts.append(f"{_count(self.asking):,} queries that read nearly everything ask every rank")
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class _Hops:
    """Rows that all devices get in two hops: an even part to each device, and from there to all.

    owner, part, count  int64 [entries] each: how many rows of which owner are in which part, an entry for each that
                        has some
    sizes               int64 [devices], rows of each part
    """

    owner: Integers
    part: Integers
    count: Integers
    sizes: Integers

    @classmethod
    def of(cls, intervals: Integers, shards: Shards) -> Self:
        """For sorted, disjoint intervals of tokens."""
        # Rows are counted through: three owners hold 3, 0 and 5 of 8 rows, up to 0 3 3 8, and three even parts go up to
        # 0 3 6 8. Cut at all of these, 0 3 6 8, the pieces are 3, 3 and 2 rows, of owners 0 2 2 and in parts 0 1 2.
        starts, stops = intervals[:, 0], intervals[:, 1]
        held = covered_below(starts, stops, np.array(shards.bounds))
        parts = np.array(Shards.even(int(held[-1]), shards.devices).bounds)
        cuts = np.unique(np.concatenate([held, parts]))
        first = cuts[:-1]
        owner = np.searchsorted(held[1:], first, side="right")
        part = np.searchsorted(parts[1:], first, side="right")
        return cls(owner, part, np.diff(cuts), np.diff(parts))

    @property
    def devices(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """Rows of all parts together."""
        return int(self.sizes.sum())

    def owned(self) -> Integers:
        """Rows of each owner, int64 [devices]."""
        owned = np.zeros(self.devices, np.int64)
        np.add.at(owned, self.owner, self.count)
        return owned

    def second(self, name: str, row: int) -> Collective:
        """Every device sends its part to all who do not own the rows."""
        away = np.flatnonzero(self.owner != self.part)
        owner, part, count = self.owner[away], self.part[away], self.count[away]
        sent, received = self.sizes * (self.devices - 1), self.rows - self.sizes
        np.subtract.at(sent, part, count)
        np.subtract.at(received, owner, count)
        # Where all of a part is an owner's, nothing goes from the one to the other.
        whole = count == self.sizes[part]
        some = (self.sizes > 0).astype(np.int64)
        targets, sources = some * (self.devices - 1), some.sum() - some
        np.subtract.at(targets, part[whole], 1)
        np.subtract.at(sources, owner[whole], 1)
        return Collective(name, sent * row, received * row, targets, sources)


def _askers(place: TokenPlace, found: Sequence[Term]) -> Iterator[Integers]:
    """Sets of queries that may ask everyone, as intervals: none, and those that read more and more keys."""
    yield np.zeros((0, 2), np.int64)
    if place.queries.devices == 1:
        return
    everyone = _blocks(place, np.zeros((0, 2), np.int64))
    reading = readable(found, everyone, place.keys.length)
    # A query that asks takes its own row and two of results; below that, keys are cheaper.
    least = (place.shape.query + 2 * place.shape.result) / max(1, place.shape.key)
    seen = 0
    for part in _PARTS_READ:
        many = reading > max(place.keys.length / part, least)
        if int(everyone.sizes[many].sum()) > _MOST_ASKERS:
            return
        singles = everyone.singles(many)
        asked = singles.start[readable(found, singles, place.keys.length) > max(place.keys.length / part, least)]
        if seen < len(asked) <= place.keys.length // _FEW:
            seen = len(asked)
            yield np.stack(runs(asked - place.query_offset), axis=1)


def _blocks(place: TokenPlace, asking: Integers, sample: tuple[int, ...] = ()) -> QueryRuns:
    """Blocks of the queries that every device computes itself: all of its own but those that ask everyone. Only those
    of a sample, if there is one."""
    bounds, devices = np.array(place.queries.bounds), place.queries.devices
    own = Intervals.one_each(bounds[:-1], bounds[1:], place.queries.length)
    device, start, stop = _without(own, asking).triples()
    kept = np.isin(device, sample) if sample else np.ones(len(device), bool)
    start, stop = start[kept] + place.query_offset, stop[kept] + place.query_offset
    return QueryRuns.cut(start, stop, device[kept], devices)


def _shared(wanted: Intervals, devices: int) -> Iterator[Integers]:
    """Sets of keys that all may get in two hops, as intervals: none, those that all devices but the owner need, and
    those that more than half of them need. So many devices say what they want."""
    yield np.zeros((0, 2), np.int64)
    _, start, stop = wanted.triples()
    # How many need the keys from one end of an interval to the next: those begun so far less those ended. Intervals
    # 0 .. 4 and 2 .. 6 have ends 0, 2, 4, 6, where 1, 2, 1 and 0 need what follows.
    ends, at = np.unique(np.concatenate([start, stop]), return_inverse=True)
    change = np.zeros(len(ends), np.int64)
    np.add.at(change, at, np.repeat([1, -1], len(start)))
    needing = np.cumsum(change)
    others = devices - 1
    for least in sorted({others, others // 2 + 1}, reverse=True) if others > 1 else ():
        # Owners cut what all need into stretches with equal counts, so neighbours are joined again.
        many = np.flatnonzero(needing >= least)
        joined = Intervals.build(np.zeros_like(many), ends[many], ends[many + 1], 1, wanted.width)
        if len(many):
            yield np.stack([joined.starts, joined.stops], axis=1)


def _remote(found: Sequence[Term], blocks: QueryRuns, keys: Shards) -> Intervals:
    """Per device, the keys that its queries need and other devices hold."""
    bounds = np.array(keys.bounds)
    own = Intervals.one_each(bounds[:-1], bounds[1:], keys.length)
    return needed(found, blocks, keys.length) & own.complement()


def _transfers(wanted: Intervals, keys: Shards) -> Transfers:
    """Every device's intervals, cut where the keys of one device end and those of the next begin."""
    target, start, stop = wanted.triples()
    first, last = keys.owners(start), keys.owners(stop - 1)
    pieces = last - first + 1
    # Bounds 0, 4, 8, 12 and an interval 2 .. 9: its owners are 0 to 2, so it is there 3 times, from 0, 1 and 2; what
    # each has of it is 2 .. 3, 4 .. 7 and 8 .. 8.
    target, start, stop, first = (np.repeat(x, pieces) for x in (target, start, stop, first))
    source = first + within(pieces)
    bounds = np.array(keys.bounds)
    start, stop = np.maximum(start, bounds[source]), np.minimum(stop, bounds[source + 1])
    kept = np.flatnonzero(start < stop)  # between two devices there may be one without keys
    order = kept[np.lexsort((start[kept], target[kept], source[kept]))]
    return Transfers(source[order], target[order], start[order], stop[order], keys.devices)


def _without(intervals: Intervals, some: Integers) -> Intervals:
    """What is not in some intervals, the same in every row."""
    one_row = Intervals.build(np.zeros(len(some), np.int64), some[:, 0], some[:, 1], 1, intervals.width)
    rest = one_row.complement()
    return restricted(intervals, rest.starts, rest.stops)


def _count(intervals: Integers) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).sum())
