"""The pattern: an immutable value that says which query may attend to which key, and its algebra.

A pattern holds no length; the length comes with each question. Three questions can be asked of it: `allows` is the rule
itself; `spans` and `verdict` are cheap summaries over ranges of tokens, from which the compiler finds the tiles worth
keeping without looking at every pair. Spans compose by interval arithmetic and verdicts by three-valued logic, so a
composition is as fast as its parts. Two laws bind them: spans are a superset of what the rule allows, and a verdict
never contradicts it.

A pattern is its text, which holds every argument: two patterns are equal when their texts are, and `parse(p.text) == p`
whatever the defaults are by then, so it is what files hold. `str(p)` is the short form, for people: arguments at their
defaults are left out.
"""

import dataclasses
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asterism.errors import PatternError, shown
from asterism.memo import Derives
from asterism.patterns.intervals import Integers, Intervals

Booleans = NDArray[np.bool_]
Verdicts = NDArray[np.int8]

GREATEST = 2**60
"""The greatest number that a pattern may hold: sums of a few stay within int64."""

MOST_HEADS = 2**12
"""The most heads with patterns of their own: each is compiled by itself."""


class Verdict(IntEnum):
    """Verdict on a rectangle of (query, key) pairs: none allowed, unknown, some but not all, all allowed."""

    EMPTY = 0
    UNKNOWN = 1
    MIXED = 2
    FULL = 3


class Ranges(NamedTuple):
    """Many ranges of tokens, each with its first and its last member.

    first, last  int64 [ranges] each, or of shapes that broadcast: positions
    step         of all of them: 1 for neighbours, s for arithmetic progressions of step s, and 0 when the members
                 between the first and the last are not known
    """

    first: Integers
    last: Integers
    step: int


def verdicts(full: Booleans, empty: Booleans, otherwise: Verdict | Verdicts) -> Verdicts:
    """int8 [...]: FULL and EMPTY where these, bool [...], hold, else `otherwise`."""
    undecided = np.asarray(otherwise, dtype=np.int8)
    return np.where(empty, np.int8(Verdict.EMPTY), np.where(full, np.int8(Verdict.FULL), undecided))


def verdict_not(verdict: Verdicts) -> Verdicts:
    """Kleene negation of int8 [...]: FULL and EMPTY change places."""
    flipped = np.array([Verdict.FULL, Verdict.UNKNOWN, Verdict.MIXED, Verdict.EMPTY], np.int8)
    return flipped[verdict]


def verdict_and(left: Verdicts, right: Verdicts) -> Verdicts:
    """Kleene conjunction of int8 [...]: the lesser; but two mixed rectangles need not share a pair, so they give
    UNKNOWN."""
    both_mixed = (left == Verdict.MIXED) & (right == Verdict.MIXED)
    return np.where(both_mixed, np.int8(Verdict.UNKNOWN), np.minimum(left, right))


