"""Shards: the tokens of a sequence that each device holds."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from asterism.errors import PatternError
from asterism.patterns.intervals import Integers


@dataclass(frozen=True)
class Shards:
    """Stretches of a sequence, one after another: device r holds the tokens bounds[r] .. bounds[r + 1] - 1.

    Shards may have any sizes, 0 included. Raises PatternError for bounds that do not begin at 0 or that decrease.
    """

    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        falls = any(past < first for first, past in zip(self.bounds, self.bounds[1:], strict=False))
        if len(self.bounds) < 2 or self.bounds[0] != 0 or falls:
            raise PatternError(
                "shard-bounds", f"shards: bounds must begin at 0 and never decrease, got {list(self.bounds)[:8]}"
            )

    @classmethod
    def even(cls, length: int, devices: int) -> Self:
        """Shards of nearly equal size: the first length % devices shards have one token more."""
        share, more = divmod(length, devices)
        return cls(tuple(device * share + min(device, more) for device in range(devices + 1)))

    @classmethod
    def of_sizes(cls, sizes: tuple[int, ...]) -> Self:
        """Shards of these sizes, in the order of the devices."""
        return cls(tuple(int(bound) for bound in np.cumsum([0, *sizes])))

    @property
    def devices(self) -> int:
        return len(self.bounds) - 1

    @property
    def length(self) -> int:
        """Tokens of all shards together."""
        return self.bounds[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(past - first for first, past in zip(self.bounds, self.bounds[1:], strict=False))

    def range(self, device: int) -> tuple[int, int]:
        """The first token of a device, and one past its last."""
        return self.bounds[device], self.bounds[device + 1]

    def owners(self, positions: Integers) -> Integers:
        """The device that holds each position."""
        return np.searchsorted(np.array(self.bounds[1:]), positions, side="right")
