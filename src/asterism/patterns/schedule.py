"""Schedules: the pattern, or transform, of each layer and head (Child 2019, section 5.1).

Interleaved: layers take turns (SEQUENTIAL in Yun 2020). Merged: one head reads the union (UNION). Split over heads:
groups of heads follow different patterns (MULTIHEAD). Merging and splitting give patterns; only interleaving needs to
know the layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from asterism.errors import PatternError
from asterism.patterns.pattern import MOST_HEADS, Pattern, check_integer, check_pattern
from asterism.patterns.primitives import per_head


class Transform(ABC):
    """What mixes tokens in place of attention, without a pattern: every token reads every other."""

    has_pairs: ClassVar[bool] = False
    is_causal: ClassVar[bool] = False
    depends_on_length: ClassVar[bool] = False  # each row is transformed at its own length anyway

    @property
    @abstractmethod
    def text(self) -> str:
        """As a schedule has it."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """What it does, for people: "mixes all tokens by ..."."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Fourier(Transform):
    """Fourier mixing (Lee-Thorp 2021)."""

    text = "fourier()"
    meaning = "mixes all tokens by a Fourier transform (Lee-Thorp 2021)"


@dataclass(frozen=True)
class Linear(Transform):
    """A matrix over tokens and one over features (Lee-Thorp 2021): learned, or random and fixed."""

    learned: bool = True
    meaning = "mixes all tokens by a matrix (Lee-Thorp 2021)"

    @property
    def text(self) -> str:
        return "linear()" if self.learned else "linear(learned=False)"


Mixer = Pattern | Transform
"""What mixes the tokens of a layer."""


@dataclass(frozen=True)
class Schedule:
    """Mixers of the layers: layer i has mixer i modulo their number. Raises PatternError without mixers."""

    mixers: tuple[Mixer, ...]

    def __post_init__(self) -> None:
        if not self.mixers:
            raise PatternError("schedule-empty", "a schedule needs at least one pattern, got none")

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The mixers, all of them patterns. Raises PatternError for a schedule with a transform."""
        patterns = tuple(mixer for mixer in self.mixers if isinstance(mixer, Pattern))
        if len(patterns) < len(self.mixers):
            raise PatternError(
                "transform-not-a-pattern",
                f"{self}: {self.transforms[0]} is not a pattern; only Asterism's own models support it",
            )
        return patterns

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The mixers that are no patterns."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, Transform))

    @property
    def period(self) -> int:
        """Number of layers after which the mixers repeat."""
        return len(self.mixers)

    def layer(self, number: int) -> Mixer:
        """The mixer of a layer, counted from 0."""
        return self.mixers[number % len(self.mixers)]

    @property
    def text(self) -> str:
        """The schedule with every argument of its patterns, as files store it."""
        return _write([mixer.text for mixer in self.mixers])

    def __str__(self) -> str:
        return _write([str(mixer) for mixer in self.mixers])


def _write(mixers: Sequence[str]) -> str:
    return mixers[0] if len(mixers) == 1 else f"interleave({', '.join(mixers)})"


def interleave(*mixers: Mixer) -> Schedule:
    """Let layers take turns: `interleave(a, b, b)` gives a, b, b, a, b, b, ... Raises PatternError without mixers."""
    for mixer in mixers:
        if not isinstance(mixer, Transform):
            check_pattern("interleave", "every argument", mixer)
    return Schedule(mixers)


def merge(*patterns: Pattern) -> Pattern:
    """Let each head read the union of the patterns. Raises PatternError without patterns."""
    if not patterns:
        raise PatternError("merge-empty", "merge: at least one pattern is needed, got none")
    merged = check_pattern("merge", "every argument", patterns[0])
    for pattern in patterns[1:]:
        merged = merged | check_pattern("merge", "every argument", pattern)
    return merged


def split_heads(*patterns: Pattern, heads: int) -> Pattern:
    """Divide the heads into equal groups, one for each pattern.

    Raises PatternError when `heads` is not a multiple of the number of patterns.
    """
    heads = check_integer("split_heads", "heads", heads, 1, MOST_HEADS)
    if not patterns or heads % len(patterns):
        raise PatternError(
            "split-heads-unevenly", f"split_heads: {heads} heads cannot be split evenly over {len(patterns)} patterns"
        )
    return per_head([pattern for pattern in patterns for _ in range(heads // len(patterns))])
