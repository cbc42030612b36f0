"""A part of a sequence, leaf by leaf: most rules, asked of some queries and keys, are rules of their numbers.

Then a part has plans as good as those of the whole: its unions have terms, keys that all read are gathered, and a
window over neighbours is a window.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from asterism.patterns.intervals import Integers
from asterism.patterns.part import Part
from asterism.patterns.pattern import GREATEST, And, Booleans, Not, Or, Pattern, Tokens
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
        case _:
            return around.rebuild((inner,))


def _neighbours(around: Part, inner: Window | Causal) -> Pattern | None:
    """The rule for distances between numbers; None where there is no such rule."""
    least, most = (-inner.right, inner.left) if isinstance(inner, Window) else (0, GREATEST)
    progressions = _progressions(around)
    if progressions is None:
        return None
    apart, step = progressions
    # The distance is `apart` plus a multiple of the step.
    low, high = -((apart - least) // step), (most - apart) // step
    return Window(high, -low) if low <= high else ~Dense()


def _stride(around: Part, period: int) -> Pattern | None:
    progressions = _progressions(around)
    if progressions is not None:
        apart, step = progressions
        # A multiple of the step plus `apart` is one of the period.
        shared = math.gcd(step, period)
        if apart % shared:
            return ~Dense()
        return Stride(period // shared) if apart % period == 0 else None
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
    """A one-sided rule, asked of the tokens of a part by their numbers."""

    inner: OneSided
    whole: int
    tokens: Runs

    def contains(self, tokens: Integers, length: int) -> Booleans:
        return self.inner.contains(self.tokens.places(tokens), self.whole)

    def count_below(self, tokens: Integers, length: int) -> Integers:
        return np.searchsorted(self.members(length), tokens)

    def members(self, length: int) -> Integers:
        return self._members

    @cached_property
    def _members(self) -> Integers:
        numbers = np.arange(len(self.tokens))
        return numbers[self.contains(numbers, len(numbers))] if len(numbers) else numbers

    def _write(self) -> str:
        return f"{self.inner.text} among {self.whole} at {self.tokens.text}"


class KeysOfPart(_OfPart, KeySet):
    """Keys of a part that all its queries read."""

    def signature_of(self, q: Tokens, k: Tokens) -> Integers | None:
        if len(self.tokens.start) != 1:
            return None
        return self.inner.signature(q.first, self.tokens.places(k.first))


class QueriesOfPart(_OfPart, QuerySet):
    """Queries of a part that read all its keys."""
