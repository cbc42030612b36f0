"""Keys and values go round from device to device, one shard at a time (Liu et al. 2023, Ring Attention)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.compiler.devices.communication import Communication, TokenPlace
from asterism.compiler.devices.needs import Term
from asterism.compiler.devices.traffic import Collective, RowShape, Traffic
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern


@dataclass(frozen=True)
class Ring:
    """Every device computes its own queries, step by step with the shard of keys that has come to it."""

    pattern: Pattern
    ignores_the_pattern: ClassVar[bool] = True

    @classmethod
    def offers(cls, place: TokenPlace, pattern: Pattern, found: Sequence[Term]) -> Iterator[tuple["Ring"]]:
        """It can always be taken."""
        yield (cls(pattern),)

    def collectives(self, plan: Communication, shape: RowShape) -> Iterator[Collective]:
        """The steps together: in each, every device hands on the shard that it got, and at first its own.

        All shards come by every device but its own; the one that it does not hand on is that of the next. Backward,
        they go round once more, and so do their gradients: a device hands on those of all shards but its own, whose
        come to it last.
        """
        sizes, key = np.array(plan.keys.sizes), shape.key
        some = (sizes > 0).astype(np.int64)
        sent, targets = sizes.sum() - np.roll(sizes, -1), some.sum() - np.roll(some, -1)
        received, sources = sizes.sum() - sizes, some.sum() - some
        gradients = sizes.sum() - np.roll(sizes, 1)
        again = Traffic((sent + received) * key, (received + gradients) * key, targets + sources)
        yield Collective("shards of keys", sent * key, received * key, targets, sources, again)

    def held(self, plan: Communication, shape: RowShape) -> Integers:
        """int64 [devices], bytes: the shard that is computed with, and the next one, which comes meanwhile."""
        sizes, devices = np.array(plan.keys.sizes), np.arange(plan.devices)
        # Row s is the shard that came in step s + 1; of 3 devices: [[size 2, 0, 1], [size 1, 2, 0], [0, 0, 0]].
        steps = np.arange(1, plan.devices + 1)[:, None]
        came = np.where(steps < plan.devices, sizes[(devices - steps) % plan.devices], 0)
        pairs: Integers = (came[:-1] + came[1:]).max(axis=0, initial=0)
        return pairs * shape.key

    def title(self, plan: Communication) -> str:
        """What moves, in words."""
        return "shards of keys go round the ring"
