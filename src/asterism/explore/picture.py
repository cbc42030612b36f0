"""A part of the mask as a picture: any rectangle of queries and keys, at any resolution, at up to a million tokens.

A cell says how much of its pairs is allowed. Empty and full cells are exactly that. The level of the others is exact
where the part shown is small; else it is estimated from pairs drawn in each cell, which is why it is called about.
Nothing here has the size of n x n: the work grows with the cells.
"""

from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asterism.patterns import Pattern
from asterism.patterns.draw import verdicts_between
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Verdict, Verdicts

Shares = NDArray[np.float64]
Levels = NDArray[np.uint8]

MOST_CELLS = 512
"""Cells along a side."""

_FULL = 255
_GOLDEN = 0.6180339887498949
_EXACT_PAIRS = 2**20  # a part of at most so many pairs is looked at as a whole
_LOOKED_AT, _DRAWN = (256, 2**23), (64, 2**20)
"""Pairs looked at to settle a picture's verdicts, and drawn for its shades: for each cell, and at most. A worker looks
at some 30 million in a second, so a coarse picture is there at once."""

_CHUNK = 2**13  # cells whose drawn pairs are looked at together


def draw_part(
    pattern: Pattern, n: int, head: int, rows: tuple[int, int], columns: tuple[int, int], cells: int
) -> dict[str, Any]:
    """The part rows x columns, both half-open and not empty, in at most cells x cells cells.

    `rows` and `columns` of the result are the borders of the cells in tokens; `levels` is the uint8 picture in base64,
    row by row: 0 where no pair of a cell is allowed, 255 where all are, between them the share, never 0 or 255.
    """
    row, column = borders(rows, cells), borders(columns, cells)
    levels, undecided = draw_between(pattern, n, head, row, column)
    return {
        "rows": row.tolist(),
        "columns": column.tolist(),
        "levels": b64encode(levels.tobytes()).decode(),
        "exact": _is_exact(row, column),
        "undecided": undecided,
    }


def draw_between(pattern: Pattern, n: int, head: int, row: Integers, column: Integers) -> tuple[Levels, int]:
    """The levels of the cells between these borders, uint8 [rows, columns], and how many are estimated because they
    would take too long to decide."""
    cells = max(len(row), len(column)) - 1
    verdicts = verdicts_between(pattern, row, column, n, head, _budget(_LOOKED_AT, cells))
    counted = _is_exact(row, column)
    shares = _counted(pattern, n, head, row, column) if counted else _drawn(pattern, n, head, row, column, verdicts)
    levels = np.clip(np.rint(shares * _FULL), 1, _FULL - 1).astype(np.uint8)
    levels[verdicts == Verdict.EMPTY], levels[verdicts == Verdict.FULL] = 0, _FULL
    return levels, int((verdicts == Verdict.UNKNOWN).sum())


def _is_exact(row: Integers, column: Integers) -> bool:
    return bool((row[-1] - row[0]) * (column[-1] - column[0]) <= _EXACT_PAIRS)


def _budget(pairs: tuple[int, int], cells: int) -> int:
    of_cell, most = pairs
    return min(of_cell * cells**2, most)


def borders(tokens: tuple[int, int], cells: int) -> Integers:
    """The borders of at most so many cells, as equal as can be, of a half-open range that is not empty: int64
    [cells + 1]."""
    start, stop = tokens
    count = min(cells, stop - start)
    return start + np.arange(count + 1, dtype=np.int64) * (stop - start) // count


def _counted(pattern: Pattern, n: int, head: int, row: Integers, column: Integers) -> Shares:
    """The share of allowed pairs of each cell, float64 [rows - 1, columns - 1], by looking at every pair."""
    queries, keys = np.arange(row[0], row[-1]), np.arange(column[0], column[-1])
    allowed = pattern.allows(queries[:, None], keys[None, :], n, head)
    counts = np.add.reduceat(allowed.astype(np.int64), row[:-1] - row[0], axis=0)
    counts = np.add.reduceat(counts, column[:-1] - column[0], axis=1)
    return counts / (np.diff(row)[:, None] * np.diff(column)[None, :])


def _drawn(pattern: Pattern, n: int, head: int, row: Integers, column: Integers, verdicts: Verdicts) -> Shares:
    """The same share, estimated from pairs of every cell that is neither empty nor full.

    They are points of a lattice, of which no two share a row or a column, so that stripes are met in proportion; each
    cell shifts it by its own draw, lest stripes and lattice agree.
    """
    shares = np.zeros(verdicts.shape)
    of_row, of_column = np.nonzero((verdicts == Verdict.MIXED) | (verdicts == Verdict.UNKNOWN))
    points = int(np.clip(_budget(_DRAWN, max(verdicts.shape)) // max(of_row.size, 1), 9, 256))
    lattice = np.stack([np.arange(points) * _GOLDEN, np.arange(points) / points])[:, None]
    chance = np.random.default_rng(0)
    for start in range(0, of_row.size, _CHUNK):
        i, j = of_row[start : start + _CHUNK], of_column[start : start + _CHUNK]
        within = (lattice + chance.random((2, i.size, 1))) % 1.0
        queries = row[i, None] + (within[0] * (row[i + 1] - row[i])[:, None]).astype(np.int64)
        keys = column[j, None] + (within[1] * (column[j + 1] - column[j])[:, None]).astype(np.int64)
        shares[i, j] = pattern.allows(queries, keys, n, head).mean(axis=1)
    return shares