class Pattern(Derives, ABC):
    """A rule for who may attend to whom. Subclasses are frozen dataclasses; build them through `asterism.patterns`."""

    keyword: ClassVar[str]
    has_pairs: ClassVar[bool] = True
    """Whether tokens are mixed pair by pair, so that pairs can be dropped and weighed by their distance."""
    text: str
    """The call that builds the pattern, with every argument: what files hold."""
    heads: int
    """1 when all heads share the rule, else how many heads have a rule of their own."""
    crosses: bool
    """Whether the queries are tokens of another sequence than the keys: some part is across(...)."""
    chooses: bool
    """Whether it is only known when queries and keys are: some part is selected(...)."""
    takes_any_query: bool
    """Whether a query may stand at a position that no key has: what it reads needs no place among the keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self._write(in_full=True))
        object.__setattr__(self, "heads", self._count_heads())
        object.__setattr__(self, "crosses", self._goes_across())
        object.__setattr__(self, "chooses", self._depends_on_content())
        object.__setattr__(self, "takes_any_query", self._needs_no_place())

    # --- the questions -------------------------------------------------------------------------------------------

    def allows(self, queries: ArrayLike, keys: ArrayLike, length: int, head: int = 0) -> Booleans:
        """bool [...]: whether each query may attend to each key.

        `queries` and `keys` are integers in [0, length), positions, of any shapes that broadcast to [...].
        """
        q, k = np.broadcast_arrays(np.asarray(queries, np.int64), np.asarray(keys, np.int64))
        return np.broadcast_to(self._allows(q, k, length, head), q.shape)

    def dense(self, n_queries: int, n_keys: int | None = None, query_offset: int | None = None) -> Booleans:
        """The rule as a boolean array [heads, n_queries, n_keys]; True means may attend.

        The queries stand at positions query_offset, query_offset + 1, ...; by default they are the last positions, or
        in cross attention the first ones (`resolve_lengths`). Raises PatternError if a pattern for self-attention gets
        more queries than positions.
        """
        n_keys, query_offset = resolve_lengths(self, n_queries, n_keys, query_offset)
        queries = np.arange(query_offset, query_offset + n_queries)[:, None]
        keys = np.arange(n_keys)[None, :]
        picture = [self.allows(queries, keys, n_keys, head) for head in range(self.heads)]
        return np.stack(picture)

    def spans(self, query_range: tuple[int, int], length: int, head: int = 0) -> Integers:
        """Key intervals [m, 2], half-open, sorted and disjoint, that hold every key readable from the query range."""
        start, stop = query_range
        tokens = Ranges(np.array([start]), np.array([stop - 1]), 1)
        _, starts, stops = self.find_spans(tokens, length, head).triples()
        return np.stack([starts, stops], axis=1)

    def verdict(self, query_range: tuple[int, int], key_range: tuple[int, int], length: int, head: int = 0) -> Verdict:
        """The verdict on the rectangle query_range x key_range, both half-open and not empty."""
        (q_start, q_stop), (k_start, k_stop) = query_range, key_range
        queries = Ranges(np.array([q_start]), np.array([q_stop - 1]), 1)
        keys = Ranges(np.array([k_start]), np.array([k_stop - 1]), 1)
        return Verdict(int(self.judge(queries, keys, length, head)[0]))

    def check_heads(self, heads: int) -> None:
        """Raise PatternError unless the pattern is for one head, which serves all, or for exactly `heads` heads."""
        if self.heads not in (1, heads):
            raise PatternError(
                "pattern-heads",
                f"{self} is for {self.heads} heads, but the attention has {heads}: make them equal",
            )

    # --- what each kind of pattern answers, for many ranges at once -------------------------------------------------

    @abstractmethod
    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        """The rule on two int64 arrays of one shape."""

    @abstractmethod
    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        """int8 [...]: a verdict for each pair of ranges, of shapes that broadcast to [...]."""

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        """Per range of queries, intervals that hold every readable key."""
        return Intervals.everything(len(q.first), length)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        """Per range of queries, intervals that hold every key that some query of the range may *not* read."""
        return Intervals.everything(len(q.first), length)

    def signature(self, q: Ranges, k: Ranges) -> Integers | None:
        """int64 [...]: a number per pair of tiles, given as ranges that broadcast to [...]. Tiles of equal shape and
        number have equal masks. None if the pattern has no such numbers."""
        return None

    @property
    def children(self) -> tuple["Pattern", ...]:
        """The patterns that this one is made of."""
        return ()

    def rebuild(self, children: tuple["Pattern", ...]) -> "Pattern":
        """The same composition with other parts."""
        return self

    @property
    def is_causal(self) -> bool:
        """True when the pattern provably reads no future: every allowed key has k <= q."""
        return False

    def unstable_part(self) -> "Pattern | None":
        """The part whose answer for a fixed pair (q, k) can change as the sequence grows; None when there is none."""
        parts = (child.unstable_part() for child in self.children)
        return next((part for part in parts if part is not None), None)

    @property
    def depends_on_length(self) -> bool:
        """False when the pattern provably gives a pair (q, k) the same answer in sequences of any length."""
        return self.unstable_part() is not None

    def walk(self) -> Iterator["Pattern"]:
        """This pattern and everything it is made of, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    # --- the value -----------------------------------------------------------------------------------------------

    def _write(self, in_full: bool) -> str:
        """The call that builds the pattern: with every argument, or with those that are not at their defaults."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        arguments = {f.name: (getattr(self, f.name), f.default) for f in fields}
        told = {name: value for name, (value, default) in arguments.items() if in_full or value != default}
        return write_call(self.keyword, told, in_full)

    def _count_heads(self) -> int:
        counts = sorted({child.heads for child in self.children} - {1})
        if len(counts) > 1:
            raise PatternError(
                "heads-differ", f"{self} combines patterns of {counts[0]} and {counts[1]} heads: use equal numbers"
            )
        return counts[0] if counts else 1

    def _goes_across(self) -> bool:
        return any(child.crosses for child in self.children)

    def _depends_on_content(self) -> bool:
        return any(child.chooses for child in self.children)

    def _needs_no_place(self) -> bool:
        return bool(self.children) and all(child.takes_any_query for child in self.children)

    def __str__(self) -> str:
        return self._write(in_full=False)

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __or__(self, other: "Pattern") -> "Pattern":
        return Or(_flatten(Or, (self, other))) if isinstance(other, Pattern) else NotImplemented

    def __and__(self, other: "Pattern") -> "Pattern":
        return And(_flatten(And, (self, other))) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> "Pattern":
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise PatternError(
            "pattern-truth-value",
            f"the pattern {self} has no truth value, so `and`, `or` and `not` do not work: write p & q, p | q and ~p",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Pattern):
    """Several patterns joined by | or &. What is a union for the one is an intersection for the other's complement."""

    parts: tuple[Pattern, ...]

    @staticmethod
    @abstractmethod
    def join(left: Any, right: Any) -> Any:
        """The operator, on patterns and on intervals."""

    @staticmethod
    @abstractmethod
    def dual(left: Any, right: Any) -> Any:
        """The other operator: what it makes of the complements is the complement of what `join` makes."""

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return reduce(self.join, [part.find_spans(q, length, head) for part in self.parts])

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return reduce(self.dual, [part.find_complement_spans(q, length, head) for part in self.parts])

    @property
    def children(self) -> tuple[Pattern, ...]:
        return self.parts

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return reduce(self.join, children)


