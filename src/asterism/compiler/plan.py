"""What the compiler makes of a pattern: documented integer arrays, all that a kernel ever sees.

A plan covers the pairs of a pattern with square tiles. Each pass puts queries and keys into an order in which its share
of the rule is block-dense, and lists the tiles to compute; a tile is full, or has a bit mask. No pair is in two passes,
so the passes' results merge exactly by log-sum-exp. `to_dense` is the inverse of compiling.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Pass:
    """The tiles of one token order.

    `query_index` and `key_index` (int32) list which query and which key stands at each place of the order; None is the
    natural order of all of them. Queries are counted from 0 whatever the plan's query_offset. Tile t covers the places
    [t * tile, (t + 1) * tile); the last one may be partial.

    Tiles are kept in compressed rows: list l (one per head of `heads`, or a single one for all of them) and tile row r
    hold the entries row_offsets[l, r] : row_offsets[l, r + 1] of `columns` (key tiles, ascending) and `kinds`. Kind 0 is
    a full tile, kind m > 0 has the mask masks[m - 1] of the plan. The transposed lists (`column_offsets`, `rows`,
    `row_kinds`) hold the same tiles by key tile.
    """

    layout: str
    heads: tuple[int, ...]
    n_queries: int
    n_keys: int
    query_index: Indices | None
    key_index: Indices | None
    row_offsets: Integers
    columns: Indices
    kinds: Indices
    column_offsets: Integers
    rows: Indices
    row_kinds: Indices

    @property
    def lists(self) -> int:
        """1 when all heads of the pass share its tiles, else len(heads)."""
        return len(self.row_offsets)

    @property
    def tiles(self) -> int:
        """Tiles kept, counted once per head of the pass."""
        return len(self.columns) * (len(self.heads) if self.lists == 1 else 1)

    def entries(self) -> tuple[Integers, Integers]:
        """The list and the tile row of every entry of `columns`."""
        rows = self.row_offsets.shape[1] - 1
        counts = np.diff(self.row_offsets, axis=1).ravel()
        place = np.repeat(np.arange(self.lists * rows), counts)
        return place // max(rows, 1), place % max(rows, 1)


@dataclass(frozen=True, eq=False)
class Plan:
    """A pattern compiled for given lengths. `heads` is 1 when all heads share the plan.

    `masks` is uint64 [masks, tile, words]: bit j of masks[m, i, w] says whether the i-th query of a tile may attend to
    its key number 64 * w + j. Queries stand at positions query_offset, query_offset + 1, ... among the keys' positions.
    """

    pattern: str
    n_queries: int
    n_keys: int
    query_offset: int
    heads: int
    tile: int
    passes: tuple[Pass, ...]
    masks: NDArray[np.uint64]

    @property
    def tiles(self) -> int:
        """Tiles kept, over all passes and heads."""
        return sum(part.tiles for part in self.passes)

    @cached_property
    def pairs(self) -> int:
        """Allowed (query, key) pairs, over all heads."""
        return sum(self._pairs(part) for part in self.passes)

    @property
    def density(self) -> float:
        """Allowed pairs over all pairs; 0 for empty lengths."""
        return self.pairs / max(1, self.heads * self.n_queries * self.n_keys)

    @property
    def packing(self) -> float:
        """Pairs computed over pairs allowed: 1 is perfect packing."""
        return self.tiles * self.tile**2 / max(1, self.pairs)

    @property
    def bytes(self) -> int:
        """Size of the plan's arrays in bytes."""
        arrays = [getattr(part, field.name) for part in self.passes for field in fields(part)]
        return self.masks.nbytes + sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def flops(self, head_dim: int, backward: bool = False) -> int:
        """Useful floating-point operations over the plan's heads, for one sequence: 4 per pair and feature forward.

        With `backward`, forward and backward together: 3.5 times as many (five matrix products after two).
        """
        forward = 4 * self.pairs * head_dim
        return forward * 7 // 2 if backward else forward

    def to_dense(self) -> Booleans:
        """The allowed pairs as a boolean array [heads, n_queries, n_keys]."""
        dense = np.zeros((self.heads, self.n_queries, self.n_keys), bool)
        for part in self.passes:
            for start in range(0, len(part.columns), 1024):
                self._paint(dense, part, slice(start, start + 1024))
        return dense

    def describe(self) -> str:
        """What the plan does and costs, on one screen."""
        from asterism.compiler.cost import describe

        return describe(self)

    def summary(self) -> dict[str, object]:
        """What `describe` says, for machines."""
        from asterism.compiler.cost import summary

        return summary(self)

    def tile_masks(self, kinds: Indices) -> Booleans:
        """The masks of tiles of the given kinds as booleans [len(kinds), tile, tile]; full tiles are all True."""
        full = np.full((1, *self.masks.shape[1:]), ~np.uint64(0))
        words = np.concatenate([full, self.masks])[kinds]
        bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        return bits[..., : self.tile].astype(bool)

    def _places(self, part: Pass, tiles: Integers | Indices, of_queries: bool) -> tuple[Integers, Booleans]:
        """Tokens of the tiles [n, tile], and which of them exist."""
        count, index = (part.n_queries, part.query_index) if of_queries else (part.n_keys, part.key_index)
        place = tiles.astype(np.int64)[:, None] * self.tile + np.arange(self.tile)
        exists = place < count
        place = np.minimum(place, count - 1)
        return (place if index is None else index[place].astype(np.int64)), exists

    def _paint(self, dense: Booleans, part: Pass, chunk: slice) -> None:
        tile_list, tile_row = (array[chunk] for array in part.entries())
        queries, has_query = self._places(part, tile_row, of_queries=True)
        keys, has_key = self._places(part, part.columns[chunk], of_queries=False)
        allowed = self.tile_masks(part.kinds[chunk]) & has_query[:, :, None] & has_key[:, None, :]
        at = np.nonzero(allowed)
        for number, head in enumerate(part.heads):
            chosen = slice(None) if part.lists == 1 else tile_list[at[0]] == number
            dense[head, queries[at[0], at[1]][chosen], keys[at[0], at[2]][chosen]] = True

    def _pairs(self, part: Pass) -> int:
        _, tile_row = part.entries()
        full = part.kinds == 0
        height = np.minimum(self.tile, part.n_queries - tile_row[full] * self.tile)
        width = np.minimum(self.tile, part.n_keys - part.columns[full].astype(np.int64) * self.tile)
        ones = np.bitwise_count(self.masks).sum(axis=(1, 2), dtype=np.int64)
        pairs = int((height * width).sum() + ones[part.kinds[~full] - 1].sum())
        return pairs * (len(part.heads) if part.lists == 1 else 1)
