"""Trees of tokens: each token reads its ancestors and itself, along its own path from the root.

Sequences with a common beginning, laid into one row with that beginning once, are such a tree; so are drafts of what
may follow a prompt. On a path, tokens are numbered from the root, and another pattern may say which of its ancestors a
token reads: then distances are those along the path, and every path is read as if it were alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.patterns.forest import Forest, Path
from asterism.patterns.intervals import Integers, Intervals, once
from asterism.patterns.pattern import (
    Booleans,
    Moved,
    Pattern,
    Ranges,
    Verdict,
    Verdicts,
    check_integer,
    check_pattern,
    verdict_and,
    verdicts,
    write_call,
)
from asterism.patterns.primitives import Causal, Dense, mixed_if_contiguous

_MOST_TOKENS = 2**27
"""A few characters can ask for any number."""

_MOST_CHAINS = 2**22
"""Each chain is written in the text, and has an entry in tables."""


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Moved):
    """Token q reads token k if k is q or an ancestor of q, and `pattern` allows their depths."""

    keyword: ClassVar[str] = "tree"
    forest: Forest
    pattern: Pattern

    @property
    def size(self) -> int:
        return self.forest.size

    @property
    def _reads_whole_path(self) -> bool:
        # No ancestor is deeper than its descendant.
        return isinstance(self.pattern, Causal | Dense)

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        self._check(length)
        # Queries and keys come repeated against each other; each is looked up once.
        queries, keys = once(q) if q.size else q, once(k) if k.size else k
        known = np.minimum(queries, self.size - 1)  # a query of another sequence may stand beyond the tree
        number, key_number = self.forest.number(known), self.forest.number(keys)
        found = (key_number <= number) & (number < key_number + self.forest.count(keys)) & (queries < self.size)
        result: Booleans = np.broadcast_to(found, q.shape)
        if self._reads_whole_path or not result.any():
            return result
        result = result.copy()
        at = np.flatnonzero(result)
        query_depth = np.broadcast_to(self.forest.depth(known), q.shape).flat[at]
        key_depth = np.broadcast_to(self.forest.depth(keys), q.shape).flat[at]
        result.flat[at] = self.pattern._allows(query_depth, key_depth, self.forest.height, head)
        return result

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        self._check(length)
        q_first, q_last, k_first, k_last = (
            array.copy() for array in np.broadcast_arrays(q.first, q.last, k.first, k.last)
        )
        beyond = q_last >= self.size
        outside = q_first >= self.size
        q_first, q_last = np.minimum(q_first, self.size - 1), np.minimum(q_last, self.size - 1)
        if not self.forest.is_depth_first:
            none = outside | (k_first > q_last)
            return verdicts(np.zeros_like(none), none, Verdict.UNKNOWN)
        result = self._judge_path(Ranges(q_first, q_last, q.step), Ranges(k_first, k_last, k.step), beyond, outside)
        if self._reads_whole_path:
            return result
        # Depths of a range are known where it lies in one chain.
        start = self.forest.chain_start
        chains = (start(q_last) <= q_first) & (start(k_last) <= k_first)
        result = np.where(chains | (result == Verdict.EMPTY), result, np.int8(Verdict.UNKNOWN))
        at = np.flatnonzero(chains & (result != Verdict.EMPTY))
        depth = self.forest.depth
        queries = Ranges(depth(q_first.flat[at]), depth(q_last.flat[at]), q.step)
        keys = Ranges(depth(k_first.flat[at]), depth(k_last.flat[at]), k.step)
        inner = self.pattern.judge(queries, keys, self.forest.height, head)
        result.flat[at] = verdict_and(result.flat[at], inner)
        return result

    def _judge_path(self, q: Ranges, k: Ranges, beyond: Booleans, outside: Booleans) -> Verdicts:
        """Who is an ancestor, in depth-first order, for ranges of one shape.

        `beyond` and `outside` say that the last and the first query are not in the tree.
        """
        forest = self.forest
        past_last = k.last + forest.count(k.last)
        # All keys are ancestors of all queries: then they are a chain, and the last one's subtree holds the queries.
        full = ~beyond & (k.last <= q.first) & (q.last < past_last) & (forest.chain_start(k.last) <= k.first)
        # Keys before the queries that some of these reads are ancestors of the first one, and the last of these up to
        # k.last is where the paths of both part.
        common = forest.nearest_common(np.minimum(k.last, q.first), q.first)
        none = outside | (k.first > q.last) | ((k.last < q.first) & (common < k.first))
        return verdicts(full, none, mixed_if_contiguous(q, k))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        self._check(length)
        rows = len(q.first)
        some = np.flatnonzero(q.first < self.size)
        first, last = q.first[some], np.minimum(q.last[some], self.size - 1)
        if self.forest.is_depth_first and self._reads_whole_path:
            # An ancestor of a query is one of the first query, or stands behind it.
            path = self.forest.paths(first)
            row = np.concatenate([some[path.of], some])
            return Intervals.build(row, np.append(path.first, first), np.append(path.stop, last + 1), rows, length)
        row, chain = Intervals.one_each(
            self.forest.chain(first), self.forest.chain(last) + 1, len(self.forest.starts)
        ).points()
        ends = np.append(self.forest.starts[1:], self.size)
        begin, end = np.maximum(first[row], self.forest.starts[chain]), np.minimum(last[row], ends[chain] - 1)
        path = self.forest.paths(end)
        if not self._reads_whole_path:
            path = self._within(path, begin, end, head)
        return Intervals.build(some[row[path.of]], path.first, path.stop, rows, length)

    def _within(self, path: Path, begin: Integers, end: Integers, head: int) -> Path:
        """Those segments of paths, cut, that may be read from the queries `begin` to `end`, each in one chain."""
        height = self.forest.height
        depths = Ranges(self.forest.depth(begin), self.forest.depth(end), 1)
        piece, low, high = self.pattern.find_spans(depths, height, head).triples()
        high = np.minimum(high, depths.last[piece] + 1)
        piece, low, high = (x[low < high] for x in (piece, low, high))
        # Segments by path, and in it by depth, so that an interval of depths is a run of segments. A hull comes first.
        depth = np.maximum(path.depth, 0)
        order = np.argsort(path.of * height + depth, kind="stable")
        of, first, stop, known = (column[order] for column in path)
        codes = (path.of * height + depth)[order]
        from_, to = (np.searchsorted(codes, piece * height + x, side="right") - 1 for x in (low, high - 1))
        which, segment = Intervals.one_each(from_, to + 1, len(codes)).points()
        base, is_hull = known[segment], known[segment] < 0
        begins = first[segment] + np.maximum(low[which] - base, 0)
        ends = np.minimum(stop[segment], first[segment] + high[which] - base)
        begins, ends = np.where(is_hull, 0, begins), np.where(is_hull, stop[segment], ends)
        return Path(of[segment], begins, ends, base)

    def signature(self, q: Ranges, k: Ranges) -> Integers:
        """Tiles that lie in one chain with all between them are alike; others are each of its kind."""
        first, last = np.minimum(q.first, k.first), np.maximum(q.last, k.last)
        known = np.minimum(last, self.size - 1)
        alike = (last < self.size) & (self.forest.chain_start(known) <= first)
        alone = 2**40 + np.arange(alike.size).reshape(alike.shape)
        if self._reads_whole_path:
            return np.where(alike, q.first - k.first, alone)
        depth = self.forest.depth
        inside = [np.where(alike, x, 0) for x in (q.first, q.last, k.first, k.last)]
        of_depths = self.pattern.signature(
            Ranges(depth(inside[0]), depth(inside[1]), q.step), Ranges(depth(inside[2]), depth(inside[3]), k.step)
        )
        if of_depths is None:
            return alone
        both = np.stack([np.broadcast_to(of_depths, alike.shape).ravel(), (q.first - k.first).ravel()])
        numbers = np.unique(both, axis=1, return_inverse=True)[1].reshape(alike.shape)
        return np.where(alike, numbers, alone)

    def last_reader(self, keys: Integers) -> Integers:
        """int64 [...]: the last token of each key's subtree, or a later one; -1 for a key beyond the tree."""
        inside = keys < self.size
        known = np.where(inside, keys, 0)
        last = known + self.forest.count(known) - 1 if self.forest.is_depth_first else self.size - 1
        return np.where(inside, last, -1)

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.pattern,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return Tree(self.forest, children[0])

    @property
    def is_causal(self) -> bool:
        return True  # parents come first

    def unstable_part(self) -> Pattern | None:
        return None  # patterns of paths do not depend on the length

    def _write(self, in_full: bool) -> str:
        arguments: dict[str, object] = {"parents": self.forest.text, "size": self.size, "pattern": self.pattern}
        if not in_full and self.pattern == Causal():
            del arguments["pattern"]
        return write_call(self.keyword, arguments, in_full)

    def _check(self, length: int) -> None:
        if length > self.size:
            raise PatternError(
                "tree-length",
                f"tree: got {length} positions, but the tree has {self.size} tokens: give the parents of all tokens",
            )


