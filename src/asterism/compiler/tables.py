"""The arrays of a plan: lists of tiles in compressed rows, and bit masks without duplicates."""

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
        """The masks as a plan has them, uint64 [masks, tile, words]."""
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


# --- masks that move --------------------------------------------------------------------------------------------------


def all_ones(count: int, tile: int) -> Words:
    """`count` masks of full tiles: uint64 [count, tile, words]."""
    words = np.zeros((count, tile, -(-tile // 64)), np.uint64)
    return words | _low_bits(np.full(count, tile), tile)[:, None]


def _low_bits(count: Integers, tile: int) -> Words:
    """Words [n, words] whose first count[n] bits are 1."""
    bits = np.clip(count[:, None] - 64 * np.arange(-(-tile // 64)), 0, 64).astype(np.uint64)
    whole = bits == 64
    partial = (np.uint64(1) << np.where(whole, np.uint64(0), bits)) - np.uint64(1)
    return np.where(whole, ~np.uint64(0), partial)


def moved_masks(
    source: Words, kind: Integers, row_shift: Integers, rows: Integers, column_shift: Integers, columns: Integers
) -> Words:
    """Masks source[kind] [n, tile, words], cut to their first `rows` queries and `columns` keys, then moved.

    `source` is uint64 [masks, tile, words], all others int64 [n]. A shift below 0 moves to the front; what leaves the
    tile is lost. Of a full tile of 4, one row and two columns, moved by 2 rows and 1 column, are

        1100        0000
        0000        0000
        0000   ->   0110
        0000        0000
    """
    tile = source.shape[1]
    words = source[kind] & _low_bits(columns, tile)[:, None]
    words = _shifted_bits(words, column_shift) & _low_bits(np.full(len(kind), tile), tile)[:, None]
    row = np.arange(tile) - row_shift[:, None]
    words = np.take_along_axis(words, np.clip(row, 0, tile - 1)[:, :, None], axis=1)
    return words * ((row >= 0) & (row < rows[:, None]))[:, :, None]


def _shifted_bits(words: Words, shift: Integers) -> Words:
    """Every row of bits, [n, tile, words], moved up by shift[n], which is within the tile; down below 0."""
    # Bit b of word w stands at 64 w + b. Moved up by 70, word 0 gives word 1 its bits, 6 places higher, and word 2 the
    # top 6 of them: by = 6 and -58.
    result = np.zeros_like(words)
    count = words.shape[2]
    # Every word may give bits to every other one. Moved up by 70, bit 3 of word 0, which is bit 3 of the row, becomes
    # bit 9 of word 1: from word 0 to word 0 all leave (by 70), from word 0 to word 1 they move by 70 - 64 = 6.
    for to in range(count):
        for origin in range(count):
            by = (shift + 64 * (origin - to))[:, None]
            up, down = np.clip(by, 0, 63).astype(np.uint64), np.clip(-by, 0, 63).astype(np.uint64)
            moved = words[:, :, origin] << up >> down
            result[:, :, to] |= np.where(np.abs(by) < 64, moved, np.uint64(0))
    return result
