"""The communication plan: who sends which rows to whom, so that every query meets the keys it may read.

A rule is shared out among ways to bring queries and keys together. No pair is in two shares, so their results merge
exactly by log-sum-exp, as those of a plan's passes do. Every way is a sequence of all-to-alls of rows. Backward, the
gradients of the same rows go back the same ways, and where a row went to several ranks they are added at its owner;
but round the ring keys and values go a second time, so that no rank keeps those of others, and their gradients with
them.
"""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.devices.collectives import Collective, Hops, of_heads, of_residues, of_ring, of_rows
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Traffic, Transfers
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern, PerHead


@dataclass(frozen=True, eq=False)
class ByRows:
    """Keys travel to the queries that read them, and queries that read nearly everything travel to the keys.

    pattern  the share of the rule
    direct   keys that go straight to a rank that needs them: windows' halos, random blocks
    shared   int64 [m, 2], intervals of keys that most ranks need, such as global tokens: all ranks get them, in two
             hops, so that their owner does not send them to everyone: an even part to each rank, and from there to all
    asking   int64 [m, 2], intervals of queries that read nearly everything: they go to all ranks in two hops, each rank
             answers with its own keys, and the answers return in two hops: each rank merges an even part of the
             queries, and their owners get what is merged
    """

    pattern: Pattern
    direct: Transfers
    shared: Integers
    asking: Integers


@dataclass(frozen=True)
class ByResidues:
    """All tokens go where their residue lives, and results go back: rank r computes the positions whose residue modulo
    `period` is in Shards.even(period, ranks).range(r), in ascending order of position."""

    pattern: Pattern
    period: int


@dataclass(frozen=True)
class ByHeads:
    """Every rank computes some heads of the whole sequence (Jacobs et al. 2023, DeepSpeed-Ulysses): queries, keys and
    values go there, results go back. Heads and key heads must be multiples of the ranks."""

    pattern: Pattern


@dataclass(frozen=True)
class Ring:
    """Keys and values go round from rank to rank, one shard at a time (Liu et al. 2023, Ring Attention)."""

    pattern: Pattern


Share = ByRows | ByResidues | ByHeads | Ring


@dataclass(frozen=True, eq=False)
class Communication:
    """What all ranks do to attend by a pattern: `queries` and `keys` say who holds which (equal in self-attention).

    The rule is that of a sequence of keys.length tokens, in which query i stands at position query_offset + i.
    `is_dense`: no way that uses the pattern moves less than bringing every key to every rank.
    """

    pattern: Pattern
    queries: Shards
    keys: Shards
    shares: tuple[Share, ...]
    query_offset: int = 0
    is_dense: bool = False

    @property
    def ranks(self) -> int:
        return self.keys.ranks

    @property
    def ignores_the_pattern(self) -> bool:
        """Whether it moves what any pattern would: some share goes round the ring or by heads."""
        return any(isinstance(share, ByHeads | Ring) for share in self.shares)

    def collectives(self, share: Share, shape: RowShape) -> tuple[Collective, ...]:
        """The all-to-alls of a share, in order, for rows of this shape; empty ones among them."""
        bytes_of = shape.key, shape.query, shape.result
        match share:
            case ByRows(direct=direct, shared=shared, asking=asking):
                hops = Hops.of(shared, self.keys), Hops.of(asking, self.queries)
                return tuple(of_rows(direct, *hops, bytes_of, self.ranks))
            case ByResidues(period=period):
                return tuple(of_residues(self.keys, period, shape.key + shape.query, shape.result))
            case ByHeads():
                return tuple(of_heads(self.queries, self.keys, bytes_of))
            case Ring():
                return tuple(of_ring(self.keys, shape.key))

    def traffic(self, shape: RowShape) -> Traffic:
        """What each rank sends and receives forward."""
        moved = [each.forward for share in self.shares for each in self.collectives(share, shape)]
        return sum(moved, Traffic.none(self.ranks))

    def backward(self, shape: RowShape) -> Traffic:
        """What each rank sends and receives backward: the gradients of the same rows, the other way; round the ring,
        the shards again and their gradients."""
        moved = [each.backward for share in self.shares for each in self.collectives(share, shape)]
        return sum(moved, Traffic.none(self.ranks))

    def memory(self, shape: RowShape) -> Integers:
        """Bytes of keys and values that each rank holds at most at one time, int64 [ranks]: its shard, and what comes
        to it from others for the share that needs most."""
        own = np.array(self.keys.sizes) * shape.key
        return own + np.max([self._held(share, shape) for share in self.shares] or [np.zeros_like(own)], axis=0)

    def _held(self, share: Share, shape: RowShape) -> Integers:
        """Bytes of keys and values that a share brings to each rank, beside those of its shard."""
        sizes = np.array(self.keys.sizes)
        match share:
            case ByRows(direct=direct, shared=shared):
                hops = Hops.of(shared, self.keys)
                return (direct.counts_received() + hops.rows - hops.owned()) * shape.key
            case ByResidues(period=period):
                parts = np.array(Shards.even(period, self.ranks).bounds)
                length = self.keys.length
                return np.diff(length // period * parts + np.clip(length % period, 0, parts)) * shape.key
            case ByHeads():
                return np.full(self.ranks, self.keys.length * shape.key // self.ranks)
            case Ring():  # the shard that is computed with, and the next one, which comes meanwhile
                steps, ranks = np.arange(1, self.ranks + 1)[:, None], np.arange(self.ranks)
                came = np.where(steps < self.ranks, sizes[(ranks - steps) % self.ranks], 0)
                pairs: Integers = (came[:-1] + came[1:]).max(axis=0, initial=0)
                return pairs * shape.key


def some_heads(pattern: Pattern, first: int, past: int) -> Pattern | None:
    """The pattern of heads first .. past - 1 alone; None where other rules than `per_head` tell heads apart."""
    if pattern.heads == 1:
        return pattern
    if isinstance(pattern, PerHead):
        chosen = pattern.patterns[first:past]
        return PerHead(chosen) if all(own.heads == 1 for own in chosen) else None
    children = [some_heads(child, first, past) for child in pattern.children]
    known = tuple(child for child in children if child is not None)
    return pattern.rebuild(known) if known and len(known) == len(children) else None


def gathered(pattern: Pattern, queries: Shards, keys: Shards) -> Communication:
    """Every rank gets all keys: what engines do that know nothing of patterns, and the yardstick of the others."""
    ranks = keys.ranks
    source, target = np.divmod(np.arange(ranks * ranks), ranks)
    kept = (source != target) & (np.array(keys.sizes)[source] > 0)
    source, target = source[kept], target[kept]
    bounds = np.array(keys.bounds)
    direct = Transfers(source, target, bounds[source], bounds[source + 1], ranks)
    nothing = np.zeros((0, 2), np.int64)
    return Communication(pattern, queries, keys, (ByRows(pattern, direct, nothing, nothing),))
