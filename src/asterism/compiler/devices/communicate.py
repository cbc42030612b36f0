"""From a rule to a communication plan: which way to bring queries and keys together moves fewest bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asterism.compiler.devices.communication import ByHeads, ByResidues, ByRows, Communication, Ring, Share, some_heads
from asterism.compiler.devices.needs import (
    QueryRuns,
    Term,
    named_keys,
    needed,
    readable,
    restricted,
    runs,
    strides,
    terms,
    union,
)
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Transfers
from asterism.errors import PatternError, shown
from asterism.memo import remembering
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import Pattern
from asterism.patterns.text import parse

_PARTS_READ = (2, 8, 32)
"""Queries may ask everyone that read more than one in so many keys."""

_FEW = 8
"""Queries that ask are at most one for so many keys: more would be dense attention in another guise."""

_MOST_ASKERS = 2**16
"""Above so many queries that may ask everyone, none are looked at one by one, and none ask."""

_MOST_PERIODS = 4
"""How many periods of strides are weighed."""

_MOST_LISTED = 2**23
"""The most intervals that the keys which a pattern names may make for all ranks together."""


def communicate(
    pattern: Pattern | str, queries: Shards, keys: Shards, shape: RowShape, query_offset: int = 0
) -> Communication:
    """The plan by which ranks that hold shards of queries and keys attend by a pattern; equal questions get the same
    object.

    The rule is that of keys.length tokens, and query i stands at position query_offset + i. Of the ways to share the
    rule out, the one is taken whose busiest rank moves fewest bytes, for rows of this shape, forward.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    return _communicate(pattern, queries, keys, shape, query_offset)


@remembering
def _communicate(pattern: Pattern, queries: Shards, keys: Shards, shape: RowShape, query_offset: int) -> Communication:
    plans = list(candidates(pattern, queries, keys, shape, query_offset))
    moved = [plan.traffic(shape).most for plan in plans]
    by_pattern = [cost for plan, cost in zip(plans, moved, strict=True) if not plan.ignores_the_pattern]
    # Where nothing need move, no rank has another's work to do. Else the ring comes first, as it needs least memory.
    first = len(plans) - len(by_pattern) if min(by_pattern) == 0 else 0
    everything = plans[0].traffic(shape).most
    return replace(plans[moved.index(min(moved), first)], is_dense=0 < everything <= min(by_pattern))


def candidates(
    pattern: Pattern, queries: Shards, keys: Shards, shape: RowShape, query_offset: int = 0
) -> Iterator[Communication]:
    """All plans that are weighed, those first that ignore the pattern.

    Raises PatternError where queries and keys lie on different numbers of ranks, and where the plan would be too long.
    """
    if queries.ranks != keys.ranks:
        raise PatternError(f"queries lie on {queries.ranks} ranks and keys on {keys.ranks}: they must be the same")
    place = TokenPlace(queries, keys, query_offset, shape)
    yield place.plan(pattern, Ring(pattern))
    if shape.heads % keys.ranks == shape.key_heads % keys.ranks == 0 and some_heads(pattern, 0, 1) is not None:
        yield place.plan(pattern, ByHeads(pattern))
    found = terms(pattern, place.extent)
    if (listed := listed_at_most(found, keys)) > _MOST_LISTED:
        raise PatternError(
            f"{shown(str(pattern))} names keys so scattered that a plan for {keys.ranks:,} ranks would list up to"
            f" {listed:,} intervals, and at most {_MOST_LISTED:,} are listed: use fewer ranks or larger blocks of keys"
        )
    yield from place.ways(pattern, found)


def listed_at_most(found: Sequence[Term], keys: Shards) -> int:
    """How many intervals of keys that the terms name all ranks together may need."""
    return keys.ranks * sum(len(starts) for term in found for starts, _ in named_keys(term.rule, keys.length))


