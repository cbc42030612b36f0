"""Sets of half-open integer intervals, one set per row, with vectorised union and intersection.

A row's intervals are laid on one line, row r occupying [r * (width + 1), r * (width + 1) + width), so that the set
operations of many rows are the set operations of one sorted list. The gap between rows keeps neighbours from merging.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Intervals:
    """Sorted, disjoint, non-empty intervals of `rows` rows over positions [0, width).

    starts, stops  int64 [intervals] each, on the line on which the rows follow each other: of width 10, the interval
                   from 3 to before 5 of row 2 has start 2 * 11 + 3 = 25 and stop 27
    """

    starts: Integers
    stops: Integers
    rows: int
    width: int

    @classmethod
    def build(cls, row: Integers, start: Integers, stop: Integers, rows: int, width: int) -> Self:
        """Intervals from any list of rows, starts and stops, int64 [n] each; they are clipped, empty ones dropped,
        touching ones merged."""
        start, stop = np.maximum(start, 0), np.minimum(stop, width)
        kept = start < stop
        base = row[kept] * (width + 1)
        return cls._merged(base + start[kept], base + stop[kept], rows, width)

    @classmethod
    def one_each(cls, start: Integers, stop: Integers, width: int) -> Self:
        """One interval per row, from start and stop, int64 [rows] each."""
        return cls.build(np.arange(len(start)), start, stop, len(start), width)

    @classmethod
    def everything(cls, rows: int, width: int) -> Self:
        return cls.one_each(np.zeros(rows, np.int64), np.full(rows, width), width)

    @classmethod
    def nothing(cls, rows: int, width: int) -> Self:
        return cls.one_each(np.zeros(rows, np.int64), np.zeros(rows, np.int64), width)

    @classmethod
    def _merged(cls, starts: Integers, stops: Integers, rows: int, width: int) -> Self:
        # An interval opens where it starts beyond all that came before: of 0-4, 2-3, 4-6 and 8-9, the furthest stops so
        # far are 4 4 6 9, and those with the starts 0 and 8 open.
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        opens = np.ones(len(starts), bool)
        opens[1:] = starts[1:] > stops[:-1]
        closes = np.append(opens[1:], True)[: len(starts)]
        return cls(starts[opens], stops[closes], rows, width)

    def __or__(self, other: Self) -> Self:
        return self._merged(
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.stops, other.stops]),
            self.rows,
            self.width,
        )

    def __and__(self, other: Self) -> Self:
        # Counting +1 at every start and -1 at every stop, in order: where the count is 2, both cover up to the next.
        # Of 0-4 and 2-6 the counts are 1 at 0, 2 at 2, 1 at 4 and 0 at 6. At equal positions, stops come first.
        # The last bit says which it is, as sorting numbers is many times faster than sorting places by two keys.
        ends = np.concatenate([2 * self.starts + 1, 2 * other.starts + 1, 2 * self.stops, 2 * other.stops])
        ends.sort(kind="stable")
        position, covering = ends >> 1, np.cumsum(2 * (ends & 1) - 1)
        both = np.flatnonzero(covering == 2)
        return type(self)(position[both], position[both + 1], self.rows, self.width)

    def complement(self) -> Self:
        """The positions that are not covered."""
        # What is not covered starts at a row's begin or at a stop, and stops at a start or a row's end: in one row of
        # width 10, intervals 0-4 and 6-8 leave 0-0, 4-6 and 8-10, of which the empty one is dropped.
        base = np.arange(self.rows) * (self.width + 1)
        starts = np.sort(np.concatenate([base, self.stops]))
        stops = np.sort(np.concatenate([self.starts, base + self.width]))
        kept = starts < stops
        return type(self)(starts[kept], stops[kept], self.rows, self.width)

    def triples(self) -> tuple[Integers, Integers, Integers]:
        """Row, start and stop of every interval: int64 [intervals] each."""
        row = self.starts // (self.width + 1)
        return row, self.starts - row * (self.width + 1), self.stops - row * (self.width + 1)

    def points(self) -> tuple[Integers, Integers]:
        """Row and position of every point covered: int64 [points] each."""
        row, start, stop = self.triples()
        counts = stop - start
        return np.repeat(row, counts), np.repeat(start, counts) + within(counts)


def within(counts: Integers) -> Integers:
    """The numbers 0 .. counts[i] - 1 of every i, one after another: [2, 0, 3] -> [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def covered_below(starts: Integers, stops: Integers, places: Integers) -> Integers:
    """int64 [places]: how many positions below each place lie in sorted, disjoint intervals [intervals]."""
    before = np.append(0, np.cumsum(stops - starts))
    at = np.searchsorted(starts, places) - 1
    inside = np.minimum(places, np.append(stops, 0)[at]) - np.append(starts, 0)[at]
    return np.where(at >= 0, before[at] + inside, 0)


def once(repeated: Integers) -> Integers:
    """An array [...] with one entry on each axis along which it was broadcast; it broadcasts back to [...]."""
    return repeated[tuple(slice(None) if stride else slice(1) for stride in repeated.strides)]
