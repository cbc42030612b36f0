"""Cross attention: the queries are tokens of a decoder, the keys those of a source.

Query i stands at token floor(i * step) of the source, and reads what the inner pattern allows to a query at that
position. The position is never clamped to the source, so the keys of a query depend on the length of the source only if
the inner pattern depends on the length.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import Booleans, Moved, Pattern, Ranges, Verdicts, check_pattern, write_part

_GREATEST_STEP = 2**20
"""The most that a step's numerator and denominator may be: a position times it stays within int64."""


@dataclass(frozen=True, eq=False, repr=False)
class Across(Moved):
    keyword: ClassVar[str] = "across"
    inner: Pattern
    step: Fraction

    def places(self, queries: Integers) -> Integers:
        """int64 [...]: the places in the source at which queries [...] stand."""
        return queries * self.step.numerator // self.step.denominator

    def first_query_from(self, places: Integers) -> Integers:
        """int64 [...]: the first query that stands at each place [...] or after it."""
        return -(-places * self.step.denominator // self.step.numerator)

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        return self.inner._allows(self.places(q), k, length, head)

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        return self.inner.judge(self._placed(q), k, length, head)

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self.inner.find_spans(self._placed(q), length, head)

    def find_complement_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        return self.inner.find_complement_spans(self._placed(q), length, head)

    def signature(self, q: Ranges, k: Ranges) -> Integers | None:
        own = self.inner.signature(self._placed(q), k)
        if own is None or self.step.denominator == 1:
            return own
        # Where the places of a tile lie follows from the first one and from what its floor cut off. Distinct signatures
        # are counted, because the signatures themselves may be too large for a product.
        counted: Integers = np.unique(own, return_inverse=True)[1]
        return counted * self.step.denominator + q.first * self.step.numerator % self.step.denominator

    def _placed(self, queries: Ranges) -> Ranges:
        return Ranges(self.places(queries.first), self.places(queries.last), self._step_of_places(queries.step))

    def _step_of_places(self, step: int) -> int:
        """The step of the places of queries that are `step` apart."""
        apart = step * self.step
        if apart.denominator == 1:
            return int(apart)
        return 1 if apart < 1 else 0  # less than a token apart, they leave out none

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.inner,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return Across(children[0], self.step)

    def _goes_across(self) -> bool:
        return True

    def _needs_no_place(self) -> bool:
        return True

    def _write(self, in_full: bool) -> str:
        whole = self.step.denominator == 1
        step = f", step={self.step if whole else repr(str(self.step))}" if in_full or self.step != 1 else ""
        return f"{self.keyword}({write_part(self.inner, in_full)}{step})"


def across(inner: Pattern, step: int | str | Fraction = 1) -> Pattern:
    """Apply `inner` to cross attention: query i reads as a query at token floor(i * step) of the source.

    `step` is the number of source tokens per decoder token: a whole number, or a fraction such as "3/2". Positions
    beyond the end of the source are not clamped. Raises PatternError for anything but a pattern, for one that contains
    across already, and for a step that is not above 0 or has a numerator or denominator above 2**20.
    """
    if check_pattern("across", "inner", inner).crosses:
        raise PatternError(
            "across-nested", f"across: {inner} already contains across: write one across(...) around one pattern"
        )
    return Across(inner, _read_step(step))


def steps(pattern: Pattern) -> tuple[Fraction, ...]:
    """The steps of every across(...) in a pattern."""
    return tuple(part.step for part in pattern.walk() if isinstance(part, Across))


def queries_to_the_end(pattern: Pattern, n_keys: int) -> int:
    """How many queries stand at tokens of a source of `n_keys`; n_keys where the pattern does not go across."""
    parts = [part for part in pattern.walk() if isinstance(part, Across)]
    return max((int(part.first_query_from(np.array(n_keys))) for part in parts), default=n_keys)


def _read_step(step: object) -> Fraction:
    number: Fraction | None = None
    if isinstance(step, str) and re.fullmatch(r"[0-9]{1,9}(/0*[1-9][0-9]{0,8})?", step):
        number = Fraction(step)
    elif isinstance(step, Fraction):
        number = step
    elif hasattr(step, "__index__") and not isinstance(step, bool | np.bool_):
        number = Fraction(step.__index__())
    if number is None or number <= 0:
        raise PatternError(
            "across-step", f'across: step must be a whole number above 0 or a fraction such as "3/2", got {shown(step)}'
        )
    if max(number.numerator, number.denominator) > _GREATEST_STEP:
        raise PatternError(
            "across-step-size",
            f"across: numerator and denominator of step must be at most {_GREATEST_STEP:,}, got {shown(step)}",
        )
    return number