def tree(parents: object, size: int | None = None, pattern: Pattern | None = None) -> Pattern:
    """Let each token read its ancestors and itself, or those of them that `pattern` allows along the path.

    `parents` holds the parent of each token, an integer array [tokens]: smaller than the token's own position, or -1
    for a root; several roots are several trees, none of which reads another. Or it is the text form, which lists the
    tokens whose parent is not the token before, with that parent: of 16 tokens, "8:3;12:3" are two branches of four
    tokens, which continue token 3 as tokens 4 to 7 do. A text needs `size`, the number of tokens.

    `pattern` is asked about depths, the numbers of ancestors: `tree(parents, pattern=window(left=2))` reads the token,
    its parent and the parent's parent. By default it is `causal()`, all ancestors. In `tree(parents) & window(left=2)`
    distances are those in the row instead.

    The pattern serves sequences of at most `size` tokens. The order may be any in which parents come first; in
    depth-first order, in which each subtree is a run of tokens, it compiles fastest.

    Raises PatternError for a parent that is not before its token (a cycle), or below -1, anything but whole numbers in
    one dimension, a tree of no token, of more than 2**27, or of more than 2**22 branches, and for a pattern that
    depends on the length or is for cross attention.
    """
    if isinstance(parents, str):
        forest = _read(parents, size)
    else:
        array = read_parents(parents)
        if size is not None and check_integer("tree", "size", size, 1) != len(array):
            raise PatternError("tree-size", f"tree: size is {size}, but parents has {len(array)} tokens")
        forest = Forest.of_parents(array)
    if (chains := len(forest.starts)) > _MOST_CHAINS:
        raise PatternError(
            "tree-branches",
            f"tree: {chains:,} branches are more than the limit of {_MOST_CHAINS:,}; put the tokens in depth-first"
            " order, or divide the trees among several rows",
        )
    return along_paths(forest, Causal() if pattern is None else pattern)


