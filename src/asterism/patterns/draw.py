"""Draws a pattern, and counts the keys that its queries read.

They are of a sequence that attends to itself, or of its first queries only; of a pattern that goes across, of as many
tokens of the decoder as stand in the source.

Up to `cells` tokens, one cell of a picture is one (query, key) pair. Longer sequences are shown as tiles: a tile is
judged as a whole, and split into smaller ones only where the verdict is unknown, so that no picture costs n x n memory.
Invariant: a cell shown full or empty is so for every pair in it.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asterism.errors import AsterismError, PatternError
from asterism.patterns.across import queries_to_the_end
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import (
    Booleans,
    Pattern,
    Ranges,
    Verdict,
    Verdicts,
    check_integer,
    resolve_lengths,
)

Glyphs = Mapping[Verdict, str]

GLYPHS: Glyphs = {Verdict.FULL: "█", Verdict.MIXED: "▒", Verdict.UNKNOWN: "▒", Verdict.EMPTY: "·"}
ASCII_GLYPHS: Glyphs = {Verdict.FULL: "#", Verdict.MIXED: "+", Verdict.UNKNOWN: "+", Verdict.EMPTY: "."}
"""For terminals that cannot show the blocks."""

IMAGE_CELLS = 256

_MOST_COLUMNS = 3  # panels side by side
_EXACT_SIDE = 32  # tiles of at most this side are settled by looking at every pair
_CHUNK = 1024  # tiles handled at once
_MANY_PAIRS = 2**26  # the most pairs that a picture or a count looks at one by one


@dataclass(frozen=True)
class Degrees:
    """How many keys a query reads: the least, the mean and the most over `queries` queries.

    `queries` is less than there are when counting every query would take too long; the queries counted are then evenly
    spread and include the first and the last.
    """

    minimum: int
    mean: float
    maximum: int
    queries: int


def draw(
    pattern: Pattern, n: int, *, queries: int | None = None, head: int = 0, cells: int = 64, glyphs: Glyphs = GLYPHS
) -> str:
    """The pattern over `n` keys as text: one row per query, one column per key, at most `cells` of each.

    `queries` counts the rows: the first so many, by default n or, across, those that stand in the source. Raises
    PatternError for a negative length, queries that the pattern cannot have, a head that it does not have, and
    cells < 1.
    """
    count = check_queries(pattern, n, queries)
    grid, tile = _grid(pattern, count, n, head, check_integer("draw", "cells", cells, 1))
    rows = ["".join(glyphs[Verdict(cell)] for cell in row) for row in grid.tolist()]
    which_head = f", head {head} of {pattern.heads}" if pattern.heads > 1 else ""
    asking = "" if count == n else f"{count:,} quer{'y' if count == 1 else 'ies'} of "
    lengths = f"{asking}{n:,} token{'s' * (n != 1)}"
    return "\n".join([f"{pattern}, {lengths}{which_head}", *rows, _legend(grid, tile, glyphs)])


def check_queries(pattern: Pattern, n: int, queries: int | None) -> int:
    """How many queries a picture or a plan of `n` keys has, given what was asked for. Raises PatternError as `draw`."""
    check_integer("draw", "n", n, 0)
    if queries is None:
        return queries_to_the_end(pattern, n)
    resolve_lengths(pattern, check_integer("draw", "queries", queries, 0), n, 0)
    return queries


def draw_image(
    patterns: Pattern | Sequence[Pattern], n: int, path: str | Path, *, queries: int | None = None, head: int = 0
) -> None:
    """Write the picture as PNG or SVG, by the suffix of `path`: black is allowed, grey a tile allowed in part.

    Several patterns stand side by side; those that all heads share are drawn whatever `head` is. Raises PatternError
    as `draw` does and for another suffix; AsterismError when matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in (".png", ".svg"):
        raise PatternError("picture-suffix", f"draw_image: the file name must end in .png or .svg, got {str(path)!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise AsterismError(
            "package-missing", "pictures need matplotlib: pip install '.[plot]' in a checkout"
        ) from None
    shown = [patterns] if isinstance(patterns, Pattern) else list(patterns)
    columns = min(len(shown), _MOST_COLUMNS)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(6 * columns, 6.4 * rows), layout="compressed")  # for axes whose sides are of equal scale
    for number, pattern in enumerate(shown, start=1):
        its_head = head if len(shown) == 1 else head_of(pattern, head)
        count = check_queries(pattern, n, queries)
        grid, tile = _grid(pattern, count, n, its_head, IMAGE_CELLS)
        axes = figure.add_subplot(rows, columns, number, xlabel="key", ylabel="query")
        axes.set_title(_title(pattern, its_head), fontsize=10)
        darkness = np.array([0.0, 0.5, 0.5, 1.0])[grid]
        bottom, right = (tile * cells for cells in grid.shape)
        axes.imshow(darkness, cmap="Greys", vmin=0, vmax=1, interpolation="nearest", extent=(0, right, bottom, 0))
        axes.set(xlim=(0, n), ylim=(count, 0))  # the last cell may reach beyond the last token
    figure.savefig(path, dpi=150)