@dataclass(frozen=True, eq=False, repr=False)
class Or(Combination):
    """A pair is allowed when any part allows it, and is attended to once."""

    @staticmethod
    def join(left: Any, right: Any) -> Any:
        return left | right

    @staticmethod
    def dual(left: Any, right: Any) -> Any:
        return left & right

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return reduce(np.logical_or, (part._allows(q, k, length, head) for part in self.parts))

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return verdict_not(reduce(verdict_and, [verdict_not(part.judge(q, k, length, head)) for part in self.parts]))

    @property
    def is_causal(self) -> bool:
        return all(part.is_causal for part in self.parts)

    def _write(self, in_full: bool) -> str:
        return " | ".join(write_part(part, in_full) for part in self.parts)


@dataclass(frozen=True, eq=False, repr=False)
class And(Combination):
    """A pair is allowed when every part allows it."""

    @staticmethod
    def join(left: Any, right: Any) -> Any:
        return left & right

    @staticmethod
    def dual(left: Any, right: Any) -> Any:
        return left | right

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return reduce(np.logical_and, (part._allows(q, k, length, head) for part in self.parts))

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return reduce(verdict_and, [part.judge(q, k, length, head) for part in self.parts])

    @property
    def is_causal(self) -> bool:
        return any(part.is_causal for part in self.parts)

    def _write(self, in_full: bool) -> str:
        texts = [write_part(part, in_full) for part in self.parts]
        return " & ".join(
            f"({text})" if isinstance(part, Or) else text for part, text in zip(self.parts, texts, strict=True)
        )