def along_paths(forest: Forest, pattern: Pattern) -> Pattern:
    """The trees of a forest whose paths each follow a pattern. Raises PatternError for a pattern that paths cannot."""
    return Tree(forest, _check_path_pattern(pattern))


def parents_in_row(parents: object, cu_seqlens: Sequence[int]) -> Integers:
    """Parents for a row of several trees, from parents that count from the first token of each tree.

    `parents` is as in `tree`, int [tokens], for all trees one after another; `cu_seqlens`, [trees + 1], are the borders
    of the trees, from 0 to the number of tokens. Returns int64 [tokens].

    >>> parents_in_row([-1, 0, 0, -1, 0], [0, 3, 5]).tolist()
    [-1, 0, 0, -1, 3]

    Raises PatternError as `tree` does, for each tree by itself, and for borders that do not divide the tokens.
    """
    found = _whole_numbers(parents)
    bounds = [check_integer("parents_in_row", "cu_seqlens", bound, 0) for bound in cu_seqlens]
    if bounds[:1] != [0] or bounds[-1] != len(found) or sorted(bounds) != bounds:
        raise PatternError(
            "tree-borders",
            f"parents_in_row: cu_seqlens must ascend from 0 to the number of tokens, {len(found)}, got"
            f" {shown(cu_seqlens)}",
        )
    first = np.repeat(np.array(bounds[:-1], np.int64), np.diff(bounds))
    _check_order(found, np.arange(len(found)) - first)
    return np.where(found < 0, -1, found + first)