def head_of(pattern: Pattern, head: int) -> int:
    """The number under which a pattern knows a head of the model: 0 when all heads share the pattern."""
    return 0 if pattern.heads == 1 else head


def _title(pattern: Pattern, head: int) -> str:
    """The pattern's text in lines that fit above a panel, and which head is drawn."""
    lines = textwrap.wrap(str(pattern), 72, break_long_words=True)
    shortened = [*lines[:3], "..."] if len(lines) > 4 else lines
    return "\n".join(shortened) + (f", head {head} of {pattern.heads}" if pattern.heads > 1 else "")


def degrees(pattern: Pattern, n: int, head: int = 0, queries: int | None = None) -> Degrees:
    """The least, mean and greatest number of the `n` keys that a query reads; `queries` is as in `draw`.

    Raises PatternError for a negative length, queries that the pattern cannot have, and a head that it does not have.
    """
    count = check_queries(pattern, n, queries)
    _check_head(pattern, head)
    if not n or not count:
        return Degrees(0, 0.0, 0, 0)
    few = spread(count, 64)
    _, rest = _count_whole(pattern, few, n, head)
    pairs_per_query = max(int((rest.stops - rest.starts).sum()) // few.size, 1)
    asked = spread(count, max(_MANY_PAIRS // pairs_per_query, few.size))
    counts = np.concatenate(
        [keys_read(pattern, chunk, n, head) for chunk in np.array_split(asked, -(-asked.size // _CHUNK))]
    )
    return Degrees(int(counts.min()), float(counts.mean()), int(counts.max()), asked.size)


def density(pattern: Pattern, n: int, head: int = 0) -> float:
    """The share of the pairs that is allowed, 0 for an empty sequence; see `degrees` for long sequences."""
    return degrees(pattern, n, head).mean / max(n, 1)


# --- pictures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Rectangles of pairs, half-open, each belonging to a cell of the picture."""

    cell: Integers
    q_start: Integers
    q_stop: Integers
    k_start: Integers
    k_stop: Integers

    def select(self, kept: Booleans | slice) -> "_Tiles":
        return _Tiles(*(field[kept] for field in self._fields()))

    def quarters(self) -> "_Tiles":
        """Every rectangle cut in the middle of both sides; empty quarters left out."""
        q_middle, k_middle = (self.q_start + self.q_stop + 1) // 2, (self.k_start + self.k_stop + 1) // 2
        pieces = [
            (self.cell, q_start, q_stop, k_start, k_stop)
            for q_start, q_stop in ((self.q_start, q_middle), (q_middle, self.q_stop))
            for k_start, k_stop in ((self.k_start, k_middle), (k_middle, self.k_stop))
        ]
        merged = _Tiles(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
        return merged.select((merged.q_start < merged.q_stop) & (merged.k_start < merged.k_stop))

    def _fields(self) -> tuple[Integers, ...]:
        return self.cell, self.q_start, self.q_stop, self.k_start, self.k_stop


def verdicts_between(pattern: Pattern, rows: Integers, columns: Integers, n: int, head: int, pairs: int) -> Verdicts:
    """One verdict for each cell of a picture of any part of the mask: int8 [rows - 1, columns - 1].

    `rows` and `columns`, int64, are the borders of the cells in tokens: ascending, each cell half-open. At most about
    `pairs` pairs are looked at one by one; cells that would need more are UNKNOWN. Raises PatternError for a head that
    the pattern does not have.
    """
    _check_head(pattern, head)
    shape = rows.size - 1, columns.size - 1
    row, column = (axis.ravel() for axis in np.indices(shape))
    tiles = _Tiles(np.arange(row.size), rows[row], rows[row + 1], columns[column], columns[column + 1])
    return _settle(pattern, tiles, n, head, pairs).reshape(shape)


def _grid(pattern: Pattern, queries: int, n: int, head: int, cells: int) -> tuple[Verdicts, int]:
    """One verdict per cell of the picture, int8 [rows, columns], and the side of a cell in tokens."""
    tile = max(-(-max(n, queries) // cells), 1)
    rows, columns = (np.append(np.arange(0, count, tile), count) for count in (queries, n))
    return verdicts_between(pattern, rows, columns, n, head, _MANY_PAIRS), tile


def _settle(pattern: Pattern, tiles: _Tiles, n: int, head: int, budget: int) -> Verdicts:
    """One verdict per tile; UNKNOWN only where settling it would take looking at more pairs than the budget allows."""
    allowed, forbidden, undecided = (np.zeros(tiles.cell.size, bool) for _ in range(3))
    stack = [tiles]
    while stack:
        tiles = stack.pop()
        tiles = tiles.select(~(allowed & forbidden)[tiles.cell])
        if tiles.cell.size > _CHUNK:
            stack += [tiles.select(slice(_CHUNK, None)), tiles.select(slice(_CHUNK))]
            continue
        if budget <= 0:
            undecided[tiles.cell] = True
            continue
        verdict = _judge(pattern, tiles, n, head)
        allowed[tiles.cell[verdict >= Verdict.MIXED]] = True
        forbidden[tiles.cell[(verdict == Verdict.EMPTY) | (verdict == Verdict.MIXED)]] = True
        unknown = tiles.select(verdict == Verdict.UNKNOWN)
        small = np.maximum(unknown.q_stop - unknown.q_start, unknown.k_stop - unknown.k_start) <= _EXACT_SIDE
        _look(pattern, unknown.select(small), n, head, allowed, forbidden)
        budget -= _EXACT_SIDE**2 * unknown.cell.size
        if not small.all():
            stack.append(unknown.select(~small).quarters())
    known = np.where(allowed, np.where(forbidden, Verdict.MIXED, Verdict.FULL), Verdict.EMPTY)
    return np.where(undecided & ~(allowed & forbidden), Verdict.UNKNOWN, known).astype(np.int8)


def _judge(pattern: Pattern, tiles: _Tiles, n: int, head: int) -> Verdicts:
    """The pattern's verdicts, and EMPTY where no span of the queries meets the keys."""
    queries = Ranges(tiles.q_start, tiles.q_stop - 1, 1)
    keys = Ranges(tiles.k_start, tiles.k_stop - 1, 1)
    verdict = pattern.judge(queries, keys, n, head)
    ranges, row = np.unique(np.stack([tiles.q_start, tiles.q_stop - 1]), axis=1, return_inverse=True)
    spans = pattern.find_spans(Ranges(ranges[0], ranges[1], 1), n, head)
    base = row.reshape(-1) * (n + 1)
    first = np.searchsorted(spans.stops, base + tiles.k_start, side="right")
    meets = np.append(spans.starts, np.iinfo(np.int64).max)[first] < base + tiles.k_stop
    return np.where(meets | (verdict != Verdict.UNKNOWN), verdict, np.int8(Verdict.EMPTY))


def _look(pattern: Pattern, tiles: _Tiles, n: int, head: int, allowed: Booleans, forbidden: Booleans) -> None:
    """Evaluate every pair of small tiles and note what was seen for their cells."""
    if not tiles.cell.size:
        return
    offsets = np.arange(_EXACT_SIDE)
    queries = np.minimum(tiles.q_start[:, None] + offsets, tiles.q_stop[:, None] - 1)
    keys = np.minimum(tiles.k_start[:, None] + offsets, tiles.k_stop[:, None] - 1)
    seen = pattern.allows(queries[:, :, None], keys[:, None, :], n, head)
    allowed[tiles.cell[seen.any(axis=(1, 2))]] = True
    forbidden[tiles.cell[~seen.all(axis=(1, 2))]] = True


def _legend(grid: Verdicts, tile: int, glyphs: Glyphs) -> str:
    full, mixed, empty = (glyphs[verdict] for verdict in (Verdict.FULL, Verdict.MIXED, Verdict.EMPTY))
    if tile == 1:
        return f"rows: queries, columns: keys; {full} may attend, {empty} may not"
    some = "some or not known" if (grid == Verdict.UNKNOWN).any() else "some"
    cell = f"one cell: {tile:,} x {tile:,} pairs"
    return f"rows: queries, columns: keys, {cell}; {full} all may attend, {mixed} {some}, {empty} none"


# --- counts ----------------------------------------------------------------------------------------------------------


def spread(n: int, count: int) -> Integers:
    """`count` evenly spread positions of [0, n), int64 [count], first and last included; all n if there are fewer."""
    return np.arange(n) if count >= n else np.linspace(0, n - 1, count).astype(np.int64)


def keys_read(pattern: Pattern, queries: Integers, n: int, head: int) -> Integers:
    """How many of `n` keys each of some queries reads: int64 [queries]."""
    counts, rest = _count_whole(pattern, queries, n, head)
    row, start, stop = rest.triples()
    group = np.cumsum(stop - start) // (_CHUNK * _CHUNK)
    for members in np.split(np.arange(row.size), np.flatnonzero(np.diff(group)) + 1):
        part = Intervals.build(row[members], start[members], stop[members], queries.size, n)
        at, keys = part.points()
        counts += np.bincount(at[pattern.allows(queries[at], keys, n, head)], minlength=queries.size)
    return counts


def _count_whole(pattern: Pattern, queries: Integers, n: int, head: int) -> tuple[Integers, Intervals]:
    """How many keys each query reads in intervals that are allowed as a whole, and the intervals left to look into."""
    row, start, stop = pattern.find_spans(Ranges(queries, queries, 1), n, head).triples()
    verdict = pattern.judge(Ranges(queries[row], queries[row], 1), Ranges(start, stop - 1, 1), n, head)
    full, rest = verdict == Verdict.FULL, (verdict != Verdict.FULL) & (verdict != Verdict.EMPTY)
    counts = np.bincount(row[full], (stop - start)[full], minlength=queries.size).astype(np.int64)
    return counts, Intervals.build(row[rest], start[rest], stop[rest], queries.size, n)


def _check_head(pattern: Pattern, head: int) -> None:
    if not 0 <= check_integer("draw", "head", head) < pattern.heads:
        raise PatternError("no-such-head", f"no head {head}: {pattern} has {pattern.heads} head(s), counted from 0")
