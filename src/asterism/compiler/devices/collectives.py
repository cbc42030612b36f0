"""The all-to-alls of each share of a communication plan, counted in closed form: nothing here lists rows.

Backward, the gradients of a collective's rows go back the same ways, so what was sent is received; but the ring goes
round again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import Traffic, Transfers
from asterism.patterns.intervals import Integers, covered_below

_CELLS = 2**22
"""Pairs of ranks counted at a time."""


@dataclass(frozen=True, eq=False)
class Collective:
    """An all-to-all, or several of one kind: int64 [ranks] each.

    sent, received  bytes
    targets         to how many ranks something is sent
    sources         from how many ranks something comes
    again           what moves backward, where it is not the gradients of these rows the other way
    """

    name: str
    sent: Integers
    received: Integers
    targets: Integers
    sources: Integers
    again: Traffic | None = None

    @property
    def forward(self) -> Traffic:
        return Traffic(self.sent, self.received, self.targets)

    @property
    def backward(self) -> Traffic:
        return Traffic(self.received, self.sent, self.sources) if self.again is None else self.again

    @classmethod
    def sparse(cls, name: str, source: Integers, target: Integers, rows: Integers, row: int, ranks: int) -> Self:
        """From a list of how many rows of `row` bytes go from a rank to another; what stays does not travel."""
        kept = (source != target) & (rows > 0)
        pairs, which = np.unique(source[kept] * ranks + target[kept], return_inverse=True)
        moved = np.zeros(len(pairs), np.int64)
        np.add.at(moved, which, rows[kept] * row)
        zero = np.zeros(ranks, np.int64)
        sent, received, targets, sources = zero.copy(), zero.copy(), zero.copy(), zero.copy()
        np.add.at(sent, pairs // ranks, moved)
        np.add.at(received, pairs % ranks, moved)
        np.add.at(targets, pairs // ranks, 1)
        np.add.at(sources, pairs % ranks, 1)
        return cls(name, sent, received, targets, sources)


@dataclass(frozen=True, eq=False)
class Hops:
    """Rows that all ranks get in two hops: an even part to each rank, and from there to all.

    owner, part, count  how many rows of which owner are in which part, one entry for each that has some
    sizes               int64 [ranks], rows of each part
    """

    owner: Integers
    part: Integers
    count: Integers
    sizes: Integers

    @classmethod
    def of(cls, intervals: Integers, shards: Shards) -> Self:
        """For sorted, disjoint intervals of tokens."""
        starts, stops = intervals[:, 0], intervals[:, 1]
        held = covered_below(starts, stops, np.array(shards.bounds))
        parts = np.array(Shards.even(int(held[-1]), shards.ranks).bounds)
        cuts = np.unique(np.concatenate([held, parts]))
        first = cuts[:-1]
        owner = np.searchsorted(held[1:], first, side="right")
        part = np.searchsorted(parts[1:], first, side="right")
        return cls(owner, part, np.diff(cuts), np.diff(parts))

    @property
    def ranks(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """Rows of all parts together."""
        return int(self.sizes.sum())

    def owned(self) -> Integers:
        """Rows of each owner, int64 [ranks]."""
        owned = np.zeros(self.ranks, np.int64)
        np.add.at(owned, self.owner, self.count)
        return owned

    def second(self, name: str, row: int) -> Collective:
        """Every rank sends its part to all who do not own the rows."""
        away = np.flatnonzero(self.owner != self.part)
        owner, part, count = self.owner[away], self.part[away], self.count[away]
        sent, received = self.sizes * (self.ranks - 1), self.rows - self.sizes
        np.subtract.at(sent, part, count)
        np.subtract.at(received, owner, count)
        # Where all of a part is an owner's, nothing goes from the one to the other.
        whole = count == self.sizes[part]
        some = (self.sizes > 0).astype(np.int64)
        targets, sources = some * (self.ranks - 1), some.sum() - some
        np.subtract.at(targets, part[whole], 1)
        np.subtract.at(sources, owner[whole], 1)
        return Collective(name, sent * row, received * row, targets, sources)


def of_rows(
    direct: Transfers, shared: Hops, asking: Hops, bytes_of: tuple[int, int, int], ranks: int
) -> Iterator[Collective]:
    """The collectives of Rows, in order; `bytes_of` a row of keys, of queries, and of results."""
    key, query, result = bytes_of
    source = np.concatenate([direct.source, shared.owner])
    target = np.concatenate([direct.target, shared.part])
    rows = np.concatenate([direct.stop - direct.start, shared.count])
    yield Collective.sparse("keys", source, target, rows, key, ranks)
    yield shared.second("keys, second hop", key)
    yield Collective.sparse("queries", asking.owner, asking.part, asking.count, query, ranks)
    yield asking.second("queries, second hop", query)
    some = (asking.sizes > 0).astype(np.int64)
    sent, received = (asking.rows - asking.sizes) * result, asking.sizes * (ranks - 1) * result
    yield Collective("partial results", sent, received, some.sum() - some, some * (ranks - 1))
    yield Collective.sparse("results", asking.part, asking.owner, asking.count, result, ranks)


def of_residues(shards: Shards, period: int, row: int, result: int) -> Iterator[Collective]:
    """The collectives of Residues, for rows of `row` bytes of queries, keys and values together."""
    ranks, parts = shards.ranks, np.array(Shards.even(period, shards.ranks).bounds)
    bounds = np.array(shards.bounds)
    sent, received, targets, sources = (np.zeros(ranks, np.int64) for _ in range(4))
    step = max(1, _CELLS // ranks)
    for first in range(0, ranks, step):
        own = np.arange(first, min(first + step, ranks))
        edges = np.append(bounds[own], bounds[own[-1] + 1])[:, None]
        # Positions below each bound whose residue is below each part's, and between the parts.
        below = edges // period * parts + np.clip(edges % period, 0, parts)
        rows = np.diff(np.diff(below, axis=1), axis=0)
        rows[np.arange(len(own)), own] = 0
        sent[own], targets[own] = rows.sum(axis=1), (rows > 0).sum(axis=1)
        received += rows.sum(axis=0)
        sources += (rows > 0).sum(axis=0)
    yield Collective("queries, keys and values", sent * row, received * row, targets, sources)
    yield Collective("results", received * result, sent * result, sources, targets)


def of_heads(queries: Shards, keys: Shards, bytes_of: tuple[int, int, int]) -> Iterator[Collective]:
    """The collectives of Heads; `bytes_of` a row of all heads: of keys, queries and results."""
    key, query, result = bytes_of
    ranks = queries.ranks
    moved = (np.array(queries.sizes) * query + np.array(keys.sizes) * key) // ranks
    yield _to_everyone("queries, keys and values", moved)
    back = _to_everyone("results", np.array(queries.sizes) * result // ranks)
    yield Collective(back.name, back.received, back.sent, back.sources, back.targets)


def _to_everyone(name: str, moved: Integers) -> Collective:
    """Every rank sends `moved` bytes of its own to each other one."""
    others, some = len(moved) - 1, (moved > 0).astype(np.int64)
    return Collective(name, moved * others, moved.sum() - moved, some * others, some.sum() - some)


def of_ring(keys: Shards, key: int) -> Iterator[Collective]:
    """The steps of Ring together: in each, every rank hands on the shard that it got, and at first its own.

    All shards come by every rank but its own; the one that it does not hand on is that of the next. Backward, they go
    round once more, and so do their gradients: a rank hands on those of all shards but its own, whose come to it last.
    """
    sizes = np.array(keys.sizes)
    some = (sizes > 0).astype(np.int64)
    sent, targets = sizes.sum() - np.roll(sizes, -1), some.sum() - np.roll(some, -1)
    received, sources = sizes.sum() - sizes, some.sum() - some
    gradients = sizes.sum() - np.roll(sizes, 1)
    again = Traffic((sent + received) * key, (received + gradients) * key, targets + sources)
    yield Collective("shards of keys", sent * key, received * key, targets, sources, again)