@dataclass(frozen=True, eq=False, repr=False)
class Not(Pattern):
    """A pair is allowed when the part forbids it."""

    part: Pattern

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return ~self.part._allows(q, k, length, head)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return verdict_not(self.part.judge(q, k, length, head))

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self.part.find_complement_spans(q, length, head)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self.part.find_spans(q, length, head)

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.part,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return ~children[0]

    def __invert__(self) -> Pattern:
        return self.part

    def _write(self, in_full: bool) -> str:
        text = write_part(self.part, in_full)
        return f"~({text})" if isinstance(self.part, (Or, And)) else f"~{text}"


class Follower(Pattern):
    """A pattern that answers as another one does."""

    @abstractmethod
    def _followed(self, head: int) -> Pattern:
        """Whose answers this head gives."""

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return self._followed(head)._allows(q, k, length, head)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return self._followed(head).judge(q, k, length, head)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self._followed(head).find_spans(q, length, head)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self._followed(head).find_complement_spans(q, length, head)


@dataclass(frozen=True, eq=False, repr=False)
class PerHead(Follower):
    """Head h follows the h-th part."""

    keyword: ClassVar[str] = "per_head"
    patterns: tuple[Pattern, ...]

    def _followed(self, head: int) -> Pattern:
        return self.patterns[head]

    def _count_heads(self) -> int:
        return len(self.patterns)

    @property
    def children(self) -> tuple[Pattern, ...]:
        return self.patterns

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return PerHead(children)

    @property
    def is_causal(self) -> bool:
        return all(part.is_causal for part in self.patterns)


class Moved(Pattern):
    """A pattern whose part counts positions from another place: inside, position 0 names another token."""

    def _needs_no_place(self) -> bool:
        return False


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(Moved):
    """The pattern on the tokens from `by` on, its position 0; earlier tokens neither read nor are read."""

    keyword: ClassVar[str] = "shifted"
    pattern: Pattern
    by: int

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        inside = (q >= self.by) & (k >= self.by)
        if not inside.any():
            return inside
        q, k = np.maximum(q - self.by, 0), np.maximum(k - self.by, 0)
        return inside & self.pattern._allows(q, k, length - self.by, head)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        outside = (q.last < self.by) | (k.last < self.by)
        if outside.all():
            return np.zeros(outside.shape, np.int8)
        straddles = (q.first < self.by) | (k.first < self.by)
        inner = self.pattern.judge(self._inner(q), self._inner(k), length - self.by, head)
        inner = np.where(straddles & (inner != Verdict.EMPTY), np.int8(Verdict.UNKNOWN), inner)
        return np.where(outside, np.int8(Verdict.EMPTY), inner)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        inside = np.flatnonzero(q.last >= self.by)
        if length <= self.by or not len(inside):
            return Intervals.nothing(len(q.first), length)
        tokens = Ranges(q.first[inside], q.last[inside], q.step)
        row, start, stop = self.pattern.find_spans(self._inner(tokens), length - self.by, head).triples()
        return Intervals.build(inside[row], start + self.by, stop + self.by, len(q.first), length)

    def _inner(self, tokens: Ranges) -> Ranges:
        step = tokens.step if tokens.step == 1 or (tokens.first >= self.by).all() else 0
        return Ranges(np.maximum(tokens.first - self.by, 0), np.maximum(tokens.last - self.by, 0), step)

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.pattern,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return Shifted(children[0], self.by)

    @property
    def is_causal(self) -> bool:
        return self.pattern.is_causal


@dataclass(frozen=True, eq=False, repr=False)
class Named(Follower):
    """A composition with a name: `body` is its meaning, `parts` are its factors.

    `call` is its text, `short_call` the short form for people.
    """

    call: str
    short_call: str
    body: Pattern
    parts: tuple[Pattern, ...]

    def _followed(self, head: int) -> Pattern:
        return self.body

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.body,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return children[0]

    @property
    def is_causal(self) -> bool:
        return self.body.is_causal

    def _write(self, in_full: bool) -> str:
        return self.call if in_full else self.short_call


