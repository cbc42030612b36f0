"""Rows that go from rank to rank, and what they take in bytes.

A row is what one token has: its keys and values of all key heads and all rows of the batch, its queries of all query
heads, or its results with their log-sum-exps.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from asterism.patterns.intervals import Integers


@dataclass(frozen=True)
class RowShape:
    """What a row of each kind takes. `itemsize` is that of the tensors, in bytes; a log-sum-exp takes 4, or 8."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    itemsize: int
    batch: int = 1

    @property
    def key(self) -> int:
        """Bytes of a token's keys and values."""
        return self.batch * self.key_heads * (self.key_dim + self.value_dim) * self.itemsize

    @property
    def query(self) -> int:
        """Bytes of a token's queries."""
        return self.batch * self.heads * self.key_dim * self.itemsize

    @property
    def result(self) -> int:
        """Bytes of what a token's queries got: outputs in the tensors' dtype, and log-sum-exps."""
        return self.batch * self.heads * (self.value_dim * self.itemsize + max(4, self.itemsize))


@dataclass(frozen=True, eq=False)
class Transfers:
    """Intervals of positions that go from a rank to another: the rows start[i] .. stop[i] - 1 from source[i] to
    target[i].

    int64 arrays of one length, sorted by (source, target, start); no rank sends to itself, and no row goes twice from
    one rank to another.
    """

    source: Integers
    target: Integers
    start: Integers
    stop: Integers
    ranks: int

    @classmethod
    def none(cls, ranks: int) -> Self:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, empty, ranks)

    def counts(self) -> Integers:
        """int64 [ranks, ranks]: how many rows go from each rank (first axis) to each."""
        counts = np.zeros((self.ranks, self.ranks), np.int64)
        np.add.at(counts, (self.source, self.target), self.stop - self.start)
        return counts

    def counts_received(self) -> Integers:
        """int64 [ranks]: how many rows come to each rank."""
        counts = np.zeros(self.ranks, np.int64)
        np.add.at(counts, self.target, self.stop - self.start)
        return counts

    def positions(self, source: int, target: int) -> Integers:
        """The positions of the rows that go from one rank to another, ascending."""
        chosen = (self.source == source) & (self.target == target)
        parts = [np.arange(*ends) for ends in zip(self.start[chosen], self.stop[chosen], strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *parts])


@dataclass(frozen=True, eq=False)
class Traffic:
    """What each rank sends and receives in one direction: int64 [ranks], bytes, and messages sent (one for each rank
    and each collective that something goes to)."""

    sent: Integers
    received: Integers
    messages: Integers

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent + other.sent, self.received + other.received, self.messages + other.messages)

    @property
    def most(self) -> int:
        """The most bytes that a rank sends or receives."""
        return int(np.maximum(self.sent, self.received).max(initial=0))

    @classmethod
    def none(cls, ranks: int) -> Self:
        return cls(*np.zeros((3, ranks), np.int64))

    @classmethod
    def of(cls, bytes_between: Integers) -> Self:
        """From the bytes of one all-to-all, int64 [ranks, ranks]; what stands on the diagonal does not travel."""
        moved = bytes_between * (1 - np.eye(len(bytes_between), dtype=np.int64))
        return cls(moved.sum(axis=1), moved.sum(axis=0), (moved > 0).sum(axis=1))
