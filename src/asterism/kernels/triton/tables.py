"""A plan as the tables that the Triton kernels read: lists of tiles by row and by column, cut into pieces, and masks.

The format is explained in device.py. Tables are made once per plan and device. Tile rows and columns far longer
than the others are cut, so that none holds up the grid.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Pass, Plan
from asterism.memo import cached_property

_SHORTEST_PIECE = 2048
"""Tile rows (columns) of at most so many keys (queries) are never cut into pieces."""

_BALANCE = 64
"""A pass of fewer tile rows is cut as if it had so many, to occupy a GPU."""

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Lists:
    """The tile rows (or columns) of a pass, cut into pieces; the tables are explained in device.py.

    `shared` heads read each list, `slots` pieces have to be put together with others, and `fresh` says that no earlier
    pass has written the results, which this pass writes all.
    """

    heads: Tensor
    shared: int
    pieces: Tensor
    entries: Tensor
    splits: Tensor
    slots: int
    fresh: bool

    def programs(self, batch: int, tile: int, block: int) -> int:
        return batch * self.shared * self.n_pieces * (tile // block)

    @cached_property
    def n_pieces(self) -> int:
        return len(self.pieces)

    @cached_property
    def n_splits(self) -> int:
        return len(self.splits)

    @property
    def count(self) -> int:
        """How many lists there are; `shared` heads read each."""
        return len(self.heads) // self.shared

    def split_programs(self, batch: int, tile: int, block: int) -> int:
        return batch * self.shared * self.n_splits * (tile // block)


@dataclass(frozen=True)
class TiledPass:
    """A pass: its token orders (int32, None for the natural one) and its tiles by row and by column.

    It is of n_queries queries and of n_keys of all the keys.
    """

    query_index: Tensor | None
    key_index: Tensor | None
    n_queries: int
    n_keys: int
    all_keys: int
    rows: Lists
    columns: Lists


@dataclass(frozen=True)
class TiledPlan:
    """A plan on a device. masks int32 [kinds, 2, tile, words] by query and by key, reads int32 [kinds, words].

    Kind 0 is the full tile. The last one is full, too: in columns, that of the last queries.

    `writes_queries` (`writes_keys`): the fresh passes write the results of all queries (keys).
    """

    tile: int
    masks: Tensor
    reads: Tensor
    parts: tuple[TiledPass, ...]
    writes_queries: bool
    writes_keys: bool


def tabulate(plan: Plan, device: torch.device, heads: int, kv_heads: int) -> TiledPlan:
    masks = plan.masks_with_ends
    masks = np.concatenate([masks, masks[:1]])  # the last kind: full, and of queries that are not all there
    reads = np.bitwise_or.reduce(masks, axis=1).view(np.int32)
    masks = np.stack([masks, _of_keys(masks, plan.tile)], axis=1).view(np.int32)
    group = heads // kv_heads
    query_heads = [list(range(heads)) if plan.heads == 1 else list(part.heads) for part in plan.passes]
    key_heads = [sorted({head // group for head in own}) for own in query_heads]
    fresh_rows = _fresh([part.n_queries == plan.n_queries for part in plan.passes], query_heads)
    fresh_columns = _fresh([part.n_keys == plan.n_keys for part in plan.passes], key_heads)
    parts = tuple(
        TiledPass(
            None if part.query_index is None else torch.tensor(part.query_index, device=device),
            None if part.key_index is None else torch.tensor(part.key_index, device=device),
            part.n_queries,
            part.n_keys,
            plan.n_keys,
            _rows(part, plan, query_heads[number], fresh_rows[number], device),
            _columns(part, plan, key_heads[number], group, fresh_columns[number], device),
        )
        for number, part in enumerate(plan.passes)
    )
    return TiledPlan(
        plan.tile,
        torch.tensor(masks, device=device),
        torch.tensor(reads, device=device),
        parts,
        _are_all(query_heads, fresh_rows, heads),
        _are_all(key_heads, fresh_columns, kv_heads),
    )


def _of_keys(masks: _Array, tile: int) -> _Array:
    """Masks [kinds, tile, words] whose rows are keys, of masks whose rows are queries."""
    found = np.empty_like(masks)
    for kind, mask in enumerate(masks):  # one at a time: a bit takes a byte
        bits = np.unpackbits(mask.view(np.uint8), axis=-1, bitorder="little")
        turned = np.zeros_like(bits)
        turned[:, :tile] = bits[:, :tile].T
        found[kind] = np.packbits(turned, axis=-1, bitorder="little").view(found.dtype)
    return found


def _fresh(whole: list[bool], heads: list[list[int]]) -> list[bool]:
    """Per pass, whether it computes every token of its heads and no earlier pass has any of them."""
    seen: set[int] = set()
    fresh = []
    for is_whole, own in zip(whole, heads, strict=True):
        fresh.append(is_whole and seen.isdisjoint(own))
        seen |= set(own)
    return fresh


def _are_all(heads: list[list[int]], fresh: list[bool], count: int) -> bool:
    written = {head for own, is_fresh in zip(heads, fresh, strict=True) if is_fresh for head in own}
    return len(written) == count


def _rows(part: Pass, plan: Plan, heads: list[int], fresh: bool, device: torch.device) -> Lists:
    """The tile rows; a full tile that the last keys do not fill becomes a masked one."""
    which, row = part.entries()
    kind = plan.kinds_with_ends(part)
    shared = len(heads) if part.lists == 1 else 1
    entries = np.stack([part.columns, kind, np.zeros_like(kind)], axis=1)
    return lists_of(
        which, row, entries, (part.lists, -(-part.n_queries // plan.tile)), heads, shared, plan.tile, fresh, device
    )


def _columns(part: Pass, plan: Plan, kv_heads: list[int], group: int, fresh: bool, device: torch.device) -> Lists:
    """The tile columns: one list that all key heads share, or one per key head with the entries of its query heads.

    A full tile that the last queries do not fill becomes a masked one.
    """
    n_columns = -(-part.n_keys // plan.tile)
    which, row = part.entries()
    by_column = np.lexsort((row, part.columns, which))
    at_end = (row == part.n_queries // plan.tile) & (part.kinds == 0)  # no row is, where the last tile is whole
    kinds = np.where(at_end, np.int32(len(plan.masks_with_ends)), part.kinds)[by_column]
    which, column = which[by_column], part.columns[by_column].astype(np.int64)
    entries = np.stack([row[by_column].astype(np.int32), kinds, np.zeros_like(kinds)], axis=1)
    if plan.heads == 1:
        return lists_of(which, column, entries, (1, n_columns), kv_heads, len(kv_heads), plan.tile, fresh, device)
    chosen = [np.flatnonzero(which == (0 if part.lists == 1 else number)) for number in range(len(part.heads))]
    own = np.concatenate(chosen)
    member = np.repeat([head % group for head in part.heads], [len(x) for x in chosen])
    owner = np.repeat([kv_heads.index(head // group) for head in part.heads], [len(x) for x in chosen])
    entries = np.concatenate([entries[own, :2], member[:, None].astype(np.int32)], axis=1)
    return lists_of(owner, column[own], entries, (len(kv_heads), n_columns), kv_heads, 1, plan.tile, fresh, device)


def lists_of(
    which: _Array,
    tile_of: _Array,
    entries: _Array,
    shape: tuple[int, int],
    heads: list[int],
    shared: int,
    tile: int,
    fresh: bool,
    device: torch.device,
) -> Lists:
    """Lists of `entries` [E, 3] by list `which` and tile `tile_of`; `shape`: how many of either there are."""
    n_lists, n_tiles = shape
    place = which * n_tiles + tile_of
    masked = entries[:, 1] != 0
    entries = entries[np.lexsort((entries[:, 2], entries[:, 0], masked, place))]
    count = np.bincount(place, minlength=n_lists * n_tiles)
    full = np.bincount(place[~masked], minlength=n_lists * n_tiles)
    longest = max(_SHORTEST_PIECE // tile, -(-2 * len(entries) // (n_lists * max(n_tiles, _BALANCE))))
    cuts = np.maximum(-(-count // longest), int(fresh))
    splits = np.flatnonzero(cuts > 1)
    first_slot = np.cumsum(cuts[splits]) - cuts[splits]
    slots = int(cuts[splits].sum())
    where = np.repeat(np.arange(n_lists * n_tiles), cuts)
    number = np.arange(len(where)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    start, stop = (count[where] * (number + end) // cuts[where] for end in (0, 1))
    is_cut = cuts[where] > 1
    slot = np.where(is_cut, np.cumsum(is_cut) - 1, -1)
    first = (np.cumsum(count) - count)[where] + start
    full_here = np.clip(full[where] - start, 0, stop - start)
    pieces = np.stack([where // n_tiles, where % n_tiles, first, full_here, stop - start, slot], axis=1)
    pieces = pieces[np.lexsort((-pieces[:, 4], pieces[:, 0]))]
    split_table = np.stack([splits // n_tiles, splits % n_tiles, first_slot, cuts[splits]], axis=1)
    return Lists(
        torch.tensor(heads, dtype=torch.int32, device=device),
        shared,
        torch.tensor(pieces, dtype=torch.int64, device=device),
        torch.tensor(entries, dtype=torch.int32, device=device),
        torch.tensor(split_table, dtype=torch.int64, device=device),
        slots,
        fresh,
    )
