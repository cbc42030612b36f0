"""Neighbours in two dimensions: tokens in rows and columns, such as the values of a picture in raster order.

Token p is a value of the pixel p // channels; the pixels of a row stand side by side, and the rows one below the other.
There are as many rows as the sequence has tokens for, the last one may be partial, and nothing goes round at the ends
of a row: the last pixel of one row and the first of the next are not neighbours unless the picture is two pixels wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from asterism.errors import PatternError, shown
from asterism.patterns.intervals import Integers, Intervals, once
from asterism.patterns.pattern import GREATEST, Booleans, Pattern, Ranges, Verdict, Verdicts, check_integer, verdicts

_MOST_VALUES = 2**30
"""The most values of a row: a position times it stays within int64."""

_MANY_ROWS = 256
"""Above so many rows that a query may read, spans are their hull: a cheap superset."""


class _Pixels(NamedTuple):
    """The pixels that sets of tokens lie in, int64 [sets] each. In one row, columns go from first to last; in several,
    anywhere."""

    first_row: Integers
    last_row: Integers
    first_column: Integers
    last_column: Integers

    @property
    def in_one_row(self) -> Booleans:
        return self.first_row == self.last_row


@dataclass(frozen=True, eq=False, repr=False)
class Grid(Pattern):
    keyword: ClassVar[str] = "grid"
    width: int
    radius: int | tuple[int, int]
    dilation: int = 1
    channels: int = 1

    @property
    def radii(self) -> tuple[int, int]:
        """How many pixels are read on each side: among the rows, and among the columns."""
        return self.radius if isinstance(self.radius, tuple) else (self.radius, self.radius)

    @property
    def values_per_row(self) -> int:
        return self.width * self.channels

    def place(self, tokens: Integers) -> tuple[Integers, Integers]:
        """Row and column of the pixel of each token [...]: int64 [...] each."""
        row, column = np.divmod(tokens // self.channels, self.width)
        return row, column

    def last_reader(self, keys: Integers) -> Integers:
        """int64 [...]: the last token whose neighbourhood holds each key [...]: the last value of the last pixel, of
        the last row."""
        row, column = self.place(keys)
        rows, columns = self.radii
        right = np.minimum(columns, (self.width - 1 - column) // self.dilation) * self.dilation
        return ((row + rows * self.dilation) * self.width + column + right + 1) * self.channels - 1

    @property
    def life(self) -> int:
        """No key is read by a query more than so many positions after it."""
        rows, columns = self.radii
        right = min(columns, (self.width - 1) // self.dilation) * self.dilation
        return (rows * self.dilation * self.width + right + 1) * self.channels - 1

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        # Queries and keys come repeated against each other; each is divided into rows and columns once.
        result: Booleans = np.ones((), bool)
        for at, other, radius in zip(self.place(once(q)), self.place(once(k)), self.radii, strict=True):
            distance = at - other
            result = result & (distance <= radius * self.dilation) & (distance >= -radius * self.dilation)
            if self.dilation > 1:
                result &= distance % self.dilation == 0
        return np.broadcast_to(result, q.shape)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        queries, keys = self._pixels(q), self._pixels(k)
        rows, columns = self.radii
        row_full, row_empty = self._judge(queries[:2], keys[:2], rows)
        column_full, column_empty = self._judge(queries[2:], keys[2:], columns)
        # Where both sets lie in one row each, distances of columns go up by one, so some lie inside and some outside.
        certain = queries.in_one_row & keys.in_one_row & (q.step == 1) & (k.step == 1)
        otherwise = np.where(certain, np.int8(Verdict.MIXED), np.int8(Verdict.UNKNOWN))
        return verdicts(row_full & column_full, row_empty | column_empty, otherwise)

    def _judge(
        self, queries: tuple[Integers, ...], keys: tuple[Integers, ...], radius: int
    ) -> tuple[Booleans, Booleans]:
        """Whether all distances, or none, are those of neighbours, for places from a first to a last one."""
        (q_first, q_last), (k_first, k_last) = queries, keys
        nearest, furthest, reach = q_first - k_last, q_last - k_first, radius * self.dilation
        # Distances from -1 to 5, dilation 3, radius 1: of -1 .. 3 within reach, 0 and 3 are multiples of 3. From 1 to 2
        # there are none: 2 // 3 = 0 is below 1 / 3, rounded up.
        low, high = np.maximum(nearest, -reach), np.minimum(furthest, reach)
        none = high // self.dilation < -(-low // self.dilation)
        all_are_multiples = (nearest == furthest) if self.dilation > 1 else np.ones_like(none)
        return (nearest >= -reach) & (furthest <= reach) & all_are_multiples & ~none, none

    def _pixels(self, tokens: Ranges) -> _Pixels:
        first_row, first_column = self.place(tokens.first)
        last_row, last_column = self.place(tokens.last)
        one = first_row == last_row
        return _Pixels(first_row, last_row, np.where(one, first_column, 0), np.where(one, last_column, self.width - 1))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        first_row, first_column = self.place(q.first)
        last_row, last_column = self.place(q.last)
        one = first_row == last_row
        end = np.full_like(first_column, self.width - 1)
        # A set of queries is the end of a row, whole rows, and the start of a row; or a part of a single row.
        pieces = (
            (first_row, first_row, first_column, np.where(one, last_column, end)),
            (first_row + 1, last_row - 1, np.zeros_like(end), end),
            (last_row, last_row, np.where(one, first_column, 0), last_column),
        )
        found = [self._reach(top, bottom, left, right, length) for top, bottom, left, right in pieces]
        row, start, stop = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Intervals.build(row, start, stop, len(q.first), length)

    def _reach(
        self, first_row: Integers, last_row: Integers, first_column: Integers, last_column: Integers, length: int
    ) -> tuple[Integers, Integers, Integers]:
        """(number of the piece, start, stop) of what pieces read: equal columns of consecutive rows.

        Columns are those of a single row, or all of them.
        """
        rows, columns = self.radii
        left = np.maximum(first_column - columns * self.dilation, 0)
        right = np.minimum(last_column + columns * self.dilation, self.width - 1)
        some = first_row <= last_row
        n_rows = -(-length // self.values_per_row)
        # Only offsets at which there are rows: a column above may be as high as any picture.
        count = min(2 * rows, n_rows // self.dilation + 1) + 1
        if count > _MANY_ROWS:
            start, stop = first_row - rows * self.dilation, last_row + rows * self.dilation + 1
            piece = np.arange(len(start))
            return piece, start * self.values_per_row, np.where(some, stop * self.values_per_row, 0)
        lowest = np.maximum(-rows, -(last_row // self.dilation))
        offset = lowest[:, None] + np.arange(count)
        inside = (offset <= rows) & some[:, None]
        start = ((first_row[:, None] + offset * self.dilation) * self.width + left[:, None]) * self.channels
        stop = ((last_row[:, None] + offset * self.dilation) * self.width + right[:, None] + 1) * self.channels
        piece = np.broadcast_to(np.arange(len(first_row))[:, None], inside.shape)
        return piece[inside], start[inside], stop[inside]

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return (q.first - k.first) * self.values_per_row + q.first % self.values_per_row


def grid(width: int, radius: int | Sequence[int], dilation: int = 1, channels: int = 1) -> Pattern:
    """Let each token read the neighbouring pixels in two dimensions, with all channels.

    Token p is a value of the pixel in row p // channels // width and column p // channels % width: `width` pixels in a
    row, `channels` values of each side by side. With (rows, columns) between the pixels of query and key, both
    distances are multiples of `dilation`, and at most `radius` of these multiples. With two numbers, `radius` gives the
    radius of the rows and that of the columns: `grid(64, radius=(63, 0), channels=3) & causal()` is the column above in
    a picture of 64 rows, and `grid(64, radius=2, channels=3) & causal()` what comes first of the 5 x 5 pixels around.
    Rows do not wrap around. The last row may be partial.

    Raises PatternError for width, dilation or channels < 1, radii below 0, more than two radii, more than 2**30 values
    in a row, and a neighbourhood that reaches further than 2**60 positions.
    """
    width = check_integer("grid", "width", width, 1)
    dilation = check_integer("grid", "dilation", dilation, 1)
    channels = check_integer("grid", "channels", channels, 1)
    rows, columns = radii = _radii(radius)
    if width * channels > _MOST_VALUES:
        raise PatternError(
            "grid-size",
            f"grid: a row of width * channels must have at most {_MOST_VALUES:,} values, got {width:,} * {channels:,}",
        )
    if max(rows * width * channels, columns) * dilation > GREATEST:
        raise PatternError(
            "grid-reach",
            f"grid: a neighbourhood must reach over at most 2**60 positions, got radius={shown(radii)} and"
            f" dilation={dilation} for rows of {width * channels:,} values",
        )
    return Grid(width, rows if rows == columns else radii, dilation, channels)


def _radii(radius: object) -> tuple[int, int]:
    if isinstance(radius, str) or not isinstance(radius, (Sequence, np.ndarray)):
        number = check_integer("grid", "radius", radius, 0)
        return number, number
    if len(radius) != 2:
        raise PatternError(
            "grid-radius", f"grid: radius must be one number, or one of rows and one of columns, got {shown(radius)}"
        )
    rows, columns = (check_integer("grid", "radius", number, 0) for number in radius)
    return rows, columns
