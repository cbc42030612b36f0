"""Rewrites a pattern on a part of a sequence as a pattern of the part's own indices, where possible.

Then a part has plans as good as those of the whole: its unions have terms, keys that all read are gathered, and a
window over neighbours is a window. Of `window(left=2) | global_keys(5)`, queries 8 to 11 and keys 4 to 11 are numbers
0 to 3 and 0 to 7: the window reads the keys from 2 to 4 numbers after the query's, and the global key is number 1.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from asterism.compiler.layout import Classes, Sorted, Tiles
from asterism.memo import cached_property
from asterism.patterns.documents import Documents
from asterism.patterns.intervals import Integers
from asterism.patterns.part import Part
from asterism.patterns.pattern import GREATEST, And, Booleans, Not, Or, Pattern, Ranges
from asterism.patterns.primitives import Causal, Dense, KeySet, OneSided, QuerySet, Stride, Window
from asterism.patterns.runs import Runs


def asked_of(around: Part, inner: Pattern) -> Pattern:
    """`inner` asked of the queries and keys of a part, with every leaf by itself, as rules of their numbers."""
    match inner:
        case Or() | And() | Not():
            return inner.rebuild(tuple(asked_of(around, child) for child in inner.children))
        case Dense():
            return inner  # whatever the query
        case KeySet():
            return KeysOfPart(inner, around.length, around.keys)
        case QuerySet():
            return QueriesOfPart(inner, around.length, around.queries)
        case Causal() if around.queries == around.keys:
            return inner  # numbers ascend as positions do
        case Window() | Causal() | Stride():
            found = _stride(around, inner.period) if isinstance(inner, Stride) else _neighbours(around, inner)
            return around.rebuild((inner,)) if found is None else found
        case Documents():
            return _in_documents(around, inner)
        case _:
            return around.rebuild((inner,))


def _in_documents(around: Part, inner: Documents) -> Pattern:
    """The rule of the one document that the part is of; else a leaf in documents is a leaf of the sequence, and the key
    in the same document as the query."""
    # Documents of 5 and 6 tokens: a part of positions 6 to 9 is of the second one alone, where they are 1 to 4.
    starts, stops = inner.bounds
    first = min(int(runs.start[:1].sum()) for runs in (around.queries, around.keys))
    own = int(np.searchsorted(stops, first, side="right"))
    if own < len(starts) and starts[own] <= first and max(around.queries.past, around.keys.past) <= stops[own]:
        begin, size = int(starts[own]), int(stops[own] - starts[own])
        return asked_of(
            Part(inner.pattern, size, around.queries.moved(-begin), around.keys.moved(-begin)), inner.pattern
        )
    match inner.pattern:
        case Or() | And() as joined:
            return joined.rebuild(tuple(_in_documents(around, Documents(one, inner.sizes)) for one in joined.parts))
        case Not(part=negated):
            return _same_document(around, inner) & ~_in_documents(around, Documents(negated, inner.sizes))
        case Window() | Causal() as invariant:
            return _same_document(around, inner) & asked_of(around, invariant)
        case KeySet():
            return _same_document(around, inner) & KeysOfPart(inner, around.length, around.keys)
        case QuerySet():
            return _same_document(around, inner) & QueriesOfPart(inner, around.length, around.queries)
        case _:
            return around.rebuild((inner,))


def _same_document(around: Part, inner: Documents) -> Pattern:
    return around.rebuild((Documents(Dense(), inner.sizes),))


def _neighbours(around: Part, inner: Window | Causal) -> Pattern | None:
    """The rule for distances between numbers; None where there is no such rule."""
    least, most = (-inner.right, inner.left) if isinstance(inner, Window) else (0, GREATEST)
    progressions = _progressions(around)
    if progressions is None:
        return None
    apart, step = progressions
    # The distance of query number i and key number j is apart + (i - j) * step. Of queries 0, 2, 4 and keys 1, 3, 5 it
    # is -1 + 2 (i - j), so that window(left=3, right=0), distances 0 to 3, allows i - j from 1 to 2.
    low, high = -((apart - least) // step), (most - apart) // step
    return Window(high, -low) if low <= high else ~Dense()


def _stride(around: Part, period: int) -> Pattern | None:
    progressions = _progressions(around)
    if progressions is not None:
        apart, step = progressions
        # A multiple of the step plus `apart` is one of the period.
        return Stride(period // math.gcd(step, period)) if apart % period == 0 else None
    if around.queries == around.keys and around.keys.comb is not None:
        width, between = around.keys.comb
        # Stretches of `width` residues, one after another: tokens of one residue are `width` numbers apart.
        return Stride(width) if between == period else None
    return None


def _progressions(around: Part) -> tuple[int, int] | None:
    """(distance between the first query and the first key, step) where both are progressions of one step."""
    queries, keys = around.queries, around.keys
    if len(queries.start) != 1 or len(keys.start) != 1:
        return None
    # A single token is a progression of any step.
    steps = {int(runs.step[0]) for runs in (queries, keys) if len(runs) > 1} or {1}
    return (int(queries.start[0] - keys.start[0]), steps.pop()) if len(steps) == 1 else None


@dataclass(frozen=True, eq=False, repr=False)
class _OfPart(Pattern):
    """A one-sided rule, or one in documents, asked of the tokens of a part by their numbers.

    inner   the rule, of positions
    whole   how many tokens the sequence has
    tokens  at which positions the tokens of the part stand
    """

    inner: Pattern
    whole: int
    tokens: Runs

    def contains(self, tokens: Integers, length: int) -> Booleans:
        places = self.tokens.places(tokens)
        if isinstance(self.inner, OneSided):
            return self.inner.contains(places, self.whole)
        # A token belongs to the set of its document whatever the other side is, the token itself for one.
        return self.inner._allows(places, places, self.whole, 0)

    def count_below(self, tokens: Integers, length: int) -> Integers:
        return np.searchsorted(self.members(length), tokens)

    def members(self, length: int) -> Integers:
        return self._members

    @cached_property
    def _members(self) -> Integers:
        numbers = np.arange(len(self.tokens))
        return numbers[self.contains(numbers, len(numbers))] if len(numbers) else numbers

    def _write(self, in_full: bool) -> str:
        if not in_full:
            return str(self.inner)  # for people, to whom thousands of runs say nothing
        return f"{self.inner.text} among {self.whole} at {self.tokens.text}"


class KeysOfPart(_OfPart, KeySet):
    """Keys of a part that all its queries read."""

    def signature(self, q: Ranges, k: Ranges) -> Integers | None:
        """int64 [...]: as that of a pattern, for pairs of tiles of a part."""
        if len(self.tokens.start) != 1:
            return None
        return self.inner.signature(q, Ranges(self.tokens.places(k.first), self.tokens.places(k.last), 0))


class QueriesOfPart(_OfPart, QuerySet):
    """Queries of a part that read all its keys."""


# --- layouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SortedPart(Sorted):
    """The queries and keys of a part in the order in which they stand in one of the whole."""

    whole: Sorted
    part: Part

    @property
    def text(self) -> str:
        return self.whole.text

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        runs = self.part.keys if are_keys else self.part.queries
        return self.whole.sorted_by(runs.places(positions), self.part.length, are_keys)

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        queries = replace(queries, positions=self.part.queries.places(queries.positions))
        keys = replace(keys, positions=self.part.keys.places(keys.positions))
        return self.whole.candidates(rule, queries, keys, rows, self.part.length, head)


@dataclass(frozen=True)
class ResiduesOfPart(Classes):
    """Tokens of a part sorted by the residue of where they stand; only for rules that imply stride(period) there.

    With documents, they are sorted by document, and in each by residue.
    """

    asked: Runs
    read: Runs
    period: int
    documents: Documents | None = None

    @property
    def text(self) -> str:
        return f"residues modulo {self.period}" + (" in documents" if self.documents is not None else "")

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        places = (self.read if are_keys else self.asked).places(positions)
        if self.documents is None:
            return places % self.period
        # Documents of 5 and 6 tokens, modulo 3: the classes are 3 4 5 3 4 and 6 7 8 6 7 8; below 3, of no document.
        starts, _ = self.documents.bounds
        document = np.searchsorted(starts, places, side="right")
        return document * self.period + (places - np.append(0, starts)[document]) % self.period

    @property
    def steps(self) -> tuple[int, int]:
        return self._apart(self.asked), self._apart(self.read)

    @property
    def step_in_class(self) -> int:
        return self._apart(self.asked) if len(self.asked.start) == 1 else 0  # no progression goes on in the next run

    def _apart(self, runs: Runs) -> int:
        """How far apart the numbers of a residue's tokens are within a run, where all runs have one step."""
        steps = set(runs.step.tolist())
        return self.period // math.gcd(self.period, steps.pop()) if len(steps) == 1 else 0
