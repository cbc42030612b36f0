"""Rows that move between devices, and their size in bytes.

A row is the data of one token: its keys and values of all key heads and all rows of the batch, its queries of all query
heads, or its results with their log-sum-exps.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from asterism.patterns.intervals import Integers


@dataclass(frozen=True)
class RowShape:
    """Bytes of a row of each kind. `itemsize` is that of the tensors, in bytes; a log-sum-exp takes 4 or 8."""

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
        """Bytes of the results of a token's queries: outputs in the tensors' dtype, and log-sum-exps."""
        return self.batch * self.heads * (self.value_dim * self.itemsize + max(4, self.itemsize))


@dataclass(frozen=True, eq=False)
class Transfers:
    """Intervals of positions that go from a device to another: the rows start[i] .. stop[i] - 1 from source[i] to
    target[i].

    int64 arrays of one length, sorted by (source, target, start); no device sends to itself, and no row goes twice from
    one device to another.
    """

    source: Integers
    target: Integers
    start: Integers
    stop: Integers
    devices: int

    @classmethod
    def none(cls, devices: int) -> Self:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, empty, devices)

    def counts_received(self) -> Integers:
        """int64 [devices]: number of rows that each device receives."""
        counts = np.zeros(self.devices, np.int64)
        np.add.at(counts, self.target, self.stop - self.start)
        return counts

    def positions(self, source: int, target: int) -> Integers:
        """The positions of the rows that go from one device to another, ascending."""
        chosen = (self.source == source) & (self.target == target)
        parts = [np.arange(*ends) for ends in zip(self.start[chosen], self.stop[chosen], strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *parts])


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes and messages of each device in one direction, int64 [devices] each.

    sent, received  bytes
    messages        messages sent: one for each device, and each collective, that something goes to
    """

    sent: Integers
    received: Integers
    messages: Integers

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent + other.sent, self.received + other.received, self.messages + other.messages)

    @property
    def most(self) -> int:
        """The most bytes that a device sends or receives."""
        return int(np.maximum(self.sent, self.received).max(initial=0))

    @classmethod
    def none(cls, devices: int) -> Self:
        return cls(*np.zeros((3, devices), np.int64))


@dataclass(frozen=True, eq=False)
class Collective:
    """An all-to-all, or several of one kind: int64 [devices] each.

    name            what is sent, in words
    sent, received  bytes
    targets         to how many devices something is sent
    sources         from how many devices something comes
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
    def sparse(cls, name: str, source: Integers, target: Integers, rows: Integers, row: int, devices: int) -> Self:
        """From a list of how many rows of `row` bytes go from a device to another; what stays does not travel."""
        kept = (source != target) & (rows > 0)
        pairs, which = np.unique(source[kept] * devices + target[kept], return_inverse=True)
        moved = np.zeros(len(pairs), np.int64)
        np.add.at(moved, which, rows[kept] * row)
        zero = np.zeros(devices, np.int64)
        sent, received, targets, sources = zero.copy(), zero.copy(), zero.copy(), zero.copy()
        np.add.at(sent, pairs // devices, moved)
        np.add.at(received, pairs % devices, moved)
        np.add.at(targets, pairs // devices, 1)
        np.add.at(sources, pairs % devices, 1)
        return cls(name, sent, received, targets, sources)
