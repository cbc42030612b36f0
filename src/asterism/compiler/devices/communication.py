"""The communication plan: who sends which rows to whom, so that every query reaches the keys it may read.

A rule is divided among ways to bring queries and keys together. No pair is in two parts, so their results merge exactly
by log-sum-exp, as those of a plan's passes do. Every way is a sequence of all-to-alls of rows. Backward, the gradients
of the same rows go back the same ways, and where a row went to several devices they are added at its owner; but round
the ring keys and values go a second time, so that no device keeps those of others, and their gradients with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from asterism.compiler.devices.needs import Term
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import Collective, RowShape, Traffic
from asterism.memo import Derives
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern


class Way(Protocol):
    """How queries and keys of a part of a rule come together: a frozen value, whose class has a file in `ways/`.

    pattern              that part of the rule
    ignores_the_pattern  whether it moves what any pattern would
    """

    ignores_the_pattern: ClassVar[bool]

    @property
    def pattern(self) -> Pattern: ...

    @classmethod
    def offers(cls, place: "TokenPlace", pattern: Pattern, found: Sequence[Term]) -> "Iterator[tuple[Way, ...]]":
        """What this way can do of a pattern whose terms are `found`: each an alternative, of one or several ways."""
        ...

    def collectives(self, plan: "Communication", shape: RowShape) -> Iterator[Collective]:
        """The all-to-alls, in order, for rows of this shape; empty ones among them."""
        ...

    def held(self, plan: "Communication", shape: RowShape) -> Integers:
        """int64 [devices]: bytes of keys and values that come to each device, besides those of its shard."""
        ...

    def title(self, plan: "Communication") -> str:
        """A description of the rows that move."""
        ...


@dataclass(frozen=True, eq=False)
class Communication(Derives):
    """A plan for all devices to attend by a pattern. Its methods return int64 arrays.

    pattern        the rule, of a sequence of keys.length tokens
    queries, keys  who holds which; equal in self-attention
    ways           how the parts of the rule are computed, one after another; no pair is in two of them
    query_offset   query i stands at position query_offset + i of the keys' sequence
    is_dense       whether no way that uses the pattern moves less than bringing every key to every device

    Where two devices have four tokens each and the rule is window(1, 0), there is one way, `ByRows`, whose `direct` has
    the row of key 3 go from device 0 to device 1. With one head of one feature in float32, `traffic` is 8 bytes (key
    and value) sent by device 0 and received by device 1, and `memory` is [32, 40].
    """

    pattern: Pattern
    queries: Shards
    keys: Shards
    ways: tuple[Way, ...]
    query_offset: int = 0
    is_dense: bool = False

    @property
    def devices(self) -> int:
        return self.keys.devices

    @property
    def ignores_the_pattern(self) -> bool:
        """Whether it moves the same rows for any pattern, because some part uses the ring or moves heads."""
        return any(way.ignores_the_pattern for way in self.ways)

    def collectives(self, shape: RowShape) -> Iterator[Collective]:
        """The all-to-alls of all ways, in order, for rows of this shape; empty ones among them."""
        for way in self.ways:
            yield from way.collectives(self, shape)

    def traffic(self, shape: RowShape) -> Traffic:
        """Rows that each device sends and receives forward."""
        return sum((each.forward for each in self.collectives(shape)), Traffic.none(self.devices))

    def backward(self, shape: RowShape) -> Traffic:
        """Rows that each device sends and receives backward: the gradients of the same rows, in reverse; in the ring,
        the shards again and their gradients."""
        return sum((each.backward for each in self.collectives(shape)), Traffic.none(self.devices))

    def memory(self, shape: RowShape) -> Integers:
        """int64 [devices]: the most bytes of keys and values that each device holds at one time: its shard, and the
        rows it receives for the way that needs the most."""
        own = np.array(self.keys.sizes) * shape.key
        return own + np.max([way.held(self, shape) for way in self.ways] or [np.zeros_like(own)], axis=0)


@dataclass(frozen=True)
class TokenPlace:
    """Where tokens lie, and what their rows take.

    queries, keys  who holds which
    query_offset   query i stands at position query_offset + i of the keys' sequence
    shape          bytes of a row
    sample         the devices that a plan is made for, if not for all; the others get what all get in two hops
    """

    queries: Shards
    keys: Shards
    query_offset: int
    shape: RowShape
    sample: tuple[int, ...] = ()

    @property
    def extent(self) -> int:
        """One past the last position of a query or key."""
        return max(self.keys.length, self.query_offset + self.queries.length)

    def plan(self, pattern: Pattern, *ways: Way) -> Communication:
        """The plan of these ways."""
        return Communication(pattern, self.queries, self.keys, ways, self.query_offset)

    def moved(self, plan: Communication) -> int:
        """The most bytes that a device moves; of a sample, that come to one."""
        traffic = plan.traffic(self.shape)
        return int(traffic.received[list(self.sample)].max()) if self.sample else traffic.most
