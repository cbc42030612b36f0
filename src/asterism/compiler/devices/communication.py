"""The communication plan: who sends which rows to whom, so that every query meets the keys it may read.

A rule is shared out among ways to bring queries and keys together. No pair is in two shares, so their results merge
exactly by log-sum-exp, as those of a plan's passes do. Every way is a sequence of all-to-alls of rows. Backward, the
gradients of the same rows go back the same ways, and where a row went to several ranks they are added at its owner.
"""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import Transfers
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Rows:
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
class Residues:
    """All tokens go where their residue lives, and results go back: rank r computes the positions whose residue modulo
    `period` is in Shards.even(period, ranks).range(r), in ascending order of position."""

    pattern: Pattern
    period: int


@dataclass(frozen=True)
class Heads:
    """Every rank computes some heads of the whole sequence (Jacobs et al. 2023, DeepSpeed-Ulysses): queries, keys and
    values go there, results go back. Heads and key heads must be multiples of the ranks."""

    pattern: Pattern


@dataclass(frozen=True)
class Ring:
    """Keys and values go round from rank to rank, one shard at a time (Liu et al. 2023, Ring Attention)."""

    pattern: Pattern


Share = Rows | Residues | Heads | Ring


@dataclass(frozen=True, eq=False)
class Communication:
    """What all ranks do to attend by a pattern: `queries` and `keys` say who holds which (equal in self-attention).

    The rule is that of a sequence of keys.length tokens, in which query i stands at position query_offset + i.
    """

    pattern: Pattern
    queries: Shards
    keys: Shards
    shares: tuple[Share, ...]
    query_offset: int = 0


def gathered(pattern: Pattern, queries: Shards, keys: Shards) -> Communication:
    """Every rank gets all keys: what engines do that know nothing of patterns, and the yardstick of the others."""
    ranks = keys.ranks
    source, target = np.divmod(np.arange(ranks * ranks), ranks)
    kept = (source != target) & (np.array(keys.sizes)[source] > 0)
    source, target = source[kept], target[kept]
    bounds = np.array(keys.bounds)
    direct = Transfers(source, target, bounds[source], bounds[source + 1], ranks)
    nothing = np.zeros((0, 2), np.int64)
    return Communication(pattern, queries, keys, (Rows(pattern, direct, nothing, nothing),))
