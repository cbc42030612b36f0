"""The primitive patterns, from which all others are composed.

Every function documents its rule in terms of a query position q and a key position k, both 0-based; a True rule means
*may attend*.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.memo import cached_property
from asterism.patterns.intervals import Integers, Intervals, covered_below
from asterism.patterns.pattern import (
    MOST_HEADS,
    Booleans,
    Pattern,
    PerHead,
    Ranges,
    Shifted,
    Verdict,
    Verdicts,
    check_integer,
    check_pattern,
    named,
    verdicts,
)

# --- everything, the past, neighbours --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Pattern):
    keyword: ClassVar[str] = "dense"

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return np.ones(q.shape, bool)

    def _needs_no_place(self) -> bool:
        return True

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return np.full(np.broadcast_shapes(q.first.shape, k.first.shape), Verdict.FULL, np.int8)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return Intervals.nothing(len(q.first), length)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return np.zeros_like(q.first)


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Pattern):
    keyword: ClassVar[str] = "causal"

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return k <= q

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return verdicts(k.last <= q.first, k.first > q.last, Verdict.MIXED)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return Intervals.one_each(np.zeros_like(q.first), q.last + 1, length)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return Intervals.one_each(q.first + 1, np.full_like(q.first, length), length)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return q.first - k.first

    @property
    def is_causal(self) -> bool:
        return True


@dataclass(frozen=True, eq=False, repr=False)
class Window(Pattern):
    keyword: ClassVar[str] = "window"
    left: int = 0
    right: int = 0
    dilation: int = field(default=1, init=False)
    """As the text has it; dilated ones are compositions."""

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        distance = q - k
        return (distance >= -self.right) & (distance <= self.left)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        distances = q.first - k.last, q.last - k.first
        return judge_distances(*distances, self.left, self.right, mixed_if_contiguous(q, k))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return Intervals.one_each(q.first - self.left, q.last + self.right + 1, length)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        before = Intervals.one_each(np.zeros_like(q.first), q.last - self.left, length)
        return before | Intervals.one_each(q.first + self.right + 1, np.full_like(q.first, length), length)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return q.first - k.first

    @property
    def is_causal(self) -> bool:
        return self.right == 0


def dense() -> Pattern:
    """Let every token read every token."""
    return Dense()


def causal() -> Pattern:
    """Let each token read the past and itself: k <= q."""
    return Causal()


def window(left: int = 0, right: int = 0, dilation: int = 1) -> Pattern:
    """Let each token read its neighbours: -right * dilation <= q - k <= left * dilation and (q - k) % dilation == 0.

    `left` and `right` count the keys read on each side, without the token itself, so `window(left=255)` reads 256 keys
    and `window()` only the token itself. Raises PatternError for negative sizes and for dilation < 1.
    """
    left, right = check_integer("window", "left", left, 0), check_integer("window", "right", right, 0)
    dilation = check_integer("window", "dilation", dilation, 1)
    if dilation == 1:
        return Window(left, right)
    body = Window(left * dilation, right * dilation) & Stride(dilation)
    return named(window, {"left": left, "right": right, "dilation": dilation}, body, (body,))


# --- periodic patterns -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Stride(Pattern):
    keyword: ClassVar[str] = "stride"
    period: int

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return (q - k) % self.period == 0

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        nearest, furthest = q.first - k.last, q.last - k.first
        multiples = furthest // self.period - (nearest - 1) // self.period
        uniform = nearest == furthest
        if q.step and k.step and q.step % self.period == 0 and k.step % self.period == 0:
            uniform = np.ones_like(uniform)
        same_residue = (q.first - k.first) % self.period == 0
        full = (uniform & same_residue) if self.period > 1 else np.ones_like(uniform)
        return verdicts(full, (multiples == 0) | (uniform & ~same_residue), mixed_if_contiguous(q, k))

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return (q.first - k.first) % self.period


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Pattern):
    keyword: ClassVar[str] = "blocks"
    size: int
    left: int = 0
    right: int = 0

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        distance = q // self.size - k // self.size
        return (distance >= -self.right) & (distance <= self.left)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        nearest = q.first // self.size - k.last // self.size
        furthest = q.last // self.size - k.first // self.size
        return judge_distances(nearest, furthest, self.left, self.right, mixed_if_contiguous(q, k))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        start = (q.first // self.size - self.left) * self.size
        return Intervals.one_each(start, (q.last // self.size + self.right + 1) * self.size, length)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        stop_before = (q.last // self.size - self.left) * self.size
        start_after = (q.first // self.size + self.right + 1) * self.size
        before = Intervals.one_each(np.zeros_like(q.first), stop_before, length)
        return before | Intervals.one_each(start_after, np.full_like(q.first, length), length)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return (q.first - k.first) * self.size + q.first % self.size


def stride(period: int) -> Pattern:
    """Let each token read those of its residue: (q - k) % period == 0 (Child 2019 section 4, A(2), before causality).

    Raises PatternError for period < 1.
    """
    return Stride(check_integer("stride", "period", period, 1))


def blocks(size: int, left: int = 0, right: int = 0) -> Pattern:
    """Let each token read its block, `left` blocks before and `right` after: -right <= q // size - k // size <= left.

    `blocks(size)` is the fixed A(1) of Child 2019 section 4, before causality. The last block may be partial. Raises
    PatternError for size < 1 and negative left or right.
    """
    return Blocks(
        check_integer("blocks", "size", size, 1),
        check_integer("blocks", "left", left, 0),
        check_integer("blocks", "right", right, 0),
    )


# --- sets of tokens on one side --------------------------------------------------------------------------------------


class OneSided(Pattern):
    """A rule that looks at one side of the pair only: whether the query, or the key, belongs to a set of tokens."""

    @abstractmethod
    def contains(self, tokens: Integers, length: int) -> Booleans:
        """bool [...]: whether each token int64 [...] belongs to the set."""

    @abstractmethod
    def count_below(self, tokens: Integers, length: int) -> Integers:
        """int64 [...]: how many members of the set are smaller than each token [...]."""

    @abstractmethod
    def members(self, length: int) -> Integers:
        """The set, sorted: int64 [members]."""

    def judge_side(self, tokens: Ranges, length: int) -> Verdicts:
        """int8 [sets]: FULL for token sets all in the set, EMPTY for those without a member of it."""
        inside = self.count_below(tokens.last + 1, length) - self.count_below(tokens.first, length)
        full = inside == tokens.last - tokens.first + 1
        return verdicts(full, inside == 0, Verdict.MIXED if tokens.step == 1 else Verdict.UNKNOWN)


class KeySet(OneSided):
    """Keys that every query may read."""

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return self.contains(k, length)

    def _needs_no_place(self) -> bool:
        return True

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        verdict = self.judge_side(k, length)
        return np.broadcast_to(verdict, np.broadcast_shapes(q.first.shape, verdict.shape))


class QuerySet(OneSided):
    """Queries that read every key."""

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return self.contains(q, length)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        verdict = self.judge_side(q, length)
        return np.broadcast_to(verdict, np.broadcast_shapes(verdict.shape, k.first.shape))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        some = self.count_below(q.last + 1, length) > self.count_below(q.first, length)
        return Intervals.one_each(np.zeros_like(q.first), np.where(some, length, 0), length)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        inside = self.count_below(q.last + 1, length) - self.count_below(q.first, length)
        return Intervals.one_each(np.zeros_like(q.first), np.where(inside <= q.last - q.first, length, 0), length)


@dataclass(frozen=True, eq=False, repr=False)
class Columns(KeySet):
    keyword: ClassVar[str] = "columns"
    period: int
    first: int = 0
    count: int = 1

    def contains(self, tokens: Integers, length: int) -> Booleans:
        residue = tokens % self.period
        return (residue >= self.first) & (residue < self.first + self.count)

    def count_below(self, tokens: Integers, length: int) -> Integers:
        return tokens // self.period * self.count + np.clip(tokens % self.period - self.first, 0, self.count)

    def members(self, length: int) -> Integers:
        cells = np.arange(-(-length // self.period))[:, None] * self.period + self.first + np.arange(self.count)
        return cells[cells < length]

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        if not k.step or k.step % self.period:
            return super().judge(q, k, length, head)
        inside = np.broadcast_to(self.contains(k.first, length), np.broadcast_shapes(q.first.shape, k.first.shape))
        return verdicts(inside, ~inside, Verdict.UNKNOWN)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        return k.first % self.period


class TokenSet(OneSided):
    """Tokens, or blocks of tokens, named by position; negative positions count from the end."""

    positions: tuple[int, ...]
    block: int

    def contains(self, tokens: Integers, length: int) -> Booleans:
        starts, stops = self._intervals(length)
        at = np.searchsorted(starts, tokens, side="right") - 1
        return (at >= 0) & (tokens < np.append(stops, 0)[at])

    def count_below(self, tokens: Integers, length: int) -> Integers:
        return covered_below(*self._intervals(length), tokens)

    def members(self, length: int) -> Integers:
        starts, stops = self._intervals(length)
        return Intervals.build(np.zeros_like(starts), starts, stops, 1, length).points()[1]

    def unstable_part(self) -> Pattern | None:
        return self if any(position < 0 for position in self.positions) else None

    @cached_property
    def _numbers(self) -> Integers:
        """The positions in ascending order: of a hundred thousand they are asked for as often as tiles are judged."""
        return np.unique(np.asarray(self.positions, np.int64))

    def _intervals(self, length: int) -> tuple[Integers, Integers]:
        """Starts and stops of the members' runs, int64 [runs] each, ascending.

        Runs are whole, also beyond the length: there a query may stand that comes from another sequence.
        """
        n_blocks, numbers = -(-length // self.block), self._numbers
        if len(numbers) and numbers[0] < 0:
            numbers = np.unique(np.where(numbers < 0, numbers + n_blocks, numbers))
        starts = numbers[(numbers >= 0) & (numbers < _FAR // self.block)] * self.block
        return starts, starts + self.block


@dataclass(frozen=True, eq=False, repr=False)
class GlobalKeys(TokenSet, KeySet):
    keyword: ClassVar[str] = "global_keys"
    positions: tuple[int, ...]
    block: int = 1

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        starts, stops = self._intervals(length)
        rows = len(q.first)
        if len(starts) > _MANY_RUNS:
            return Intervals.one_each(np.full(rows, starts[0]), np.full(rows, stops[-1]), length)
        row = np.repeat(np.arange(rows), len(starts))
        return Intervals.build(row, np.tile(starts, rows), np.tile(stops, rows), rows, length)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalQueries(TokenSet, QuerySet):
    keyword: ClassVar[str] = "global_queries"
    positions: tuple[int, ...]
    block: int = 1


def columns(period: int, first: int = 0, count: int = 1) -> Pattern:
    """Let every query read the same keys of each period: first <= k % period < first + count.

    `columns(l, first=l - c, count=c)` is the fixed A(2) of Child 2019 section 4, before causality. (The paper writes
    the residues as l - c, ..., l; residue l does not occur.) Raises PatternError if first + count exceeds the period.
    """
    period = check_integer("columns", "period", period, 1)
    first, count = check_integer("columns", "first", first, 0), check_integer("columns", "count", count, 1)
    if first + count > period:
        raise PatternError(
            "columns-beyond-period",
            f"columns: first + count must be at most the period, got {first} + {count} > {period}",
        )
    return Columns(period, first, count)


def global_keys(positions: int | Sequence[int], block: int = 1) -> Pattern:
    """Let every query read these keys. Positions count blocks of `block` tokens; negative ones count from the end.

    A position beyond the sequence is ignored. Raises PatternError for positions that are not whole numbers, and for
    block < 1.
    """
    return GlobalKeys(*positions_of("global_keys", positions, block))


def global_queries(positions: int | Sequence[int], block: int = 1) -> Pattern:
    """Let these queries read every key; arguments and errors are those of `global_keys`."""
    return GlobalQueries(*positions_of("global_queries", positions, block))


def global_tokens(positions: int | Sequence[int], block: int = 1) -> Pattern:
    """Let these tokens read all and be read by all (BigBird section 2, Longformer section 3.1).

    Arguments and errors are those of `global_keys`. With `block` > 1 the last block may be partial.
    """
    positions, block = positions_of("global_tokens", positions, block)
    rows, keys = GlobalQueries(positions, block), GlobalKeys(positions, block)
    return named(global_tokens, {"positions": positions, "block": block}, rows | keys, (rows, keys))


def positions_of(call: str, positions: int | Sequence[int], block: int) -> tuple[tuple[int, ...], int]:
    """The arguments of a set of tokens, checked, positions as a tuple. Raises PatternError for what `global_keys`
    refuses."""
    items = tuple(positions) if isinstance(positions, (Sequence, range, np.ndarray)) else (positions,)
    if isinstance(positions, str):
        raise PatternError("positions-not-whole", f"{call}: positions must be whole numbers, got {shown(positions)}")
    numbers = tuple(check_integer(call, "positions", item) for item in items)
    return numbers, check_integer(call, "block", block, 1)


# --- heads and shifts ------------------------------------------------------------------------------------------------


def per_head(patterns: Sequence[Pattern]) -> Pattern:
    """Give head h the h-th pattern. Raises PatternError for an empty list or for patterns of other numbers of heads."""
    if not isinstance(patterns, Sequence):
        raise PatternError("per-head-list", f"per_head: patterns must be a list, one per head, got {shown(patterns)}")
    parts = tuple(check_pattern("per_head", "every entry", part) for part in patterns)
    if not parts:
        raise PatternError("per-head-empty", "per_head: at least one pattern is needed, got none")
    check_integer("per_head", "the number of patterns", len(parts), 1, MOST_HEADS)
    for part in parts:
        if part.heads not in (1, len(parts)):
            raise PatternError(
                "per-head-nested", f"per_head: {part} is for {part.heads} heads, but the list has {len(parts)}"
            )
    return PerHead(parts)


def shifted(pattern: Pattern, by: int) -> Pattern:
    """Apply the pattern to the tokens from `by` on, its position 0; earlier tokens neither read nor are read.

    Raises PatternError for anything but a pattern, and for a negative `by`.
    """
    return Shifted(check_pattern("shifted", "pattern", pattern), check_integer("shifted", "by", by, 0))


_FAR = 2**61
"""Beyond every position: block numbers and sizes of up to 2**60 have a product that int64 has not."""

_MANY_RUNS = 64
"""Above so many runs of global keys per row, spans are their hull: a cheap superset."""


def judge_distances(nearest: Integers, furthest: Integers, left: int, right: int, otherwise: Verdict) -> Verdicts:
    """Verdicts int8 [...] on -right <= distance <= left for sets of pairs with distances from `nearest` to `furthest`,
    int64 [...] each."""
    full = (nearest >= -right) & (furthest <= left)
    empty = (furthest < -right) | (nearest > left)
    return verdicts(full, empty, otherwise)


def mixed_if_contiguous(q: Ranges, k: Ranges) -> Verdict:
    """MIXED when the extremes of two ranges are known to be reached step by step, else UNKNOWN."""
    return Verdict.MIXED if q.step == 1 and k.step == 1 else Verdict.UNKNOWN
