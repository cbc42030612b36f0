"""Some queries and some keys of a sequence: the pairs that a device computes if it holds only these.

Query i of the part stands at the i-th position of one set, key j at the j-th of another, and the inner pattern is asked
about these positions and the length of the whole sequence. So every plan, every kernel and the reference compute a part
as they compute any pattern, whose tokens are numbered from 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError
from asterism.patterns.intervals import Integers, Intervals, once, within
from asterism.patterns.pattern import (
    Booleans,
    Moved,
    Pattern,
    Ranges,
    Verdict,
    Verdicts,
    check_integer,
    check_pattern,
    write_part,
)
from asterism.patterns.runs import CutPieces, Runs

_MOST_PIECES = 16
"""Into more pairs of pieces than this no rectangle is cut: it is judged by its hull."""

_FURTHEST_QUERY = 2**31
"""Queries of another sequence stand before this position."""


@dataclass(frozen=True, eq=False, repr=False)
class Part(Moved):
    """`inner`, of a sequence of `length` tokens, asked about those of its queries and keys that stand at the positions
    `queries` and `keys`."""

    keyword: ClassVar[str] = "part"
    inner: Pattern
    length: int
    queries: Runs
    keys: Runs

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        self._check(q, length)
        # Queries and keys come repeated against each other; each is looked up once.
        queries, keys = (
            np.broadcast_to(runs.places(once(x)), x.shape) if x.size else x
            for runs, x in ((self.queries, q), (self.keys, k))
        )
        return self.inner._allows(queries, keys, self.length, head)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        self._check(q.last, length)
        shape = np.broadcast_shapes(q.first.shape, k.first.shape)
        q, k = _spread(q, shape), _spread(k, shape)
        rows = len(q.first)
        queries, keys = self.queries.pieces(q), self.keys.pieces(k)
        if len(queries.row) == len(keys.row) == rows:
            return self._judge(queries, keys, head).reshape(shape)
        counts = np.bincount(queries.row, minlength=rows) * np.bincount(keys.row, minlength=rows)
        result = np.empty(rows, np.int8)
        few, many = np.flatnonzero(counts <= _MOST_PIECES), np.flatnonzero(counts > _MOST_PIECES)
        result[many] = self._judge(self.queries.hulls(_chosen(q, many)), self.keys.hulls(_chosen(k, many)), head)
        queries, keys = self.queries.pieces(_chosen(q, few)), self.keys.pieces(_chosen(k, few))
        left, right = _pairs(queries.row, keys.row, len(few))
        verdicts = self._judge(_chosen_pieces(queries, left), _chosen_pieces(keys, right), head)
        joined = _joined(verdicts, queries.row[left], len(few))
        if not (queries.sure and keys.sure):  # of some pieces no member may be there, nor the first or last one
            joined[joined == Verdict.MIXED] = Verdict.UNKNOWN
        result[few] = joined
        return result.reshape(shape)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self._spans(q, length, head, is_complement=False)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self._spans(q, length, head, is_complement=True)

    def signature(self, q: Ranges, k: Ranges) -> Integers | None:
        """As of any pattern, [...]: the inner one's where both tiles lie in one run each, else one of its own."""
        steps = self.queries.run_of(q.first), self.keys.run_of(k.first)
        uncut = (steps[0] == self.queries.run_of(q.last)) & (steps[1] == self.keys.run_of(k.last))
        if self.queries.comb_step(q.step) and self.keys.comb_step(k.step):
            uncut = np.ones_like(uncut)
        own = self.inner.signature(
            Ranges(self.queries.places(q.first), self.queries.places(q.last), 0),
            Ranges(self.keys.places(k.first), self.keys.places(k.last), 0),
        )
        if own is None or not len(own):
            return own
        # Ranks, because the numbers may be too large for a product; tiles that are cut are one of their kind.
        columns = np.where(uncut, own, np.arange(len(own))), self.queries.step[steps[0]], self.keys.step[steps[1]]
        return np.unique(np.stack([uncut, *columns]), axis=1, return_inverse=True)[1].astype(np.int64).ravel()

    def _judge(self, q: CutPieces, k: CutPieces, head: int) -> Verdicts:
        """What the inner pattern says of pairs of pieces, which are asked about by their steps."""
        result = np.empty(len(q.row), np.int8)
        for chosen, q_step, k_step in _by_steps(q.step, k.step):
            queries = Ranges(q.first[chosen], q.last[chosen], q_step)
            keys = Ranges(k.first[chosen], k.last[chosen], k_step)
            result[chosen] = self.inner.judge(queries, keys, self.length, head)
        return result

    def _spans(self, q: Ranges, length: int, head: int, is_complement: bool) -> Intervals:
        self._check(q.last, length)
        pieces, rows = self.queries.pieces(q), len(q.first)
        find = self.inner.find_complement_spans if is_complement else self.inner.find_spans
        found: list[tuple[Integers, Integers, Integers]] = [(np.zeros(0, np.int64),) * 3]
        for chosen, step, _ in _by_steps(pieces.step, np.zeros_like(pieces.step)):
            tokens = Ranges(pieces.first[chosen], pieces.last[chosen], step)
            piece, start, stop = find(tokens, self.length, head).triples()
            found.append((pieces.row[chosen][piece], self.keys.count_below(start), self.keys.count_below(stop)))
        row, start, stop = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Intervals.build(row, start, stop, rows, length)

    def _check(self, queries: Integers, length: int) -> None:
        """Raises PatternError for queries that the part has not, and for other keys than it has."""
        if length != len(self.keys):
            raise PatternError("part-keys", f"part: the pattern is for {len(self.keys):,} keys, got {length:,}")
        if queries.size and (furthest := int(once(queries).max())) >= len(self.queries):
            raise PatternError(
                "part-queries",
                f"part: the pattern has {len(self.queries):,} queries, counted from 0, got query {furthest:,}",
            )

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.inner,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return Part(children[0], self.length, self.queries, self.keys)

    @property
    def is_causal(self) -> bool:
        """Numbers ascend as positions do, so where they are of one set the past is the past."""
        return self.queries == self.keys and self.inner.is_causal

    def unstable_part(self) -> Pattern | None:
        return None

    def _goes_across(self) -> bool:
        return True

    def _needs_no_place(self) -> bool:
        return True

    def _write(self, in_full: bool) -> str:
        inner = write_part(self.inner, in_full)
        return f"{self.keyword}({inner}, {self.length}, {self.queries.text!r}, {self.keys.text!r})"


