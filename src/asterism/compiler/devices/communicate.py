"""From a rule to a communication plan: which way to bring queries and keys together moves fewest bytes."""

import numpy as np

from asterism.compiler.devices.communication import Communication, Rows
from asterism.compiler.devices.needs import Blocks, Term, everywhere, needed, terms
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Transfers
from asterism.compiler.memo import remembering
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import Pattern
from asterism.patterns.text import parse

_PLAN_BYTES = 2**26
"""What plans may take that are kept beyond the latest 64."""


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


def _size(plan: Communication) -> int:
    return sum(4 * share.direct.start.nbytes for share in plan.shares if isinstance(share, Rows)) + 2**12


@remembering(64, _size, _PLAN_BYTES)
def _communicate(pattern: Pattern, queries: Shards, keys: Shards, shape: RowShape, query_offset: int) -> Communication:
    found = terms(pattern, max(keys.length, query_offset + queries.length))
    nothing = np.zeros((0, 2), np.int64)
    direct = transfers(remote(found, query_runs(queries, nothing, query_offset), keys), keys)
    return Communication(pattern, queries, keys, (Rows(pattern, direct, nothing, nothing),), query_offset)


def query_runs(queries: Shards, asking: Integers, query_offset: int) -> Blocks:
    """Blocks of the queries that every rank computes itself: all of its own but those that ask everyone."""
    bounds = np.array(queries.bounds)
    own = Intervals.one_each(bounds[:-1], bounds[1:], queries.length)
    free = _without(asking, queries.length)
    kept = own & everywhere(free[:, 0], free[:, 1], queries.ranks, queries.length)
    rank, start, stop = kept.triples()
    return Blocks.cut(start + query_offset, stop + query_offset, rank, queries.ranks)


def remote(found: tuple[Term, ...], blocks: Blocks, keys: Shards) -> Intervals:
    """Per rank, the keys that its queries need and other ranks hold."""
    bounds, ranks = np.array(keys.bounds), np.arange(keys.ranks)
    starts = np.stack([np.zeros_like(ranks), bounds[1:]], axis=1).ravel()
    stops = np.stack([bounds[:-1], np.full_like(ranks, keys.length)], axis=1).ravel()
    others = Intervals.build(np.repeat(ranks, 2), starts, stops, keys.ranks, keys.length)
    return needed(found, blocks, keys.length) & others


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


def _without(intervals: Integers, length: int) -> Integers:
    """The intervals between these, which are sorted and disjoint."""
    return np.stack([np.append(0, intervals[:, 1]), np.append(intervals[:, 0], length)], axis=1)
