"""The plan, output of the compiler: documented integer arrays, the only input of a kernel besides tensors.

A plan covers the pairs of a pattern with square tiles. Each pass puts queries and keys into an order in which its share
of the rule is block-dense, and lists the tiles to compute; a tile is full, or has a bit mask. No pair is in two passes,
so the passes' results merge exactly by log-sum-exp. `to_dense` is the inverse of compiling.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asterism.compiler.cost import DENSE_MASK_LIMIT, ONE_HEAD, Setting, dense_cost, plan_cost
from asterism.memo import Derives, cached_property
from asterism.patterns.text import parse

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32]
Words = NDArray[np.uint64]


_COUNTED = 2**20
"""Tiles whose pairs are counted at a time."""


@dataclass(frozen=True, eq=False)
class Pass:
    """The tiles of one token order.

    `query_index` and `key_index` (int32) list which query and which key stands at each place of the order; None is the
    natural order of all of them. Queries are counted from 0 whatever the plan's query_offset. Tile t covers the places
    [t * tile, (t + 1) * tile); the last one may be partial.

    Tiles are kept in compressed rows: list l (one per head of `heads`, or a single one for all of them) and tile row r
    hold the entries row_offsets[l, r] : row_offsets[l, r + 1] of `columns` (key tiles, ascending) and `kinds`. Kind
    0 is a full tile, kind m > 0 has the mask masks[m - 1] of the plan.
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

    def __post_init__(self) -> None:
        _freeze(self)

    @property
    def lists(self) -> int:
        """1 when all heads of the pass share its tiles, else len(heads)."""
        return len(self.row_offsets)

    @property
    def tiles(self) -> int:
        """Tiles kept, counted once per head of the pass."""
        return len(self.columns) * (len(self.heads) if self.lists == 1 else 1)

    def summary(self, tile: int) -> dict[str, object]:
        """Layout, tiles and lengths of the pass, for machines."""
        full = int(np.count_nonzero(self.kinds == 0)) * (self.tiles // max(1, len(self.columns)))
        return {
            "layout": self.layout,
            "heads": list(self.heads),
            "tile_rows": -(-self.n_queries // tile),
            "tile_columns": -(-self.n_keys // tile),
            "full_tiles": full,
            "mixed_tiles": self.tiles - full,
        }

    def entries(self) -> tuple[Integers, Integers]:
        """The list and the tile row of every entry of `columns`."""
        rows = self.row_offsets.shape[1] - 1
        counts = np.diff(self.row_offsets, axis=1).ravel()
        place = np.repeat(np.arange(self.lists * rows), counts)
        return place // max(rows, 1), place % max(rows, 1)


@dataclass(frozen=True, eq=False)
class Plan(Derives):
    """A pattern compiled for given lengths. `heads` is 1 if all heads share the plan.

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
    masks: Words
    is_causal: bool

    def __post_init__(self) -> None:
        _freeze(self)

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

        With `backward`, forward and backward together: 3.5 times that number (five matrix products after two).
        """
        forward = 4 * self.pairs * head_dim
        return forward * 7 // 2 if backward else forward

    @cached_property
    def distances(self) -> tuple[int, int] | None:
        """The least and the greatest distance, query - key, of an allowed pair; None if no pair is allowed."""
        if self.pairs == 0:
            return None
        least, most_negative = (
            min(self._least_distance(part, sign) for part in self.passes if len(part.columns)) for sign in (1, -1)
        )
        return least, -most_negative

    def to_dense(self) -> Booleans:
        """The allowed pairs as a boolean array [heads, n_queries, n_keys]."""
        dense = np.zeros((self.heads, self.n_queries, self.n_keys), bool)
        for part in self.passes:
            for start in range(0, len(part.columns), 1024):
                self._paint(dense, part, slice(start, start + 1024))
        return dense

    @property
    def dense_kind(self) -> Literal["full", "causal", "sparse"]:
        """ "full" when every pair is allowed, "causal" when the pairs are those of the past, else "sparse"."""
        square = self.heads * self.n_queries * self.n_keys
        if self.pairs == square:
            return "full"
        is_triangle = self.n_queries == self.n_keys and self.pairs == self.heads * self.n_keys * (self.n_keys + 1) // 2
        return "causal" if self.is_causal and is_triangle else "sparse"

    @property
    def pairs_computed(self) -> int:
        """Pairs of all tiles, over all heads, but at most those of whole passes."""
        whole = self.heads * self.n_queries * self.n_keys * len(self.passes)
        return min(self.tiles * self.tile**2, whole)

    def sparse_cost(self, implementation: str = "cpu", setting: Setting = ONE_HEAD) -> float:
        """Estimated nanoseconds of running the plan (compiler/cost.py)."""
        return plan_cost(implementation, self.pairs_computed / self.heads, self.tile, setting)

    def dense_cost(self, setting: Setting = ONE_HEAD) -> float:
        """Estimated nanoseconds of dense attention instead; infinite if a mask would be too large."""
        kind = self.dense_kind
        if kind == "sparse" and self.n_queries * self.n_keys > DENSE_MASK_LIMIT:
            return math.inf
        return dense_cost(kind, self.n_queries * self.n_keys, setting)

    def summary(self, head_dim: int = 64) -> dict[str, object]:
        """Content and cost of the plan as a record; FLOPs and bytes are for `head_dim` features a head."""
        return {
            "pattern": self.pattern,
            "queries": self.n_queries,
            "keys": self.n_keys,
            "heads": self.heads,
            "pairs": self.pairs,
            "density": self.density,
            "tile": self.tile,
            "tiles": self.tiles,
            "packing": self.packing,
            "masks": len(self.masks),
            "passes": [part.summary(self.tile) for part in self.passes],
            "flops_forward": self.flops(head_dim),
            "flops_forward_backward": self.flops(head_dim, backward=True),
            "flops_dense_forward": 4 * self.heads * self.n_queries * self.n_keys * head_dim,
            "plan_bytes": self.bytes,
            "operand_bytes": 4 * self.heads * head_dim * (2 * self.n_queries + 2 * self.n_keys),
            "dense_score_bytes": 4 * self.heads * self.n_queries * self.n_keys,
            "cheaper": "dense" if self.dense_cost() < self.sparse_cost() else "tiles",
        }

    def describe(self, head_dim: int = 64) -> str:
        """Content and cost of the plan as text for one screen, for `head_dim` features a head in float32."""
        told = self.summary(head_dim)
        square = max(1, self.heads * self.n_queries * self.n_keys)
        shared = "one rule for all heads" if self.heads == 1 else f"{self.heads} heads with rules of their own"
        lines = [
            str(parse(self.pattern)),
            "",
            f"tokens   {self.n_queries:,} queries x {self.n_keys:,} keys, {shared}",
            f"pairs    {self.pairs:,} allowed of {square:,}: density {self.density:.2%}",
            f"tiles    {self.tiles:,} of {self.tile} x {self.tile} kept; packing {self.packing:.2f}: pairs"
            f" computed over pairs allowed, 1 is perfect; {len(self.masks):,} distinct masks",
            "",
            f"{'pass':<5}{'layout':<52}{'heads':>6}{'full':>12}{'mixed':>12}",
        ]
        for number, part in enumerate(self.passes, start=1):
            row = part.summary(self.tile)
            lines.append(
                f"{number:<5}{part.layout[:50]:<52}{len(part.heads):>6}{row['full_tiles']:>12,}{row['mixed_tiles']:>12,}"
            )
        forward, whole, dense = self.flops(head_dim), self.flops(head_dim, backward=True), told["flops_dense_forward"]
        lines += [
            "",
            f"FLOPs    {_scaled(forward, 'FLOP')} forward, {_scaled(whole, 'FLOP')} forward and backward"
            f" ({head_dim} features a head); dense {_scaled(dense, 'FLOP')} forward",
            f"memory   plan {_scaled(self.bytes, 'B')}; q, k, v and output {_scaled(told['operand_bytes'], 'B')}"
            f" in float32; a dense score matrix would take {_scaled(told['dense_score_bytes'], 'B')}",
            f"choice   {self._reason()}",
        ]
        return "\n".join(lines)

    def _reason(self) -> str:
        if self.dense_kind != "sparse":
            return f"dense attention if it is cheaper: the rule is {self.dense_kind}"
        if math.isinf(self.dense_cost()):
            return f"tiles: a mask of {self.n_queries:,} x {self.n_keys:,} would be too large for dense attention"
        ratio = self.dense_cost() / self.sparse_cost()
        if ratio <= 1:
            return f"dense attention with a mask, estimated {1 / ratio:.1f} times cheaper than the tiles"
        return f"tiles, estimated {ratio:.1f} times cheaper than dense attention with a mask"

    def tile_masks(self, kinds: Indices) -> Booleans:
        """The masks of tiles of the given kinds as booleans [len(kinds), tile, tile]; full tiles are all True."""
        bits = np.unpackbits(self.masks_with_ends[kinds].view(np.uint8), axis=-1, bitorder="little")
        return bits[..., : self.tile].astype(bool)

    @cached_property
    def masks_with_ends(self) -> Words:
        """The mask of every kind [kinds, tile, words]: full, `masks`, and full tiles cut off where keys end.

        A full tile (kind 0) at a partial end of the keys has places that hold no key. Kernels that read whole tiles
        must leave them out, so `kinds_with_ends` gives such tiles a kind for the width that remains.
        """
        words = self.masks.shape[2]
        widths = [64 * words, *self._end_widths]
        rows = (np.arange(64 * words) < np.array(widths)[:, None]).astype(np.uint8)
        cut = np.packbits(rows, axis=-1, bitorder="little").view(np.uint64)[:, None].repeat(self.tile, axis=1)
        return np.concatenate([cut[:1], self.masks, cut[1:]])

    def kinds_with_ends(self, part: Pass) -> Indices:
        """`part.kinds`, where a full tile that the last keys do not fill has the kind of its width."""
        width = part.n_keys % self.tile
        if not width:
            return part.kinds
        kind = 1 + len(self.masks) + self._end_widths.index(width)
        at_end = (part.columns == part.n_keys // self.tile) & (part.kinds == 0)
        return np.where(at_end, np.int32(kind), part.kinds)

    @property
    def _end_widths(self) -> list[int]:
        """How many keys the last tiles of the passes hold where they are partial, ascending."""
        return sorted({part.n_keys % self.tile for part in self.passes} - {0})

    def places(self, part: Pass, tiles: Integers | Indices, of_queries: bool) -> tuple[Integers, Booleans]:
        """Tokens of the tiles [n, tile], and which of them exist."""
        count, index = (part.n_queries, part.query_index) if of_queries else (part.n_keys, part.key_index)
        place = tiles.astype(np.int64)[:, None] * self.tile + np.arange(self.tile)
        exists = place < count
        place = np.minimum(place, count - 1)
        return (place if index is None else index[place].astype(np.int64)), exists

    def pairs_of(self, part: Pass, entries: slice | Integers) -> tuple[Integers, Integers, Integers]:
        """List, query and key of every allowed pair in some of the entries of a pass's `columns`."""
        tile_list, tile_row = (array[entries] for array in part.entries())
        queries, has_query = self.places(part, tile_row, of_queries=True)
        keys, has_key = self.places(part, part.columns[entries], of_queries=False)
        allowed = self.tile_masks(part.kinds[entries]) & has_query[:, :, None] & has_key[:, None, :]
        tile, row, column = np.nonzero(allowed)
        return tile_list[tile], queries[tile, row], keys[tile, column]

    def _paint(self, dense: Booleans, part: Pass, chunk: slice) -> None:
        tile_list, queries, keys = self.pairs_of(part, chunk)
        for number, head in enumerate(part.heads):
            chosen = slice(None) if part.lists == 1 else tile_list == number
            dense[head, queries[chosen], keys[chosen]] = True

    def _least_distance(self, part: Pass, sign: int) -> int:
        """The least sign * (query - key) in a pass.

        The corners of a tile bound it, and tiles are looked into, from the lowest bound on, until no other bound is
        lower than what was found. Where tokens stand in their natural order the mask alone bounds it better.
        """
        _, rows = part.entries()
        queries, keys = (
            self.places(part, np.arange(-(-count // self.tile)), of_queries)[0]
            for count, of_queries in ((part.n_queries, True), (part.n_keys, False))
        )
        asked, read = sign * (queries + self.query_offset), sign * keys
        if part.query_index is None and part.key_index is None:
            bound = asked[rows, 0] - read[part.columns, 0] + self._least_within(sign)[part.kinds]
        else:
            bound = asked.min(axis=1)[rows] - read.max(axis=1)[part.columns]
        order, least = np.argsort(bound, kind="stable"), np.iinfo(np.int64).max
        start, count = 0, 1
        while start < len(order) and bound[order[start]] < least:
            _, some_queries, some_keys = self.pairs_of(part, order[start : start + count])
            distances = sign * (some_queries + self.query_offset - some_keys)
            least = min(least, int(distances.min(initial=least)))
            start, count = start + count, min(2 * count, 256)
        return int(least)

    def _least_within(self, sign: int) -> Integers:
        """The least sign * (row - column) of a pair that the mask of each kind allows."""
        place = np.arange(self.tile)
        distances = sign * (place[:, None] - place)
        kinds = np.arange(1 + len(self.masks), dtype=np.int32)
        largest = np.int64(self.tile)
        return np.concatenate(
            [
                np.where(self.tile_masks(some), distances, largest).min(axis=(1, 2), initial=largest)
                for some in np.array_split(kinds, -(-len(kinds) // 256))
            ]
        )

    def _pairs(self, part: Pass) -> int:
        ones = np.bitwise_count(self.masks).sum(axis=(1, 2), dtype=np.int64)
        begins, rows = part.row_offsets[:, :-1].ravel(), part.row_offsets.shape[1] - 1
        pairs = 0
        for start in range(0, len(part.columns), _COUNTED):  # of hundreds of millions, each array would be gigabytes
            columns, kinds = part.columns[start : start + _COUNTED], part.kinds[start : start + _COUNTED]
            entries = np.arange(start, start + len(columns))
            tile_row = (np.searchsorted(begins, entries, side="right") - 1) % rows
            full = kinds == 0
            height = np.minimum(self.tile, part.n_queries - tile_row[full] * self.tile)
            width = np.minimum(self.tile, part.n_keys - columns[full].astype(np.int64) * self.tile)
            pairs += int((height * width).sum() + ones[kinds[~full] - 1].sum())
        return pairs * (len(part.heads) if part.lists == 1 else 1)


def _freeze(holder: Pass | Plan) -> None:
    """Plans are shared by value, so their arrays must not be written to."""
    for field in fields(holder):
        value = getattr(holder, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False


def _scaled(value: object, unit: str) -> str:
    """A number with the prefix that makes it readable: 1.5 GFLOP."""
    number = float(str(value))
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.3g} P{unit}"
