"""Which pattern at which layer and head: the three ways of Child 2019, section 5.1.

Interleaved: layers take turns (SEQUENTIAL in Yun 2020). Merged: one head reads the union (UNION). Split over heads:
groups of heads follow different patterns (MULTIHEAD). Merging and splitting give patterns; only interleaving needs to
know the layer.
"""

from dataclasses import dataclass

from asterism.errors import PatternError
from asterism.patterns.pattern import Pattern, check_integer, check_pattern
from asterism.patterns.primitives import per_head


@dataclass(frozen=True)
class Schedule:
    """Layer i follows pattern i modulo the number of patterns."""

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        if not self.patterns:
            raise PatternError("a schedule needs at least one pattern, got none")

    @property
    def period(self) -> int:
        """After how many layers the patterns repeat."""
        return len(self.patterns)

    def layer(self, number: int) -> Pattern:
        """The pattern of a layer, counted from 0."""
        return self.patterns[number % len(self.patterns)]

    def __str__(self) -> str:
        if len(self.patterns) == 1:
            return self.patterns[0].text
        return f"interleave({', '.join(pattern.text for pattern in self.patterns)})"


def interleave(*patterns: Pattern) -> Schedule:
    """Layers take turns: `interleave(a, b, b)` gives a, b, b, a, b, b, ... Raises PatternError without patterns."""
    return Schedule(tuple(check_pattern("interleave", "every argument", pattern) for pattern in patterns))


def merge(*patterns: Pattern) -> Pattern:
    """One head reads the union of the patterns. Raises PatternError without patterns."""
    if not patterns:
        raise PatternError("merge: at least one pattern is needed, got none")
    merged = check_pattern("merge", "every argument", patterns[0])
    for pattern in patterns[1:]:
        merged = merged | check_pattern("merge", "every argument", pattern)
    return merged


def split_heads(*patterns: Pattern, heads: int) -> Pattern:
    """The heads in as many equal groups as there are patterns, one pattern each.

    Raises PatternError when `heads` is not a multiple of the number of patterns.
    """
    heads = check_integer("split_heads", "heads", heads, 1)
    if not patterns or heads % len(patterns):
        raise PatternError(f"split_heads: {heads} heads cannot be split evenly over {len(patterns)} patterns")
    return per_head([pattern for pattern in patterns for _ in range(heads // len(patterns))])
