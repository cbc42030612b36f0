"""A plan in the kernel's form: structures, masks by key, and entries that can be skipped."""

import numpy as np

from asterism.compiler import Pass, Plan
from asterism.compiler.plan import Booleans, Words
from asterism.kernels.cpu import interface
from asterism.kernels.cpu.interface import GROUP, address


class Program:
    """A plan for a number of heads, with the arrays that its structures point to.

    C++ reads them while other Python threads run and may push the program out of any cache: a call must hold the
    program itself (Problem.holds).
    """

    def __init__(self, plan: Plan, heads: int):
        self.plan = plan
        self.words = -(-plan.tile // 64)
        allowed = plan.tile_masks(np.arange(1, len(plan.masks) + 1, dtype=np.int32))
        self.masks = _transposed_masks(allowed, self.words)
        words = plan.masks_with_ends[: len(plan.masks) + 1]
        self.live, self.has_unread = _live_groups(words), _has_unread(words)
        self.lists = [_list_of_head(part, plan.heads, heads) for part in plan.passes]
        self.passes = (interface.Pass * len(plan.passes))(
            *(_structure(part, lists) for part, lists in zip(plan.passes, self.lists, strict=True))
        )


def _structure(part: Pass, lists: np.ndarray) -> interface.Pass:
    index = (None if x is None else address(x, np.int32) for x in (part.query_index, part.key_index))
    n_rows = part.row_offsets.shape[1] - 1
    offsets, tiles = address(part.row_offsets, np.int64), (part.columns, part.kinds, lists)
    return interface.Pass(*index, part.n_queries, part.n_keys, n_rows, offsets, *(address(x, np.int32) for x in tiles))


def _transposed_masks(allowed: Booleans, words: int) -> np.ndarray:
    """uint64 [masks, key of the tile, words] of allowed [masks, query, key]: bit i says whether query i may read."""
    packed = np.packbits(allowed.transpose(0, 2, 1), axis=-1, bitorder="little")
    padded = np.zeros((*packed.shape[:2], words * 8), np.uint8)
    padded[..., : packed.shape[-1]] = packed
    return padded.view(np.uint64)


def _live_groups(words: Words) -> np.ndarray:
    """uint8 [kinds, groups of queries, 2]: the first group of keys that one of them may read, and one past the last.

    By 16 queries and 16 keys of the masks words [kinds, query, words]. Words, because a plan of documents has many.
    """
    # Bit k of a word is key k. First all queries of a group are joined, then its word is cut into 16 bits per group of
    # keys: for a band below the diagonal of a tile of 32, live is [[1, 0], [1, 1]], and the result [[0, 1], [0, 2]].
    kinds, tile, _ = words.shape
    groups = tile // GROUP
    read = np.bitwise_or.reduce(words.reshape(kinds, groups, GROUP, -1), axis=2)
    live = np.stack([read >> np.uint64(GROUP * i) & np.uint64(2**GROUP - 1) for i in range(64 // GROUP)], axis=-1) != 0
    live = live.reshape(kinds, groups, -1)[..., :groups]
    first, past = np.argmax(live, axis=-1), groups - np.argmax(live[..., ::-1], axis=-1)
    return np.ascontiguousarray(np.stack([first, np.where(live.any(axis=-1), past, first)], axis=-1).astype(np.uint8))


def _has_unread(words: Words) -> np.ndarray:
    """uint8 [kinds]: whether there are keys that no query of the tile may read, by words [kinds, query, words]."""
    whole = np.uint64(2 ** min(words.shape[1], 64) - 1)
    read = np.bitwise_or.reduce(words, axis=1) & whole
    return np.asarray((read != whole).any(axis=1), np.uint8)


def _list_of_head(part: Pass, plan_heads: int, heads: int) -> np.ndarray:
    """int32 [heads]: which list of tiles a head has in the pass, -1 for none."""
    if plan_heads == 1:
        return np.zeros(heads, np.int32)
    lists = np.full(heads, -1, np.int32)
    lists[list(part.heads)] = 0 if part.lists == 1 else np.arange(part.lists)
    return lists
