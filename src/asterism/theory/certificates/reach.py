"""Which tokens a token depends on after t layers.

    S_k^1 = A_k^1,    S_k^t = the union of S_j^(t-1) over j in A_k^(((t-1) mod p) + 1)        (Yun 2020, Assumption 1)

where A^1, ..., A^p are the patterns of the cycle in the order of the layers. A block of keys is followed through the
layers at a time, one bit per (query, key), so memory is O(n x block) and never n x n. A run of consecutive keys costs
two look-ups in a table of unions over 2^i neighbours, however long it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import cycle
from operator import or_

import numpy as np
from numpy.typing import NDArray

from asterism.theory.certificates.graph import Booleans, Graph, Integers
from asterism.theory.certificates.witnesses import Never, Reach

Bits = NDArray[np.uint64]

BLOCK = 1024
"""Keys followed at a time: 16 words per query."""

_GATHERED = 2**16
"""Words looked up at a time: half a megabyte, which the cache of a core holds."""

_FEW = 8
"""Up to so many rows of the table per query are united one after the other, for all queries at once."""


class Layer:
    """One layer of attention on bits: the new bits of query q are the union of the bits of the keys that q reads.

    Row i * n + k of the table of unions holds the union of the bits of keys k, ..., k + 2^i - 1. A run is the union of
    two such rows, or of one if its length is a power of two.
    """

    def __init__(self, graph: Graph) -> None:
        query, start, stop = graph.runs
        level = np.frexp(stop - start)[1].astype(np.int64) - 1
        second = stop - (1 << level)
        rows = np.stack([level * graph.n + start, level * graph.n + second], axis=1)
        needed = np.stack([np.ones(len(start), bool), second > start], axis=1)
        self.n, self.levels = graph.n, int(level.max(initial=0)) + 1
        self.rows = rows[needed]
        self.counts = np.bincount(query, needed.sum(axis=1), graph.n).astype(np.int64)
        self.offsets = np.append(0, np.cumsum(self.counts))

    def __call__(self, bits: Bits) -> Bits:
        """Bits [n, words] after the layer from those before it; a query that reads nothing has none."""
        table = np.empty((self.levels, *bits.shape), np.uint64)
        table[0] = bits
        for level in range(1, self.levels):
            half = 1 << (level - 1)
            np.bitwise_or(table[level - 1, :-half], table[level - 1, half:], out=table[level, :-half])
            table[level, -half:] = table[level - 1, -half:]
        table = table.reshape(-1, bits.shape[1])
        if self.counts.min() > 0 and self.counts.max() <= _FEW:
            return self._unite_few(table)
        result = np.zeros_like(bits)
        readers = np.flatnonzero(self.counts)
        words = self.rows.size * bits.shape[1]
        for some in np.array_split(readers, min(len(readers), -(-words // _GATHERED)) or 1):
            if some.size:
                first, last = self.offsets[some[0]], self.offsets[some[-1] + 1]
                result[some] = np.bitwise_or.reduceat(table[self.rows[first:last]], self.offsets[some] - first, axis=0)
        return result

    def _unite_few(self, table: Bits) -> Bits:
        """The same when every query needs a few rows of the table."""
        result = np.take(table, self.rows[self.offsets[:-1]], axis=0)
        for place in range(1, int(self.counts.max())):
            result |= np.take(table, self.rows[self.offsets[:-1] + np.minimum(place, self.counts - 1)], axis=0)
        return result


def propagate(layers: Sequence[Layer], keys: Integers) -> Iterator[Bits]:
    """Bits uint64 [n, words] after layer 1, 2, ...: bit j of row q says whether q depends on keys[j]. Without end."""
    bits = own_bits(layers[0].n, keys)
    for layer in cycle(layers):
        bits = layer(bits)
        yield bits


def propagate_union(layer: Layer, keys: Integers) -> Iterator[Bits]:
    """The same bits [n, words] for one layer repeated, where every token also keeps the bits it has. Without end."""
    bits = own_bits(layer.n, keys)
    while True:
        bits = bits | layer(bits)
        yield bits


def own_bits(n: int, keys: Integers) -> Bits:
    """Bits uint64 [n, words] before the first layer: only token keys[j] has bit j; `keys` is int64 [keys]."""
    bits, place = np.zeros((n, -(-len(keys) // 64)), np.uint64), np.arange(len(keys))
    bits[keys, place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
    return bits


def full_row(keys: int) -> Bits:
    """The bits of a query that depends on all of `keys` keys, uint64 [words]."""
    row = np.full(-(-keys // 64), ~np.uint64(0))
    if keys % 64:
        row[-1] = (np.uint64(1) << np.uint64(keys % 64)) - np.uint64(1)
    return row


def find_reach(graphs: Sequence[Graph]) -> Reach:
    """The exact number of layers to full reach of a cycle of patterns, or a proof that no number suffices.

    Always decided when every token reads itself in every pattern, as reach then only grows. Otherwise layers are
    followed until they repeat, and no decision comes when that takes more than `_PATIENCE * n` cycles, or when n is
    above BLOCK, the cycle has several patterns and a query reads nothing in one of them.
    """
    n = graphs[0].n
    grows = all(graph.loops.all() for graph in graphs)
    lasts = all(graph.out_degrees.all() for graph in graphs)  # full reach, once there, stays
    if not lasts and len(graphs) == 1:
        return Reach(n, None, None, find_never(graphs), True, (graphs[0].edges / n**2,))
    if not lasts and n > BLOCK:
        return Reach(n, None, None, find_never(graphs), False, ())
    layers = [Layer(graph) for graph in graphs]
    blocks = [_follow(layers, np.arange(start, min(start + BLOCK, n)), grows) for start in range(0, n, BLOCK)]
    fractions = _fractions(blocks, n, grows)
    if all(block.hops for block in blocks):
        last = max(blocks, key=lambda block: block.hops or 0)
        return Reach(n, last.hops, last.straggler, None, False, fractions)
    return Reach(n, None, None, find_never(graphs), any(block.repeats for block in blocks), fractions)


_PATIENCE = 8


@dataclass(frozen=True)
class _Followed:
    """What came of following a block of keys: layers to full reach, or whether the bits repeat without it."""

    hops: int | None
    straggler: tuple[int, int] | None
    repeats: bool
    pairs: tuple[int, ...]


def _follow(layers: Sequence[Layer], keys: Integers, grows: bool) -> _Followed:
    """Follow a block until reach is full or the bits at the end of a cycle were there before (Brent's algorithm)."""
    n, period = layers[0].n, len(layers)
    full, pairs = full_row(len(keys)), []
    # Brent: `kept` is renewed at cycles 1, 2, 4, ..., so one state is enough to meet a repetition of any length.
    kept = before = own_bits(n, keys)
    renewal = 1
    for number, bits in enumerate(propagate(layers, keys), start=1):
        pairs.append(int(np.bitwise_count(bits).sum()))
        if pairs[-1] == n * len(keys):
            return _Followed(number, _first_gap(before, full, keys), False, tuple(pairs))
        before, cycles = bits, number // period
        if number % period:
            continue
        if np.array_equal(bits, kept):
            return _Followed(None, None, True, tuple(pairs))
        if cycles > _PATIENCE * max(n, 64) and not grows:
            return _Followed(None, None, False, tuple(pairs))
        if grows or cycles == renewal:
            kept, renewal = bits, 2 * cycles
    raise AssertionError("propagate is endless")


def _first_gap(bits: Bits, full: Bits, keys: Integers) -> tuple[int, int]:
    """The first query that does not depend on all keys, and the first key it lacks."""
    query = int(np.argmax((bits != full).any(axis=1)))
    present = np.unpackbits(bits[query].view(np.uint8), bitorder="little")[: len(keys)]
    return query, int(keys[np.argmin(present)])


def _fractions(blocks: Sequence[_Followed], n: int, grows: bool) -> tuple[float, ...]:
    """The share of pairs connected after each layer; a block that has settled keeps its last count."""
    settled = [block for block in blocks if block.hops or grows]
    moving = [len(block.pairs) for block in blocks if not (block.hops or grows)]
    count = min(moving) if moving else max(len(block.pairs) for block in settled)
    sums = np.zeros(count)
    for block in blocks:
        pairs = np.asarray(block.pairs[:count], float)
        sums += np.pad(pairs, (0, count - len(pairs)), mode="edge")
    return tuple((sums / n**2).tolist())


def find_never(graphs: Sequence[Graph]) -> Never | None:
    """A pair that is never connected in any cycle of the graphs; without such a pair, None."""
    # Two closures decide for all pairs: if token 0 depends on all and all depend on token 0, every pair is connected
    # through it.
    union = reduce(or_, graphs)
    sources = closure(union, 0)
    if not sources.all():
        return Never(0, int(np.argmin(sources)), sources)
    dependants = closure(union.transposed, 0)
    if dependants.all():
        return None
    query = int(np.argmin(dependants))
    return Never(query, 0, closure(union, query))


def closure(graph: Graph, token: int) -> Booleans:
    """The tokens at the ends of all paths of at least one edge from `token`, bool [n]."""
    found = np.zeros(graph.n, bool)
    frontier = np.array([token])
    while frontier.size:
        _, start, stop = graph.runs_of(frontier)
        # Runs are marked at their ends and summed, so a frontier costs its runs and n, not its edges, of which a dense
        # pattern has n^2.
        changes = np.bincount(start, minlength=graph.n + 1) - np.bincount(stop, minlength=graph.n + 1)
        frontier = np.flatnonzero((np.cumsum(changes)[: graph.n] > 0) & ~found)
        found[frontier] = True
    return found


def first_layers(graphs: Sequence[Graph], cells: int, layers: int) -> Integers:
    """The layer, counted from 1, after which every pair of a cell is connected; 0 if not within `layers` layers.

    The n x n pairs are cut into at most cells x cells squares; int64 [cells, cells], queries down, keys across.
    """
    n = graphs[0].n
    side = -(-n // cells)
    count = -(-n // side)
    steps = [Layer(graph) for graph in graphs]
    result = np.zeros((count, count), np.int64)
    per_block = max(1, BLOCK // side)
    for first in range(0, count, per_block):
        columns = slice(first, min(first + per_block, count))
        keys = np.arange(first * side, min((first + per_block) * side, n))
        for number, bits in zip(range(1, layers + 1), propagate(steps, keys), strict=False):
            rows = np.bitwise_and.reduceat(bits, np.arange(0, n, side), axis=0)
            present = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")[:, : len(keys)]
            whole = np.logical_and.reduceat(present, np.arange(0, len(keys), side), axis=1)
            result[:, columns][whole & (result[:, columns] == 0)] = number
            if result[:, columns].all():
                break
    return result
