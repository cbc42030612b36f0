"""The computation of a rank: a pattern between some queries and some keys, by their positions."""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.devices import Communication
from asterism.compiler.devices.needs import QueryRuns, needed, restricted, runs, terms
from asterism.memo import Derives, cached_property
from asterism.patterns import Pattern, part
from asterism.patterns.intervals import Integers, within

_BORDER_BLOCK = 64
"""So many queries at a time are found to read received keys or not."""


@dataclass(frozen=True, eq=False)
class Local(Derives):
    """A pattern between some queries and some keys that are on this rank.

    pattern  that of the sequence
    queries  int64 [queries]: their positions in the keys' sequence, ascending
    keys     int64 [keys]: theirs, ascending
    length   keys of the whole sequence, of all ranks

    Two ranks have four tokens each. Rank 1 computes queries [4, 5, 6, 7] with its own keys [4, 5, 6, 7], and under
    window(1, 0), where key 3 comes from rank 0, also queries [4] with keys [3]; length is 8 in both.
    """

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


def reading(plan: Communication, pattern: Pattern, free: Integers, received: Integers) -> Integers:
    """int64 [reading]: indices among `free`, int64 [free], of the queries that may read received keys, int64
    [received]; both ascend."""
    if not (len(free) and len(received)):
        return np.zeros(0, np.int64)
    starts, stops = runs(free)
    counts = -(-(stops - starts) // _BORDER_BLOCK)
    begin = np.repeat(starts, counts) + within(counts) * _BORDER_BLOCK
    end = np.minimum(begin + _BORDER_BLOCK, np.repeat(stops, counts))
    offset, blocks = plan.query_offset, len(begin)
    found = terms(pattern, max(plan.keys.length, offset + plan.queries.length))
    reach = needed(found, QueryRuns(begin + offset, end + offset, np.arange(blocks), blocks), plan.keys.length)
    some = np.unique(restricted(reach, *runs(received)).triples()[0])
    return np.flatnonzero(np.isin(np.repeat(np.arange(blocks), end - begin), some))


def positions_in(intervals: Integers) -> Integers:
    """The positions in intervals int64 [m, 2], one after another."""
    return np.repeat(intervals[:, 0], sizes := intervals[:, 1] - intervals[:, 0]) + within(sizes)


def as_runs(positions: Integers) -> Integers:
    """int64 [m, 2]: the runs of ascending positions."""
    return np.stack(runs(positions), axis=1)