# --- helpers ---------------------------------------------------------------------------------------------------------


def resolve_lengths(pattern: Pattern, n_queries: int, n_keys: int | None, query_offset: int | None) -> tuple[int, int]:
    """n_keys and query_offset with their defaults: as many keys as queries, and the last positions.

    Queries of another sequence, and more queries than keys, begin at 0. Raises PatternError for negative lengths, and
    for queries beyond the positions of the keys where the pattern needs theirs among them.
    """
    n_keys = n_queries if n_keys is None else n_keys
    if n_queries < 0 or n_keys < 0:
        raise PatternError("negative-length", f"lengths must not be negative: {n_queries=}, {n_keys=}")
    offset = default_offset(pattern.crosses, n_queries, n_keys) if query_offset is None else query_offset
    if offset < 0 or offset + n_queries > (2**31 if pattern.takes_any_query else n_keys):
        raise PatternError(
            "queries-beyond-positions",
            f"{n_queries} queries do not fit among {n_keys} positions (first query at {offset}): queries are"
            " positions of the same sequence as the keys; queries of another sequence need across(pattern, step=...)"
            " or dense()",
        )
    return n_keys, offset


def default_offset(crosses: bool, n_queries: int, n_keys: int) -> int:
    """The position of the first query where none is given; `crosses` is the pattern's."""
    return 0 if crosses or n_queries > n_keys else n_keys - n_queries


def named(
    function: Callable[..., Pattern], arguments: Mapping[str, object], body: Pattern, parts: tuple[Pattern, ...]
) -> Named:
    """The composition that a function makes of these arguments, all that it has: numbers and tuples of them."""
    name, parameters = function.__name__, inspect.signature(function).parameters
    told = {name: value for name, value in arguments.items() if value != parameters[name].default}
    return Named(write_call(name, arguments, True), write_call(name, told, False), body, parts)


def write_call(name: str, arguments: Mapping[str, object], in_full: bool) -> str:
    """The text of a call with keyword arguments; `in_full` is about the patterns among them."""
    return f"{name}({', '.join(f'{key}={_write_value(value, in_full)}' for key, value in arguments.items())})"


def write_part(part: Pattern, in_full: bool) -> str:
    """What a pattern's text holds for a part of it."""
    return part.text if in_full else str(part)


def _write_value(value: object, in_full: bool) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_write_value(item, in_full) for item in value)}{',' if len(value) == 1 else ''})"
    return write_part(value, in_full) if isinstance(value, Pattern) else repr(value)


def check_integer(call: str, name: str, value: object, minimum: int | None = None, maximum: int = GREATEST) -> int:
    """`value` as an int from `minimum` to `maximum`, or a PatternError that names the argument and the rule."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise PatternError("not-a-whole-number", f"{call}: {name} must be a whole number, got {shown(value)}")
    number = operator.index(value)
    if minimum is not None and number < minimum:
        raise PatternError("below-minimum", f"{call}: {name} must be at least {minimum}, got {shown(number)}")
    if not -maximum <= number <= maximum:
        least = -maximum if minimum is None else minimum
        seen = shown(number) if number.bit_length() > 256 else f"{number:,}"
        raise PatternError("out-of-range", f"{call}: {name} must be from {least:,} to {maximum:,}, got {seen}")
    return number


def check_pattern(call: str, name: str, value: object) -> Pattern:
    """`value`, or a PatternError when it is not a pattern."""
    if not isinstance(value, Pattern):
        raise PatternError("not-a-pattern", f"{call}: {name} must be a pattern, got {shown(value)}")
    return value


def _flatten(kind: type[Or] | type[And], patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    return tuple(part for p in patterns for part in (p.parts if isinstance(p, kind) else (p,)))