@dataclass(frozen=True)
class TokenPlace:
    """Where tokens lie, and what their rows take.

    `sample`: the ranks that a plan is made for, if not for all; the others get what all get in two hops.
    """

    queries: Shards
    keys: Shards
    query_offset: int
    shape: RowShape
    sample: tuple[int, ...] = ()

    def ways(self, pattern: Pattern, found: Sequence[Term]) -> Iterator[Communication]:
        """All plans that use the pattern, whose terms are `found`; the simplest first."""
        for rows in self.rows(pattern, found):
            yield self.plan(pattern, rows)
        for shares in self.residues(pattern, found):
            yield self.plan(pattern, *shares)

    def moved(self, plan: Communication) -> int:
        """The most bytes that a rank moves; of a sample, that come to one."""
        traffic = plan.traffic(self.shape)
        return int(traffic.received[list(self.sample)].max()) if self.sample else traffic.most

    @property
    def extent(self) -> int:
        """One past the last position of a query or key."""
        return max(self.keys.length, self.query_offset + self.queries.length)

    def plan(self, pattern: Pattern, *shares: Share) -> Communication:
        return Communication(pattern, self.queries, self.keys, shares, self.query_offset)

    def rows(self, pattern: Pattern, found: Sequence[Term]) -> Iterator[ByRows]:
        """Ways to share by moving rows, the simplest first: which queries ask, and which keys all get."""
        for asking in self._askers(found):
            wanted = remote(found, self._blocks(asking, self.sample), self.keys)
            for shared in _shared(wanted, len(self.sample) or self.keys.ranks):
                yield ByRows(pattern, transfers(_without(wanted, shared), self.keys), shared, asking)

    def _blocks(self, asking: Integers, sample: tuple[int, ...] = ()) -> QueryRuns:
        """Blocks of the queries that every rank computes itself: all of its own but those that ask everyone. Only those
        of a sample, if there is one."""
        bounds, ranks = np.array(self.queries.bounds), self.queries.ranks
        own = Intervals.one_each(bounds[:-1], bounds[1:], self.queries.length)
        rank, start, stop = _without(own, asking).triples()
        kept = np.isin(rank, sample) if sample else np.ones(len(rank), bool)
        start, stop = start[kept] + self.query_offset, stop[kept] + self.query_offset
        return QueryRuns.cut(start, stop, rank[kept], ranks)

    def _askers(self, found: Sequence[Term]) -> Iterator[Integers]:
        """Sets of queries that may ask everyone, as intervals: none, and those that read more and more keys."""
        yield np.zeros((0, 2), np.int64)
        if self.queries.ranks == 1:
            return
        everyone = self._blocks(np.zeros((0, 2), np.int64))
        reading = readable(found, everyone, self.keys.length)
        # A query that asks takes its own row and two of results; below that, keys are cheaper.
        least = (self.shape.query + 2 * self.shape.result) / max(1, self.shape.key)
        seen = 0
        for part in _PARTS_READ:
            many = reading > max(self.keys.length / part, least)
            if int(everyone.sizes[many].sum()) > _MOST_ASKERS:
                return
            singles = everyone.singles(many)
            asked = singles.start[readable(found, singles, self.keys.length) > max(self.keys.length / part, least)]
            if seen < len(asked) <= self.keys.length // _FEW:
                seen = len(asked)
                yield np.stack(runs(asked - self.query_offset), axis=1)

    def residues(self, pattern: Pattern, found: Sequence[Term]) -> Iterator[tuple[Share, ...]]:
        """Ways in which terms with a stride go where their residues live, and the others by rows."""
        if self.queries != self.keys or self.query_offset:
            return
        periods = sorted({period for term in found for period in strides(term.rule)})
        for period in periods[:_MOST_PERIODS]:
            strided = [term for term in found if any(own % period == 0 for own in strides(term.rule))]
            others = [term for term in found if term not in strided]
            rest = union(others, pattern.heads)
            if rest is None:
                yield (ByResidues(pattern, period),)
            elif (own := union(strided, pattern.heads)) is not None:
                by_rows = min(self.rows(rest, others), key=lambda rows: self.moved(self.plan(rest, rows)))
                yield by_rows, ByResidues(own & ~rest, period)


def _shared(wanted: Intervals, ranks: int) -> Iterator[Integers]:
    """Sets of keys that all may get in two hops, as intervals: none, those that all ranks but the owner need, and those
    that more than half of them need. So many ranks say what they want."""
    yield np.zeros((0, 2), np.int64)
    _, start, stop = wanted.triples()
    places, at = np.unique(np.concatenate([start, stop]), return_inverse=True)
    change = np.zeros(len(places), np.int64)
    np.add.at(change, at, np.repeat([1, -1], len(start)))
    needing = np.cumsum(change)
    others = ranks - 1
    for least in sorted({others, others // 2 + 1}, reverse=True) if others > 1 else ():
        # Owners cut what all need into stretches with equal counts, so neighbours are joined again.
        many = np.flatnonzero(needing >= least)
        joined = Intervals.build(np.zeros_like(many), places[many], places[many + 1], 1, wanted.width)
        if len(many):
            yield np.stack([joined.starts, joined.stops], axis=1)


def remote(found: Sequence[Term], blocks: QueryRuns, keys: Shards) -> Intervals:
    """Per rank, the keys that its queries need and other ranks hold."""
    bounds = np.array(keys.bounds)
    own = Intervals.one_each(bounds[:-1], bounds[1:], keys.length)
    return needed(found, blocks, keys.length) & own.complement()


def transfers(wanted: Intervals, keys: Shards) -> Transfers:
    """Every rank's intervals, cut where the keys of one rank end and those of the next begin."""
    target, start, stop = wanted.triples()
    first, last = keys.owners(start), keys.owners(stop - 1)
    target, start, stop = (np.repeat(x, last - first + 1) for x in (target, start, stop))
    pieces = last - first + 1
    source = np.repeat(first, pieces) + np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    bounds = np.array(keys.bounds)
    start, stop = np.maximum(start, bounds[source]), np.minimum(stop, bounds[source + 1])
    kept = np.flatnonzero(start < stop)  # between two ranks there may be one without keys
    order = kept[np.lexsort((start[kept], target[kept], source[kept]))]
    return Transfers(source[order], target[order], start[order], stop[order], keys.ranks)


def _without(intervals: Intervals, some: Integers) -> Intervals:
    """What is not in some intervals, the same in every row."""
    one_row = Intervals.build(np.zeros(len(some), np.int64), some[:, 0], some[:, 1], 1, intervals.width)
    rest = one_row.complement()
    return restricted(intervals, rest.starts, rest.stops)
