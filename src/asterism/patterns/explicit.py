"""A custom pattern: a matrix, an edge list, or a text that lists each query's keys."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.patterns.intervals import Integers, Intervals, within
from asterism.patterns.pattern import Booleans, Pattern, Ranges, Verdict, Verdicts, check_integer, write_call

_LONGEST = 2**31
"""The most positions: query * size + key, the code of a pair, stays within int64."""

_MOST_PAIRS = 2**27
"""The most pairs that a text may list, one GiB of codes: a few characters can ask for any number."""


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(Pattern):
    """The pairs whose `codes`, query * size + key, are listed: int64 [pairs], ascending and each once."""

    keyword: ClassVar[str] = "explicit"
    codes: Integers
    size: int

    def __post_init__(self) -> None:
        self.codes.flags.writeable = False
        super().__post_init__()

    def edges(self) -> tuple[Integers, Integers]:
        """Queries and keys of the allowed pairs, int64 [pairs] each, sorted by query and then by key."""
        return self.codes // self.size, self.codes % self.size

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        self._check(length)
        if not len(self.codes):
            return np.zeros(q.shape, bool)
        wanted = q * self.size + k
        at = np.searchsorted(self.codes, wanted)
        return self.codes[np.minimum(at, len(self.codes) - 1)] == wanted

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        self._check(length)
        return np.full(np.broadcast_shapes(q.first.shape, k.first.shape), Verdict.UNKNOWN, np.int8)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        self._check(length)
        queries, keys = self.edges()
        first, stop = np.searchsorted(queries, q.first), np.searchsorted(queries, q.last + 1)
        row, edge = Intervals.one_each(first, stop, len(queries)).points()
        return Intervals.build(row, keys[edge], keys[edge] + 1, len(q.first), length)

    @property
    def is_causal(self) -> bool:
        queries, keys = self.edges()
        return bool((keys <= queries).all())

    def _write(self, in_full: bool) -> str:
        return write_call(self.keyword, {"source": _write_edges(self.codes, self.size), "size": self.size}, in_full)

    def __str__(self) -> str:
        return self.text  # which of many pairs is long: it is written once

    def _check(self, length: int) -> None:
        if length > self.size:
            raise PatternError(
                "explicit-length",
                f"explicit: got {length} positions, but the pattern covers {self.size}: build it for the longest"
                " sequence you use",
            )


def explicit(source: object, size: int | None = None) -> Pattern:
    """Make a custom pattern for sequences of at most `size` tokens.

    `source` is a boolean matrix [size, size] (True at [q, k]: q may attend to k), an integer edge list [m, 2] of
    (query, key) pairs, a scipy sparse matrix whose stored non-zeros are the pairs, or the text form, which lists each
    query's keys as runs: "0:0-3,7;2:1". `size` defaults to the matrix's size or the largest position plus one.
    Raises PatternError when the source is none of these, names positions outside [0, size), or asks for more than 2**31
    positions or 2**27 pairs.
    """
    if isinstance(source, str):
        queries, keys, least = *_read_edges(source), 0
    elif hasattr(source, "tocoo"):
        matrix = source.tocoo()
        stored = matrix.data != 0
        queries, keys, least = matrix.row[stored], matrix.col[stored], max(matrix.shape)
    else:
        queries, keys, least = _edges_of_array(source)
    queries, keys = queries.astype(np.int64), keys.astype(np.int64)
    highest = max(least, int(max(queries.max(initial=-1), keys.max(initial=-1))) + 1)
    size = check_integer("explicit", "size", highest if size is None else size, 0, _LONGEST)
    if len(queries) > _MOST_PAIRS:
        raise _too_many(len(queries))
    if highest > size or min(queries.min(initial=0), keys.min(initial=0)) < 0:
        raise PatternError(
            "explicit-positions",
            f"explicit: positions must be in [0, {size}), got a source that spans {highest} positions",
        )
    return Explicit(np.unique(queries * size + keys), size)


def _edges_of_array(source: object) -> tuple[Integers, Integers, int]:
    try:
        array = np.asarray(source)
    except ValueError:  # lists of unequal lengths, or more of them in each other than NumPy has dimensions
        raise _unreadable("lists that are not rows of one length") from None
    if array.dtype == bool and array.ndim == 2 and array.shape[0] == array.shape[1]:
        queries, keys = np.nonzero(array)
        return queries, keys, len(array)
    if array.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    if array.ndim == 2 and array.shape[1] == 2 and np.issubdtype(array.dtype, np.integer):
        return array[:, 0], array[:, 1], 0
    raise _unreadable(f"an array of {array.dtype} with shape {list(array.shape)}")


def _unreadable(seen: str) -> PatternError:
    return PatternError(
        "explicit-form",
        f"explicit: expected a square boolean matrix, an integer edge list [m, 2], a scipy sparse matrix or a text,"
        f" got {seen}",
    )


def _too_many(pairs: int) -> PatternError:
    return PatternError(
        "too-many-pairs",
        f"explicit: {pairs:,} pairs are more than the limit of {_MOST_PAIRS:,}: compose it from other patterns instead",
    )


def _write_edges(codes: Integers, size: int) -> str:
    """Each query's keys as runs, "query:key-key,key;..."."""
    if not len(codes):
        return ""
    # A run begins where a code does not follow the one before, and where a row does. Of 4 positions, the codes 1 2 3 4
    # 7 are the keys 1 2 3 of query 0 and 0 and 3 of query 1: "0:1-3;1:0,3".
    begins = (np.diff(codes, prepend=-2) > 1) | (codes % size == 0)
    opens = np.flatnonzero(begins)
    query, first = np.divmod(codes[opens], size)
    last = codes[np.append(opens[1:], len(codes)) - 1] % size
    pairs = zip(first.tolist(), last.tolist(), strict=True)
    runs = [str(one) if one == other else f"{one}-{other}" for one, other in pairs]
    rows = np.flatnonzero(np.diff(query, prepend=-1) != 0)
    bounds = zip(query[rows].tolist(), rows.tolist(), [*rows[1:].tolist(), len(runs)], strict=True)
    return ";".join(f"{number}:{','.join(runs[start:stop])}" for number, start, stop in bounds)


def _read_edges(text: str) -> tuple[Integers, Integers]:
    row: list[int] = []
    start: list[int] = []
    stop: list[int] = []
    try:
        for line in filter(None, text.split(";")):
            query, runs = line.split(":")
            for run in runs.split(","):
                first, _, last = run.partition("-")
                row.append(int(query))
                start.append(int(first))
                stop.append(int(last or first) + 1)
    except ValueError:
        raise PatternError(
            "explicit-text", f'explicit: the text must list keys as "query:key-key,key;...", got {text[:40]!r}'
        ) from None
    if furthest := next((place for place in (*row, *start, *stop) if abs(place) > _LONGEST), None):
        raise PatternError(
            "explicit-positions",
            f"explicit: positions must be below {_LONGEST:,}, got {shown(furthest)} in {text[:40]!r}",
        )
    counts = np.asarray(stop, np.int64) - np.asarray(start, np.int64)
    if (counts < 1).any():
        raise PatternError(
            "explicit-run-order", f"explicit: every run must go from a smaller to a larger key, got {text[:40]!r}"
        )
    if (pairs := int(counts.sum())) > _MOST_PAIRS:
        raise _too_many(pairs)
    return np.repeat(np.asarray(row, np.int64), counts), np.repeat(np.asarray(start, np.int64), counts) + within(counts)
