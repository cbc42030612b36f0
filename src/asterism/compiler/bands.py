"""Pictures in bands of a few rows, walked column by column: there the neighbours of a pixel are near it.

In raster order the pixels above and below are a row of tokens away. In a band of 4 rows, tokens go down the first
column, then down the second, so that a neighbourhood of 3 x 3 pixels is within three columns, or 12 tokens.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asterism.compiler.layout import Sorted, Tiles, stretches
from asterism.patterns.grid import Grid
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import Pattern


@dataclass(frozen=True)
class Bands(Sorted):
    """Pixels of a grid in bands of `height` rows, column by column; with dilation, one residue class after another.

    The rows of a class are those `dilation` apart, and so are its columns: there the neighbours are the pixels around.
    The keys' bands begin `shift` rows before the queries', so that a band of queries may need fewer of them.
    """

    around: Grid
    height: int
    shift: int = 0

    @property
    def text(self) -> str:
        apart = "" if self.around.dilation == 1 else f", pixels {self.around.dilation} apart"
        keys = f", keys {self.shift} rows earlier" if self.shift else ""
        rows = "row" if self.height == 1 else "rows"
        return f"bands of {self.height} {rows} of {self.around.width} pixels{apart}{keys}"

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        return self._codes(self._fields(positions, self.shift if are_keys else 0), length)

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        position, row = queries.each_token(rows)
        asked = self._fields(position, 0)
        opens, closes = stretches(asked.row_class, asked.column_class, asked.band, row)
        # Rows are counted within a class. The keys' bands begin `shift` rows earlier, so that their row r is number
        # r + shift there. Bands of 4 rows, reach 2, shift 2: queries of band 1, rows 4 to 7, read rows 2 to 9, which
        # are numbers 4 to 11: bands 1 and 2 of the keys.
        (rows_reach, columns_reach), begin = self.around.radii, asked.band[opens] * self.height + self.shift
        first_band = np.maximum(begin - rows_reach, 0) // self.height
        last_band = (begin + self.height - 1 + rows_reach) // self.height
        last_band = np.minimum(last_band, self._sizes(length).band - 1)
        piece, band = Intervals.one_each(first_band, last_band + 1, self._sizes(length).band).points()
        # Within a band, pixels go column by column: a piece reads those from its first column less the reach to its
        # last one and the reach. Tiles are found by the codes of their first tokens.
        own = opens[piece]
        at = _Fields(asked.row_class[own], asked.column_class[own], band, asked.column[own] - columns_reach, 0, 0)
        past = at._replace(column=asked.column[closes[piece]] + columns_reach + 1)
        begins = self._codes(self._fields(keys.positions[:: keys.tile], self.shift), length)
        first = np.searchsorted(begins, self._codes(at, length), side="right") - 1
        stop = np.searchsorted(begins, self._codes(past, length), side="left")
        return Intervals.build(row[own], first, stop, len(rows), len(keys)).points()

    def _fields(self, positions: Integers, shift: int) -> "_Fields":
        row, column = self.around.place(positions)
        apart = self.around.dilation
        band, in_band = np.divmod(row // apart + shift, self.height)
        channel = positions % self.around.channels
        return _Fields(row % apart, column % apart, band, column // apart, in_band, channel)

    def _sizes(self, length: int) -> "_Fields":
        """How many values each field has among the keys, for keys of this length."""
        n_rows, apart = -(-length // self.around.values_per_row), self.around.dilation
        rows, columns = -(-n_rows // apart), -(-self.around.width // apart)
        row_classes, column_classes = min(apart, n_rows), min(apart, self.around.width)
        height = min(self.height, rows + self.shift)
        bands = -(-(rows + self.shift) // self.height)
        return _Fields(row_classes, column_classes, bands, columns, height, self.around.channels)

    def _codes(self, fields: "_Fields", length: int) -> Integers:
        """Numbers in the order of the fields: as digits, the first field the highest, each of its own base. A column
        outside the picture counts as the end that it is beyond."""
        sizes = self._sizes(length)
        fields = fields._replace(column=np.clip(fields.column, 0, sizes.column))
        code: Integers = np.zeros(1, np.int64)
        for value, size in zip(fields, sizes, strict=True):
            code = code * size + value
        return code


class _Fields(NamedTuple):
    """What tokens in bands are sorted by, first things first: numbers of one type, or arrays of one shape."""

    row_class: Any
    column_class: Any
    band: Any
    column: Any
    row: Any
    channel: Any