def read_parents(parents: object) -> Integers:
    """The parents of a tree's tokens as int64 [tokens], checked. Raises PatternError as `tree` does."""
    found = _whole_numbers(parents)
    _check_order(found, np.arange(len(found)))
    return found


def _whole_numbers(parents: object) -> Integers:
    try:
        array = np.asarray(parents)
    except (TypeError, ValueError):  # a tensor on another device; lists of unequal lengths
        raise _unreadable(f"{type(parents).__name__} that NumPy cannot read; is it on the CPU?") from None
    if array.ndim != 1 or not len(array):
        raise _unreadable(f"an array of {array.dtype} with shape {list(array.shape)}")
    if not np.issubdtype(array.dtype, np.integer):
        raise _unreadable(f"an array of {array.dtype}")
    if len(array) > _MOST_TOKENS:
        raise _too_long(len(array))
    return array.astype(np.int64)


def _check_order(parents: Integers, places: Integers) -> None:
    if wrong := np.flatnonzero((parents >= places) | (parents < -1))[:1].tolist():
        token, parent = wrong[0], int(parents[wrong[0]])
        raise PatternError(
            "tree-parent",
            f"tree: the parent of a token must be before it, or -1 for a root, so that there is no cycle; token {token}"
            f" has the parent {parent}",
        )


def _check_path_pattern(pattern: Pattern) -> Pattern:
    part = check_pattern("tree", "pattern", pattern).unstable_part()
    if part is not None or pattern.crosses:
        reason = "is for cross attention" if part is None else f"depends on the length ({part})"
        raise PatternError(
            "tree-path-pattern",
            f"tree: a path has no length of its own, so its pattern must be prefix-stable; {pattern} {reason}",
        )
    return pattern


def _read(text: str, size: int | None) -> Forest:
    if size is None:
        raise PatternError("tree-size", "tree: parents as a text need size, the number of tokens")
    size = check_integer("tree", "size", size, 1)
    if size > _MOST_TOKENS:
        raise _too_long(size)
    starts, above = [0], [-1]
    try:
        for entry in filter(None, text.split(";")):
            start, parent = entry.split(":")
            starts.append(int(start))
            above.append(int(parent))
    except ValueError:
        raise PatternError(
            "tree-text", f'tree: the text must list tokens and parents as "token:parent;...", got {text[:40]!r}'
        ) from None
    if any(not before < start < size for before, start in zip(starts, starts[1:], strict=False)):
        raise PatternError(
            "tree-text", f"tree: the tokens in the text must ascend and be from 1 to {size - 1}, got {text[:40]!r}"
        )
    if wrong := next(((one, up) for one, up in zip(starts, above, strict=True) if not -1 <= up < one), None):
        raise PatternError(
            "tree-parent",
            f"tree: the parent of a token must be before it, or -1 for a root, so that there is no cycle; token"
            f" {wrong[0]} has the parent {shown(wrong[1])}",
        )
    # A token whose parent is the one before belongs to the chain, whatever the text says: equal trees have one text.
    parts = np.array(starts, np.int64), np.array(above, np.int64)
    opens = (parts[1] != parts[0] - 1) | (parts[0] == 0)
    return Forest(parts[0][opens], parts[1][opens], size)


def _unreadable(seen: str) -> PatternError:
    return PatternError(
        "tree-form",
        f"tree: expected the parent of each token, whole numbers [tokens] of at least one token, or a text, got {seen}",
    )


def _too_long(tokens: int) -> PatternError:
    return PatternError(
        "tree-tokens", f"tree: {tokens:,} tokens are more than the limit of {_MOST_TOKENS:,}: divide them among rows"
    )
