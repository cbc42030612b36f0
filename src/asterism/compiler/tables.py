"""The arrays that plans are made of: lists of tiles in compressed rows, and bit masks, each kept once."""

from collections.abc import Sequence

import numpy as np

from asterism.compiler.plan import Booleans, Indices, Integers, Words


class BitMasks:
    """Bit masks of mixed tiles, each kept once."""

    def __init__(self, tile: int):
        self.tile = tile
        self.words = -(-tile // 64)
        self.numbers: dict[bytes, int] = {}

    def add(self, allowed: Booleans) -> Indices:
        """Kinds of the tiles `allowed` [n, tile, tile], whose masks are kept."""
        packed = np.packbits(allowed, axis=-1, bitorder="little")
        padded = np.zeros((len(allowed), self.tile, self.words * 8), np.uint8)
        padded[..., : packed.shape[-1]] = packed
        return self.add_words(padded.view(np.uint64))

    def add_words(self, masks: Words) -> Indices:
        """The same for masks that are packed as a plan's are, [n, tile, words]."""
        size, packed = 8 * self.tile * self.words, masks.tobytes()
        each = (packed[start : start + size] for start in range(0, len(packed), size))
        kinds = [self.numbers.setdefault(mask, len(self.numbers) + 1) for mask in each]
        return np.array(kinds, np.int32)

    def stacked(self) -> Words:
        flat = np.frombuffer(b"".join(self.numbers), np.uint64)
        return flat.reshape(len(self.numbers), self.tile, self.words)


def offsets(which: Integers, row: Integers, lists: int, rows: int) -> Integers:
    """Where each tile row's entries begin and end, [lists, rows + 1], in entries sorted by (list, row)."""
    counts = np.bincount(which * rows + row, minlength=lists * rows) if rows else np.zeros(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return starts[np.arange(lists)[:, None] * rows + np.arange(rows + 1)]


def list_offsets(lists: Sequence[Indices], rows: int) -> Integers:
    """`offsets`, [lists, rows + 1], of lists given one by one as the row int [entries] of each entry, in any order."""
    counts = [np.bincount(row, minlength=rows) for row in lists]
    ends = np.cumsum(np.stack(counts), dtype=np.int64).reshape(len(lists), rows)
    first = np.concatenate([np.zeros(1, np.int64), ends[:-1, -1]]) if rows else np.zeros(len(lists), np.int64)
    return np.concatenate([first[:, None], ends], axis=1)
