"""What attention over a sharded sequence takes on devices that are not there: bytes, messages, work, memory, time.

The plans are those that `communicate` weighs. Where a plan would list too many intervals for all ranks, it is made for
a few of them, the first, the last and some between, which is said. Work is estimated from what sampled queries read.

Time is a simple model. Exchange: the bytes of the busiest rank over the bandwidth of its link, and a latency for each
collective and each message. Computation: the FLOPs of the longest rank at one rate. Keys that travel alone, and shards
in the ring, come while a rank computes with what it has, so the longer of the two counts; an all-gather, and an
exchange for heads or residues, comes before anything can be computed, so their sum does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asterism.compiler.devices import ByHeads, ByRows, Communication, Ring
from asterism.compiler.devices.communicate import BY_PATTERN, listed_at_most, offered
from asterism.compiler.devices.communication import TokenPlace
from asterism.compiler.devices.needs import QueryRuns, Term, named_keys, needed, strides, terms
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape
from asterism.compiler.devices.ways.heads import no_ulysses
from asterism.patterns.intervals import Integers, covered_below
from asterism.patterns.pattern import Pattern
from asterism.patterns.text import parse

_CELLS = 2**22
"""Intervals that plans of all ranks may list; beyond, a few ranks stand for all."""

_RANKS, _QUERIES = 5, 16
"""Ranks that are sampled, and queries of each."""

_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples modulo 1 fill the range evenly."""


@dataclass(frozen=True)
class Machine:
    """What devices and links do. Bytes a second are those of one device in one direction.

    flops    FLOP/s that attention kernels reach, by bytes of a number
    inside   bytes a second between devices of a node, of which there are `node`
    between  bytes a second where a sequence lies on more than one node
    latency  seconds for each collective, `message` for each message of it
    """

    flops: tuple[tuple[int, float], ...] = ((2, 400e12), (4, 50e12), (8, 30e12))
    inside: float = 450e9
    between: float = 50e9
    node: int = 8
    latency: float = 10e-6
    message: float = 0.5e-6

    def exchange(self, moved: int, messages: int, collectives: int, devices: int) -> float:
        """Seconds to move so many bytes to or from the busiest rank."""
        link = self.inside if devices <= self.node else self.between
        return moved / link + collectives * self.latency + messages * self.message


H100 = Machine()
"""About an H100: 40% of its 989 TFLOP/s in 16 bits, NVLink within nodes of 8, one 400 Gb/s adapter a device between."""


@dataclass(frozen=True)
class Way:
    """What one layer takes forward, in one way to bring queries and keys together: that of the rank that has most.

    name      "by pattern", "all-gather", "ring" or "Ulysses"
    refusal   why it cannot be; then all numbers are 0
    received  bytes that come to a rank
    moved     the greater of what comes and what leaves; of sampled ranks, what comes
    messages  that a rank sends; of sampled ranks, that it gets
    flops     of products: 4 times features times pairs
    keys      bytes of keys and values that a rank holds at one time
    """

    name: str
    refusal: str = ""
    received: int = 0
    moved: int = 0
    messages: int = 0
    flops: float = 0
    keys: int = 0
    exchange_seconds: float = 0
    compute_seconds: float = 0
    seconds: float = 0


@dataclass(frozen=True)
class DeviceSimulation:
    """All ways for one pattern, length and number of devices.

    sampled  the ranks that stand for all in the plan by pattern; empty where all were planned
    shares   the kinds of shares in the plan by pattern
    """

    pattern: str
    length: int
    devices: int
    sampled: tuple[int, ...]
    shares: tuple[str, ...]
    ways: tuple[Way, ...]

    def way(self, name: str) -> Way:
        """The way of that name."""
        return next(way for way in self.ways if way.name == name)

    @property
    def fastest(self) -> str:
        """The name of the way that takes least time; of those that take the same, least memory."""
        return min((way for way in self.ways if not way.refusal), key=lambda way: (way.seconds, way.keys)).name


def simulate(
    pattern: Pattern | str, length: int, devices: int, shape: RowShape, machine: Machine = H100
) -> DeviceSimulation:
    """One layer of self-attention over `length` tokens in even shards on so many devices, forward."""
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    shards = Shards.even(length, devices)
    found = terms(pattern, length)
    some = np.unique(np.linspace(0, devices - 1, _RANKS).astype(np.int64))
    place = TokenPlace(shards, shards, 0, shape, tuple(some.tolist()) if listed_at_most(found, shards) > _CELLS else ())
    plan = min(offered(place, pattern, found, BY_PATTERN), key=place.moved)
    work = _work(found, pattern.heads, shards, some, plan)
    model = _Model(place, machine)
    ways = [model.way("by pattern", plan, work.by_pattern, waits=any(not isinstance(x, ByRows) for x in plan.ways))]
    ring, heads = (Communication(pattern, shards, shards, (share(pattern),)) for share in (Ring, ByHeads))
    ways.append(model.way("all-gather", ring, work.of_shards, waits=True, keys=length * shape.key))
    ways.append(model.way("ring", ring, work.of_shards, waits=False))
    reason = no_ulysses(devices, shape)
    ways.append(Way("Ulysses", reason) if reason else model.way("Ulysses", heads, work.even, waits=True))
    kinds = tuple(type(share).__name__ for share in plan.ways)
    return DeviceSimulation(str(pattern), length, devices, place.sample, kinds, tuple(ways))