def part(pattern: Pattern, length: int, queries: object, keys: object) -> Pattern:
    """Restrict a pattern to some queries and some keys of a sequence of `length` tokens.

    `queries` and `keys` are ascending sets of positions: runs (start, stop) or (start, stop, step) one after another,
    an integer array [runs, 2 or 3] of such rows, or the text "start:stop:step,start:stop,position". Query i of the part
    stands at the i-th position of `queries`, key j at the j-th of `keys`. With queries 0 .. m - 1 and all keys, the
    part has the first m rows of the whole. The part has exactly the keys of `keys`, and at most the queries of
    `queries`.

    Tables by distance (terms of the score) count positions, which numbers of the part stand for only where both sets
    are neighbours from one position on. Raises PatternError for sets that do not ascend, keys beyond the length, and
    queries beyond it where they must stand among the keys.
    """
    check_pattern("part", "pattern", pattern)
    length = check_integer("part", "length", length, 0)
    asked, read = Runs.read("part", "queries", queries), Runs.read("part", "keys", keys)
    furthest = _FURTHEST_QUERY if pattern.takes_any_query else length
    for name, runs, past in (("queries", asked, furthest), ("keys", read, length)):
        if runs.past > past:
            raise PatternError("part-positions", f"part: {name} must be below position {past:,}, got {runs.past - 1:,}")
    return Part(pattern, length, asked, read)


def is_of_itself(pattern: Pattern) -> bool:
    """Whether this is a part of one sequence whose queries and keys are the same tokens."""
    return isinstance(pattern, Part) and pattern.queries == pattern.keys and not pattern.inner.crosses


def counts_positions(pattern: Pattern) -> bool:
    """Whether distances between numbers are distances between positions, in every part of the pattern."""
    parts = [own for own in pattern.walk() if isinstance(own, Part)]
    return all(
        own.queries.is_range and own.keys.is_range and own.queries.start[:1].tolist() == own.keys.start[:1].tolist()
        for own in parts
        if len(own.queries) and len(own.keys)
    )


def _spread(tokens: Ranges, shape: tuple[int, ...]) -> Ranges:
    first, last = (np.broadcast_to(x, shape).ravel() for x in (tokens.first, tokens.last))
    return Ranges(first, last, tokens.step)


def _chosen(tokens: Ranges, rows: Integers) -> Ranges:
    return Ranges(tokens.first[rows], tokens.last[rows], tokens.step)


def _chosen_pieces(pieces: CutPieces, chosen: Integers) -> CutPieces:
    return CutPieces(pieces.row[chosen], pieces.first[chosen], pieces.last[chosen], pieces.step[chosen], pieces.sure)


def _pairs(left: Integers, right: Integers, rows: int) -> tuple[Integers, Integers]:
    """Places in two sorted lists of row numbers, int64 [left] and [right], such that every entry meets all of its row:
    of 0 0 1 and 0 1 1, places 0 1 2 2 and 0 0 1 2."""
    starts = np.searchsorted(right, np.arange(rows + 1))
    counts = np.diff(starts)[left]
    return np.repeat(np.arange(len(left)), counts), np.repeat(starts[left], counts) + within(counts)


def _by_steps(left: Integers, right: Integers) -> list[tuple[Integers | slice, int, int]]:
    """The places of each pair of numbers that occurs, and the pair."""
    if not len(left):
        return []
    if (left == left[0]).all() and (right == right[0]).all():
        return [(slice(None), int(left[0]), int(right[0]))]
    pairs, which = np.unique(np.stack([left, right]), axis=1, return_inverse=True)
    which = which.ravel()
    return [(np.flatnonzero(which == i), int(pair[0]), int(pair[1])) for i, pair in enumerate(pairs.T)]


def _joined(verdicts: Verdicts, row: Integers, rows: int) -> Verdicts:
    """What is known of rectangles from what is known of the pieces that they are cut into."""
    seen = np.zeros((rows, 4), bool)
    seen[row, verdicts] = True
    mixed = seen[:, Verdict.MIXED] | (seen[:, Verdict.FULL] & seen[:, Verdict.EMPTY])
    result = np.where(seen[:, Verdict.FULL], np.int8(Verdict.FULL), np.int8(Verdict.EMPTY))
    result = np.where(seen[:, Verdict.UNKNOWN], np.int8(Verdict.UNKNOWN), result)
    return np.where(mixed, np.int8(Verdict.MIXED), result)
