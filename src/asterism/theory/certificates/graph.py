"""A pattern at one length as a directed graph: an edge q -> k for every key k that query q may read.

The graph is read from the compiled plan, so it holds exactly the pairs that a kernel computes. For each query it keeps
runs of consecutive keys: a row of `dense`, `causal` or `window` is one run. No n x n array is built; memory grows with
the number of runs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from asterism.compiler import Pass, Plan, compile_pattern
from asterism.errors import PatternError
from asterism.patterns import Pattern, require_self_attention
from asterism.patterns.intervals import Intervals, within
from asterism.patterns.selected import require_static

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

MOST_PAIRS = 2**27
"""The most pairs of a plan that are turned into runs one by one: 2 GiB of runs if no two keys are neighbours."""

_CHUNK = 2**21
"""Pairs of tiles unpacked at a time."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Which keys each query reads: row q of `reads` holds q's keys as runs over [0, n)."""

    reads: Intervals

    @classmethod
    def of_pairs(cls, n: int, queries: Integers, keys: Integers) -> "Graph":
        """The graph of a list of pairs, in any order. `queries` and `keys` are int64 [pairs]; repeated pairs count
        once.
        """
        return cls.of_runs(n, queries, keys, keys + 1)

    @classmethod
    def of_runs(cls, n: int, queries: Integers, starts: Integers, stops: Integers) -> "Graph":
        """The graph of runs of keys, int64 [runs] each, in any order.

        A run is clipped to [0, n), and a key that several runs of a query hold counts once.
        """
        return cls(Intervals.build(queries, starts, stops, n, n))

    @property
    def n(self) -> int:
        return self.reads.rows

    @cached_property
    def runs(self) -> tuple[Integers, Integers, Integers]:
        """Query, first key and end of every run, int64 [runs] each, sorted; the end is one past the last key."""
        return self.reads.triples()

    @cached_property
    def offsets(self) -> Integers:
        """Runs offsets[q] : offsets[q + 1] belong to query q, int64 [n + 1]."""
        return np.searchsorted(self.runs[0], np.arange(self.n + 1))

    @cached_property
    def out_degrees(self) -> Integers:
        """The number of keys that each query reads, itself included, int64 [n]."""
        query, start, stop = self.runs
        return np.bincount(query, stop - start, self.n).astype(np.int64)

    @cached_property
    def in_degrees(self) -> Integers:
        """The number of queries that read each key, itself included, int64 [n]."""
        _, start, stop = self.runs
        changes = np.bincount(start, minlength=self.n + 1) - np.bincount(stop, minlength=self.n + 1)
        return np.cumsum(changes)[: self.n]

    @property
    def edges(self) -> int:
        """Pairs allowed, self loops included."""
        return int(self.out_degrees.sum())

    @cached_property
    def loops(self) -> Booleans:
        """Whether each token reads itself, bool [n]."""
        tokens = np.arange(self.n)
        return self.has(tokens, tokens)

    def has(self, queries: Integers | int, keys: Integers | int) -> Booleans:
        """Whether each query reads its key, bool [pairs]; queries and keys may be any arrays that broadcast."""
        starts, stops = self.reads.starts, self.reads.stops
        place = np.asarray(queries, np.int64) * (self.n + 1) + keys
        run = np.searchsorted(starts, place, side="right") - 1
        return (run >= 0) & (place < stops[run] if len(stops) else False)

    def runs_of(self, queries: Integers) -> tuple[Integers, Integers, Integers]:
        """The runs of some queries, int64 [queries], one query after the other.

        Three arrays int64 [runs]: the index into `queries`, first key and end.
        """
        counts = self.offsets[queries + 1] - self.offsets[queries]
        which = np.repeat(np.arange(len(queries)), counts)
        run = np.repeat(self.offsets[queries], counts) + within(counts)
        return which, self.runs[1][run], self.runs[2][run]

    def keys(self, query: int) -> Integers:
        """The keys of a query, int64 [keys], ascending."""
        _, start, stop = self.runs_of(np.array([query]))
        lengths = stop - start
        return np.repeat(start, lengths) + within(lengths)

    def pairs(self) -> tuple[Integers, Integers]:
        """Query and key of every edge, int64 [edges] each, sorted. One entry per edge: for sparse graphs."""
        return self.reads.points()

    def __or__(self, other: "Graph") -> "Graph":
        return Graph(self.reads | other.reads)

    @property
    def complement(self) -> "Graph":
        """The pairs that are not edges, self loops included."""
        return Graph(self.reads.complement())

    def pieces_without(self, removed: Integers) -> Integers:
        """The number of each token's connected piece when edges have no direction and some tokens are removed.

        int64 [removed] -> int64 [n], -1 for tokens that are removed. A run is connected to its query and in itself, so
        one edge per run and one per pair of neighbours are enough.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        left = np.ones(self.n, bool)
        left[removed] = False
        below = np.append(0, np.cumsum(left))  # of the tokens that are left, how many come before each token
        count = int(below[-1])
        query, start, stop = self.runs
        kept = left[query] & (below[stop] > below[start])
        query, start, stop = below[query[kept]], below[start[kept]], below[stop[kept]]
        covering = np.bincount(start, minlength=count + 1) - np.bincount(stop - 1, minlength=count + 1)
        neighbours = np.flatnonzero(np.cumsum(covering)[:count] > 0)
        rows, columns = np.append(query, neighbours), np.append(start, neighbours + 1)
        edges = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(count, count))
        piece = np.full(self.n, -1)
        piece[left] = connected_components(edges, directed=False)[1]
        return piece

    @cached_property
    def transposed(self) -> "Graph":
        """The graph with every edge reversed: who reads each key.

        Going down the queries, a run of readers of k starts where k is read and was not by the query before.
        """
        n, reads = self.n, self.reads
        before = Intervals(reads.starts + n + 1, reads.stops + n + 1, n + 1, n)
        after = Intervals(reads.starts, reads.stops, n + 1, n)
        first_reader, key = (after & before.complement()).points()
        order = np.lexsort((first_reader, key))
        last_reader, ended = (before & after.complement()).points()
        ends = last_reader[np.lexsort((last_reader, ended))]
        return Graph(Intervals.build(key[order], first_reader[order], ends, n, n))

    @cached_property
    def undirected(self) -> "Graph":
        """Every edge in both directions, without self loops."""
        tokens = np.arange(self.n)
        others = Intervals.one_each(np.zeros(self.n, np.int64), tokens, self.n)
        others |= Intervals.one_each(tokens + 1, np.full(self.n, self.n), self.n)
        return Graph((self | self.transposed).reads & others)

    @cached_property
    def hubs(self) -> Integers:
        """Tokens that read all others and are read by all others, int64 [hubs], ascending."""
        others = self.n - 1
        own = self.loops.astype(np.int64)
        return np.flatnonzero((self.out_degrees - own == others) & (self.in_degrees - own == others))


def read_graph(pattern: Pattern, n: int, head: int = 0) -> Graph:
    """The graph of one head of a pattern at length n.

    Raises PatternError if the pattern does not cover n tokens, has queries of another sequence, or allows more
    scattered pairs than fit into memory.
    """
    require_self_attention(pattern, "a certificate, which is about a graph of tokens")
    require_static(pattern, "a certificate")
    plan = compile_pattern(pattern, n)
    scattered = sum(plan.tile**2 * _scattered(part) for part in plan.passes)
    if scattered > MOST_PAIRS:
        raise PatternError(
            "too-many-pairs",
            f"{pattern} at length {n:,} has up to {scattered:,} scattered pairs, more than a graph can hold"
            f" ({MOST_PAIRS:,}): use a shorter length",
        )
    nothing = (np.arange(0),) * 3
    pieces = [
        nothing,
        *(runs for part in plan.passes if head in part.heads for runs in _runs_of_pass(plan, part, head)),
    ]
    query, start, stop = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return Graph.of_runs(n, query, start, stop)


def _scattered(part: Pass) -> int:
    """How many tiles of a pass cannot be taken as one run per query."""
    whole = int(np.count_nonzero(part.kinds == 0)) if part.key_index is None else 0
    return len(part.columns) - whole


def _runs_of_pass(plan: Plan, part: Pass, head: int) -> list[tuple[Integers, Integers, Integers]]:
    """Runs (query, start, stop) of the tiles that a pass keeps for a head; they may touch one another."""
    tile_list, tile_row = part.entries()
    mine = np.ones(len(tile_list), bool) if part.lists == 1 else tile_list == part.heads.index(head)
    whole = mine & (part.kinds == 0) & (part.key_index is None)
    query, has_query = plan.places(part, tile_row[whole], of_queries=True)
    start = np.broadcast_to(part.columns[whole].astype(np.int64)[:, None] * plan.tile, query.shape)[has_query]
    pieces = [(query[has_query], start, np.minimum(start + plan.tile, plan.n_keys))]
    rest = np.flatnonzero(mine & ~whole)
    for chunk in np.array_split(rest, -(-len(rest) * plan.tile**2 // _CHUNK) or 1):
        _, queries, keys = plan.pairs_of(part, chunk)
        merged = Intervals.build(queries, keys, keys + 1, plan.n_queries, plan.n_keys)
        pieces.append(merged.triples())
    return pieces
