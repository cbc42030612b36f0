"""The tiles of a rule in a token order: which may hold an allowed pair, which do, and their masks.

The rule is never evaluated on all pairs: spans name the tiles that can matter, verdicts settle most of them, and of the
rest only one tile per signature is looked at pair by pair. The work grows with the tiles kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from asterism.compiler.layout import Layout, Tiles
from asterism.compiler.plan import Indices, Integers
from asterism.compiler.tables import BitMasks
from asterism.patterns.across import Across
from asterism.patterns.pattern import Moved, Pattern, Verdict, Verdicts
from asterism.patterns.primitives import GlobalQueries, QuerySet

_CHUNK = 2**19
"""Tile pairs judged at a time."""

_EXACT_CHUNK = 2**21
"""Token pairs evaluated at a time."""

_SAMPLED_ROWS = 24
"""Tile rows looked at to estimate how many tiles are kept."""


@dataclass(frozen=True)
class Tiling:
    """A rule asked about the tiles of a layout: `queries` down, `keys` across, for one head of a sequence of `length`
    tokens."""

    layout: Layout
    rule: Pattern
    queries: Tiles
    keys: Tiles
    length: int
    head: int = 0

    def find(self, masks: BitMasks) -> tuple[Indices, Indices, Indices]:
        """Row, column and kind of every tile that holds an allowed pair, sorted by row and column: int32 [tiles] each.

        Masks of mixed tiles are added to `masks`.
        """
        found: list[tuple[Indices, Indices, Indices]] = []
        for rows in _row_chunks(len(self.queries), len(self.keys)):
            at, column = self._candidates(rows)
            for start in range(0, len(at), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                row, of_row, kind = self._keep(rows[at[chunk]], column[chunk], masks)
                found.append((row.astype(np.int32), of_row.astype(np.int32), kind))
        empty = np.zeros(0, np.int32)  # so that there is something to concatenate
        found.append((empty, empty, empty))
        rows_found, columns, kinds = (np.concatenate([entry[i] for entry in found]) for i in range(3))
        return rows_found, columns, kinds

    def estimate(self) -> float:
        """How many tiles are kept, from a sample of tile rows."""
        count, long_rows = len(self.queries), self._rows_of_global_queries()
        # The middles of equal stretches of rows: at the ends, patterns are clipped and rows cost less than most.
        sampled = np.linspace(0, count, _SAMPLED_ROWS, endpoint=False) + count / (2 * _SAMPLED_ROWS)
        sample = np.setdiff1d(sampled.astype(np.int64), long_rows)
        kept = 0.0
        for rows, stand_for in ((long_rows, len(long_rows)), (sample, count - len(long_rows))):
            if len(rows):
                kept += self._count_kept(rows) * stand_for / len(rows)
        return kept

    def _rows_of_global_queries(self) -> Integers:
        """Tile rows that hold a query which reads everything; a sample of rows would miss or overrate them."""
        wanted = np.zeros(len(self.queries.positions), bool)
        for leaf in _leaves(self.rule):
            match leaf:
                case QuerySet():
                    wanted |= leaf.contains(self.queries.positions, self.length)
                case Across(inner=GlobalQueries() as inner):
                    wanted |= inner.contains(leaf.places(self.queries.positions), self.length)
        return np.unique(np.flatnonzero(wanted) // self.queries.tile)

    def _count_kept(self, rows: Integers) -> int:
        row, column = self._candidates(rows)
        chunks = (slice(start, start + _CHUNK) for start in range(0, len(row), _CHUNK))
        return sum(int(np.count_nonzero(self._judge(rows[row[chunk]], column[chunk]))) for chunk in chunks)

    def _candidates(self, rows: Integers) -> tuple[Integers, Integers]:
        return self.layout.candidates(self.rule, self.queries, self.keys, rows, self.length, self.head)

    def _judge(self, row: Integers, column: Integers) -> Verdicts:
        """One verdict per tile pair; tiles that are not progressions of the layout's step are judged by their hull."""
        # Every rule can judge progressions of one step; of other sets it gets the first and last token only (step 0).
        regular = self.queries.regular[row] & self.keys.regular[column]
        result = np.empty(len(row), np.int8)
        for chosen, as_regular in ((np.flatnonzero(regular), True), (np.flatnonzero(~regular), False)):
            if len(chosen):
                q = self.queries.ranges(row[chosen], as_regular)
                k = self.keys.ranges(column[chosen], as_regular)
                result[chosen] = self.rule.judge(q, k, self.length, self.head)
        return result

    def _keep(self, row: Integers, column: Integers, masks: BitMasks) -> tuple[Integers, Integers, Indices]:
        """The tiles among the candidates that hold an allowed pair, with their kinds."""
        verdict = self._judge(row, column)
        kind = np.where(verdict == Verdict.FULL, 0, -1).astype(np.int32)
        # A mixed tile is known to stay, but its mask is not known, so it is looked at like an unknown one.
        open_ = np.flatnonzero((verdict != Verdict.FULL) & (verdict != Verdict.EMPTY))
        signature = self._signatures(row[open_], column[open_])
        _, representative, which = np.unique(signature, return_index=True, return_inverse=True)
        chosen = open_[representative]
        kinds = np.empty(len(chosen), np.int32)
        step = max(1, _EXACT_CHUNK // self.queries.tile**2)
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            kinds[start : start + step] = self._look(row[part], column[part], masks)
        kind[open_] = kinds[which]
        kept = kind >= 0
        return row[kept], column[kept], kind[kept]

    def _look(self, row: Integers, column: Integers, masks: BitMasks) -> Indices:
        """Kinds of tiles from the rule itself, evaluated on every pair of theirs; -1 for empty ones."""
        q, has_query = self.queries.places(row)
        k, has_key = self.keys.places(column)
        exists = has_query[:, :, None] & has_key[:, None, :]
        allowed = self.rule.allows(q[:, :, None], k[:, None, :], self.length, self.head) & exists
        some = allowed.any(axis=(1, 2))
        # A partial tile is full when all pairs that exist are allowed: kernels cut it off at the lengths anyway.
        full = (allowed == exists).all(axis=(1, 2))
        kinds = np.where(full, 0, -1).astype(np.int32)
        mixed = some & ~full
        kinds[mixed] = masks.add(allowed[mixed])
        kinds[~some] = -1
        return kinds

    def _signatures(self, row: Integers, column: Integers) -> Integers:
        """A number per tile pair; equal numbers mean equal masks.

        A tile's mask follows from its shape and, for each leaf of the rule, from the verdict where that is final, else
        from the leaf's own signature. Leaves without a signature make the tile one of its kind.
        """
        regular = bool(self.queries.regular[row].all() and self.keys.regular[column].all())
        q, k = self.queries.ranges(row, regular), self.keys.ranges(column, regular)
        result = _pair(self.queries.shape[row], self.keys.shape[column])
        for leaf in _leaves(self.rule):
            verdict = replace(self, rule=leaf)._judge(row, column)
            own = leaf.signature(q, k)
            own = np.arange(len(row)) if own is None else own
            final = (verdict == Verdict.FULL) | (verdict == Verdict.EMPTY)
            result = _pair(result, _pair(np.where(final, verdict, Verdict.UNKNOWN), np.where(final, 0, own)))
        return result


def _leaves(rule: Pattern) -> Iterator[Pattern]:
    """What a rule is made of. What counts its tokens from another place is asked as a whole."""
    if not rule.children or isinstance(rule, Moved):
        yield rule
        return
    for child in rule.children:
        yield from _leaves(child)


def _row_chunks(n_rows: int, n_columns: int) -> Iterable[Integers]:
    """Tile rows in runs whose candidates fit into memory even if every tile is one."""
    step = max(1, 8 * _CHUNK // max(n_columns, 1))
    return (np.arange(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def _pair(left: Integers, right: Integers) -> Integers:
    """One number for each distinct pair of numbers."""
    # Ranks before the product, which of large numbers would overflow; and after it, so that the next one stays small.
    _, left = np.unique(left, return_inverse=True)
    _, right = np.unique(right, return_inverse=True)
    return np.unique(left * (right.max(initial=0) + 1) + right, return_inverse=True)[1].astype(np.int64)
