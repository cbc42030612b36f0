"""Random key blocks, drawn equally on every machine, in training and in evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import MOST_HEADS, Booleans, Pattern, Ranges, Verdicts, check_integer, verdicts
from asterism.patterns.primitives import mixed_if_contiguous, positions_of

_NO_BLOCK = 2**62
"""Sorts after every block."""

_MOST_DRAWN = 2**12
"""The most blocks drawn for a query block: every draw looks at those before it."""


@dataclass(frozen=True, eq=False, repr=False)
class RandomBlocks(Pattern):
    keyword: ClassVar[str] = "random_blocks"
    block: int
    count: int
    seed: int = 0
    heads: int = 1
    earlier: bool = False
    window_blocks: int = 0
    avoid: tuple[int, ...] = ()

    def drawn(self, length: int, head: int, furthest: int = 0) -> Integers:
        """The key blocks drawn for each query block, int64 [query blocks, count], sorted, -1 where there are none.

        There are as many query blocks as key blocks, or more, so that the one of the position `furthest` is there.
        """
        n_blocks, needed = -(-length // self.block), furthest // self.block + 1
        # By powers of two, because what is drawn is kept for each number of rows.
        rows = n_blocks if needed <= n_blocks else 2 ** (needed - 1).bit_length()
        return self.derived(_draw_blocks, rows, n_blocks, head % self.heads)

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        drawn, key_block = self.drawn(length, head, int(q.max(initial=0))), k // self.block
        result = np.zeros(q.shape, bool)
        for choice in range(self.count):
            result |= drawn[:, choice][q // self.block] == key_block
        return result

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        drawn = self.drawn(length, head, int(q.last.max(initial=0)))
        first, last = np.broadcast_arrays(q.first // self.block, q.last // self.block, k.first)[:2]
        k_first, k_last = k.first // self.block, k.last // self.block
        hits = np.zeros(first.shape, np.int64)
        for offset in range(int((last - first).max(initial=-1)) + 1):
            chosen = drawn[np.minimum(first + offset, last)]
            inside = (chosen >= k_first[..., None]) & (chosen <= k_last[..., None])
            hits += np.where(first + offset <= last, inside.sum(-1), 0)
        area = (last - first + 1) * (k_last - k_first + 1)
        return verdicts(hits == area, hits == 0, mixed_if_contiguous(q, k))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        drawn = self.drawn(length, head, int(q.last.max(initial=0)))
        row, query_block = Intervals.one_each(q.first // self.block, q.last // self.block + 1, len(drawn)).points()
        chosen = drawn[query_block]
        start = chosen.ravel() * self.block
        stop = np.where(start < 0, start, start + self.block)
        return Intervals.build(np.repeat(row, self.count), start, stop, len(q.first), length)

    def _count_heads(self) -> int:
        return self.heads

    @property
    def is_causal(self) -> bool:
        return self.earlier

    def unstable_part(self) -> Pattern | None:
        return None if self.earlier and all(number >= 0 for number in self.avoid) else self


def _draw_blocks(pattern: RandomBlocks, n_rows: int, n_blocks: int, head: int) -> Integers:
    """Draw without replacement, all rows at once.

    Row r owns the raw numbers r * width, ..., r * width + width - 1 of the Philox stream keyed by (seed, head), so
    that what is drawn for a row depends on nothing but (seed, head, row) and the number of candidates. The i-th draw is
    a rank among the candidates not yet taken; counting the taken blocks at or below turns the rank into a block.
    """
    width = -(-pattern.count // 4) * 4
    generator = np.random.Philox(key=np.array([pattern.seed, head], np.uint64))
    raw = generator.random_raw(n_rows * width).reshape(n_rows, width)
    taken, candidates = _forbidden_blocks(pattern, n_rows, n_blocks)
    drawn = np.full((n_rows, pattern.count), -1)
    for choice in range(pattern.count):
        left = candidates - choice
        if not (left > 0).any():
            break  # a count may be far beyond the blocks of a short sequence
        picked = (raw[:, choice] % np.maximum(left, 1).astype(np.uint64)).astype(np.int64)
        for column in range(taken.shape[1]):
            picked += taken[:, column] <= picked
        drawn[:, choice] = np.where(left > 0, picked, -1)
        taken = np.sort(np.column_stack([taken, np.where(left > 0, picked, _NO_BLOCK)]), axis=1)
    drawn.sort(axis=1)
    drawn.flags.writeable = False
    return drawn


def _forbidden_blocks(pattern: RandomBlocks, n_rows: int, n_blocks: int) -> tuple[Integers, Integers]:
    """Per query block, the sorted blocks that must not be drawn, and how many candidates are left."""
    row = np.arange(n_rows)
    limit = row if pattern.earlier else np.full(n_rows, n_blocks)
    count = min(pattern.window_blocks, 2 * n_rows + 1)
    near = row[:, None] + np.arange(count) - count // 2
    avoid = np.array([a + n_blocks if a < 0 else a for a in pattern.avoid], np.int64)
    taken = np.sort(np.concatenate([near, np.broadcast_to(avoid, (n_rows, len(avoid)))], axis=1), axis=1)
    repeated = np.zeros(taken.shape, bool)
    repeated[:, 1:] = taken[:, 1:] == taken[:, :-1]
    valid = (taken >= 0) & (taken < limit[:, None]) & ~repeated
    return np.sort(np.where(valid, taken, _NO_BLOCK), axis=1), limit - valid.sum(axis=1)


def random_blocks(
    block: int,
    count: int,
    seed: int = 0,
    heads: int = 1,
    earlier: bool = False,
    *,
    window_blocks: int = 0,
    avoid: int | Sequence[int] = (),
) -> Pattern:
    """Let every query block read `count` distinct random key blocks (BigBird section 2 and appendix D).

    `earlier` draws among strictly earlier blocks only, which makes the pattern causal and prefix-stable. The
    `window_blocks` blocks around the query, its own in the middle (an odd number; 0: all may be drawn), and the blocks
    `avoid` (negative: from the end) are never drawn. If fewer than `count` candidates are left, all are read. With
    `heads` > 1 every head has its own draw. Draws come from numpy's Philox keyed by (seed, head, row): the same on
    every machine, in training and in evaluation. Raises PatternError for sizes < 1, a negative seed, an even number of
    blocks in the window, and for more than 4,096 blocks or heads.
    """
    numbers, _ = positions_of("random_blocks", avoid, 1)
    if not isinstance(earlier, bool):
        raise PatternError("not-a-boolean", f"random_blocks: earlier must be True or False, got {shown(earlier)}")
    return RandomBlocks(
        check_integer("random_blocks", "block", block, 1),
        check_integer("random_blocks", "count", count, 1, _MOST_DRAWN),
        check_integer("random_blocks", "seed", seed, 0, 2**64 - 1),
        check_integer("random_blocks", "heads", heads, 1, MOST_HEADS),
        earlier,
        check_window_blocks("random_blocks", window_blocks, 0),
        numbers,
    )


def check_window_blocks(call: str, count: int, minimum: int = 1) -> int:
    """`count` as an int, or a PatternError when it is not odd; 0 passes where that is the minimum."""
    count = check_integer(call, "window_blocks", count, minimum)
    if count and count % 2 == 0:
        raise PatternError(
            "window-even",
            f"{call}: window_blocks counts the query's own block in the middle and must be odd, got {count}",
        )
    return count