@dataclass(frozen=True)
class _Model:
    """From plans to bytes and seconds."""

    place: TokenPlace
    machine: Machine

    def way(self, name: str, plan: Communication, pairs: float, *, waits: bool, keys: int | None = None) -> Way:
        """`pairs`: those of a head that the longest rank computes; `waits`: whether it needs all that comes first."""
        shape, ranks = self.place.shape, list(range(plan.devices))
        forward, messages = plan.traffic(shape), plan.traffic(shape).messages
        moved = forward.most
        if name == "by pattern" and self.place.sample:
            # Who sends to ranks that were not planned is not known; who sends to those that were is.
            ranks, each_way = (
                list(self.place.sample),
                list(plan.collectives(shape)),
            )
            messages = sum((each.sources for each in each_way), np.zeros(plan.devices, np.int64))
            moved = self.place.moved(plan)
        collectives = sum(1 for each in plan.collectives(shape) if each.forward.most)
        collectives = plan.devices - 1 if name == "ring" else collectives
        most_messages = int(messages[ranks].max())
        flops = 2 * (shape.key_dim + shape.value_dim) * pairs * shape.heads * shape.batch
        exchange = self.machine.exchange(moved, most_messages, collectives, plan.devices) if moved else 0.0
        compute = flops / dict(self.machine.flops)[shape.itemsize]
        return Way(
            name=name,
            received=int(forward.received[ranks].max()),
            moved=moved,
            messages=most_messages,
            flops=flops,
            keys=int(plan.memory(shape)[ranks].max()) if keys is None else keys,
            exchange_seconds=exchange,
            compute_seconds=compute,
            seconds=exchange + compute if waits else max(exchange, compute),
        )


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a head that the longest rank computes.

    by_pattern  where the queries that ask are shared out by keys
    of_shards   where every rank computes its own queries
    even        where all pairs are shared out evenly
    """

    by_pattern: float
    of_shards: float
    even: float


def _work(found: Sequence[Term], heads: int, shards: Shards, ranks: Integers, plan: Communication) -> _Pairs:
    asking = np.concatenate([np.zeros((0, 2), np.int64), *(x.asking for x in plan.ways if isinstance(x, ByRows))])
    bounds = np.array(shards.bounds)
    asked = np.diff(covered_below(asking[:, 0], asking[:, 1], bounds))[ranks]
    sizes = np.array(shards.sizes)[ranks]
    # One in each of equal stretches of a rank's queries, at uneven places, as equal ones may all begin a block.
    place = (np.arange(_QUERIES) + np.arange(1, _QUERIES + 1) * _GOLDEN % 1) / _QUERIES
    at = bounds[ranks][:, None] + (place * sizes[:, None]).astype(np.int64)
    queries, rank = np.unique(at.ravel(), return_index=True)
    rank = rank // _QUERIES
    free = covered_below(asking[:, 0], asking[:, 1], queries + 1) == covered_below(asking[:, 0], asking[:, 1], queries)
    reads = _reads(found, heads, queries[free], shards.length)
    total, count = np.bincount(rank[free], reads, len(ranks)), np.bincount(rank[free], minlength=len(ranks))
    own = total / np.maximum(count, 1) * (sizes - asked)
    everything = float((asking[:, 1] - asking[:, 0]).sum()) * shards.length
    if any(not isinstance(share, ByRows) for share in plan.ways):  # residues share pairs out evenly
        by_pattern = own.mean() + everything / shards.devices
    else:
        by_pattern = own.max() + everything / shards.devices
    even = own.mean() + everything / shards.devices
    return _Pairs(float(by_pattern), float((own + asked * shards.length).max()), float(even))


def _reads(found: Sequence[Term], heads: int, queries: Integers, length: int) -> NDArray[np.float64]:
    """How many keys each query reads, averaged over the first head and the last.

    Exact but for strides and sets of keys: where several of these allow a key, each counts it.
    """
    singles = QueryRuns(queries, queries + 1, np.arange(len(queries)), len(queries))
    counts = []
    for head in sorted({0, heads - 1}):
        own = [term for term in found if head in term.heads]
        scattered = [term for term in own if strides(term.rule) or list(named_keys(term.rule, length))]
        near = needed([term for term in own if term not in scattered], singles, length)
        row, start, stop = near.triples()
        count = np.bincount(row, stop - start, len(queries))
        for term in scattered:
            spans = term.rule.find_spans(singles.ranges, length, head) & near.complement()
            row, start, stop = spans.triples()
            read = (stop - start) / max(strides(term.rule), default=1)
            for starts, stops in named_keys(term.rule, length):
                read = np.minimum(read, covered_below(starts, stops, stop) - covered_below(starts, stops, start))
            count = count + np.bincount(row, read, len(queries))
        counts.append(count)
    return np.mean(counts, axis=0)
