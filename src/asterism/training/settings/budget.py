"""How much data an evaluation may score: during a run, at its end, and on request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Example = TypeVar("Example")


@dataclass(frozen=True)
class Budget:
    """The limit of an evaluation.

    limit   so many bytes of a split, or examples, are scored at most, to the next whole row; None for all of them
    spread  whether they are spread evenly over the split; otherwise they are its first
    """

    limit: int | None = None
    spread: bool = False

    def of(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Those of a split's examples that are scored."""
        return examples[self.part(len(examples), len(examples))]

    def part(self, count: int, size: int) -> slice:
        """Which of the `count` rows of a split of `size` bytes, or examples, are scored; at least one.

        100 rows of 1,000 bytes: a limit of 200 gives the first 20, or, spread, rows 0, 5, 10, ..., 95.
        """
        if self.limit is None or not size:
            return slice(None)
        if self.spread:
            return slice(None, None, max(1, -(-size // self.limit)))
        return slice(max(1, count * min(self.limit, size) // size))
