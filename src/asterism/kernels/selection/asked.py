"""What blocks are chosen of, how they are scored, and what a choice is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.compiler.blocks import ChoosableBlocks, choosable_blocks
from asterism.memo import cached_property
from asterism.patterns import Pattern
from asterism.patterns.selected import STRIDE, Selected, bounds_of


@dataclass(frozen=True, eq=False)
class Choice:
    """The blocks that queries read.

    indices  int32 [B, heads, G, K]: the blocks of each of G blocks of queries, ascending, then -1
    counts   int32 [B, heads, G]: how many they are; for people, as attention goes by the indices
    block, query_block  tokens of a block of keys, and of queries

    Key block j has the keys j * block, ...; the first block of queries is the one that the first query stands in. Query
    heads that share a key head share a choice, or all of them do: `heads` is 1, or the key heads, or the query heads.
    """

    indices: Tensor
    counts: Tensor
    block: int
    query_block: int = 1


@dataclass(frozen=True, eq=False)
class Asked:
    """Of what blocks are chosen: q [B, H, Nq, D], k [B, Hkv, Nk, D], key_mask bool [B, Nk] or None."""

    pattern: Pattern
    q: Tensor
    k: Tensor
    key_mask: Tensor | None
    offset: int

    @cached_property
    def chosen(self) -> Selected:
        return bounds_of(self.pattern).chosen

    @cached_property
    def blocks(self) -> ChoosableBlocks:
        return choosable_blocks(self.pattern, self.q.shape[2], self.k.shape[2], self.offset)

    @property
    def n_blocks(self) -> int:
        return -(-self.k.shape[2] // self.chosen.block)

    @property
    def filled(self) -> int:
        """Tokens of a block, but no more than there are keys."""
        return max(1, min(self.chosen.block, self.k.shape[2]))

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def shares(self) -> Tensor:
        """The block of queries of each query, int64 [Nq], from 0."""
        return shares_of(self.q, self.offset, self.chosen.query_block)

    @property
    def n_shares(self) -> int:
        return count_shares(self.q.shape[2], self.offset, self.chosen.query_block)


def shares_of(q: Tensor, offset: int, query_block: int) -> Tensor:
    """The block of queries, from 0, that each query of q [B, H, Nq, D], of any dtype, stands in: int64 [Nq]."""
    place = torch.arange(q.shape[2], device=q.device) + offset
    return place // query_block - offset // query_block


def count_shares(n_queries: int, offset: int, query_block: int) -> int:
    """How many there are."""
    return (offset + n_queries - 1) // query_block - offset // query_block + 1 if n_queries else 0


def by_block(tokens: Tensor, block: int) -> Tensor:
    """bool [..., Nk] -> [..., blocks, block], filled up at the end with False."""
    return torch.nn.functional.pad(tokens, (0, -tokens.shape[-1] % block)).unflatten(-1, (-1, block))


class Scorer:
    """Scores of queries and blocks by what the keys of the blocks are, prepared once."""

    def __init__(self, asked: Asked) -> None:
        self.asked, block = asked, asked.filled
        k, n_keys = asked.k.to(asked.wide), asked.k.shape[2]
        real = torch.ones((1, n_keys), dtype=torch.bool, device=k.device) if asked.key_mask is None else asked.key_mask
        self.real = by_block(real, block)[:, None]  # [B or 1, 1, blocks, block]
        if asked.key_mask is not None:
            k = torch.where(real[:, None, :, None], k, 0)  # what is not read may be NaN
        missing = -n_keys % block
        k = torch.nn.functional.pad(k, (0, 0, 0, missing)) if missing else k
        self.tokens = k.unflatten(2, (-1, block))  # [B, Hkv, blocks, block, D]

    @property
    def has_features(self) -> bool:
        """Whether a score is one product: of features of queries, `of_queries`, with those of blocks, `of_blocks`."""
        return self.asked.chosen.score != "max"

    @cached_property
    def of_blocks(self) -> Tensor:
        """What stands for blocks: the mean of their keys, or the greatest and the least of each feature.

        [B, Hkv, blocks, F], float32 or float64.
        """
        if self.asked.chosen.score == "mean":
            return self.tokens.sum(dim=3) / self.real.sum(dim=-1).clamp(min=1)[..., None]
        real = self.real[..., None]
        least, greatest = (self.tokens.masked_fill(~real, fill) for fill in (torch.inf, -torch.inf))
        ends = torch.cat([greatest.amax(dim=3), least.amin(dim=3)], dim=-1)
        return ends.masked_fill(~real.any(dim=3), 0)

    def of_queries(self, begin: int, past: int) -> Tensor:
        """What stands for the queries [begin, past), summed over those that share a choice.

        [B, Hkv, queries, F], float32 or float64.
        """
        q = self._grouped(begin, past)
        if self.asked.chosen.score == "minmax":  # of q < 0 the least key gives the greatest product
            q = torch.cat([q.clamp(min=0), q.clamp(max=0)], dim=-1)
        return q.sum(dim=2) if q.shape[2] > 1 else q[:, :, 0]

    def scores(self, begin: int, past: int) -> Tensor:
        """Of the queries [begin, past): [B, Hkv, queries, blocks], float32 or float64."""
        if self.has_features:
            return self.of_queries(begin, past) @ self.of_blocks.transpose(-1, -2)
        q = self._grouped(begin, past)
        keys = self.tokens.flatten(2, 3).transpose(-1, -2)
        total = q.new_zeros((*q.shape[:2], q.shape[3], self.asked.n_blocks))
        for member in q.unbind(dim=2):
            products = (member @ keys).unflatten(-1, (-1, self.asked.filled))
            best = products.masked_fill(~self.real[:, :, None], -torch.inf).amax(dim=-1)
            total += best.masked_fill(best == -torch.inf, 0)  # of blocks without a key, which nobody chooses
        return total

    def of_antidiagonals(self, begin: int, past: int, may: Tensor) -> Tensor:
        """Of the shares of the queries [begin, past): the attention of their groups of queries to blocks, in all 1 for
        each group; [B, Hkv, shares, blocks], float32 or float64.

        may  bool [queries, blocks]: what a query may choose; a group, what all of its queries may

        A group's product is the mean of q_(7 - i) . k_i over its members, so that each key meets one query of each
        group and each query one key.
        """
        lead = (self.asked.offset + begin) % STRIDE
        fill = lead, -(lead + past - begin) % STRIDE
        q = torch.nn.functional.pad(self._grouped(begin, past), (0, 0, *fill)).unflatten(3, (-1, STRIDE))
        tokens = torch.nn.functional.pad(self.tokens, (0, 0, 0, -self.asked.filled % STRIDE))
        real = torch.nn.functional.pad(self.real, (0, -self.asked.filled % STRIDE)).unflatten(-1, (-1, STRIDE)).any(-1)
        keys = tokens.unflatten(3, (-1, STRIDE)).flatten(4).flatten(2, 3)  # [B, Hkv, groups of keys, 8 * D]
        logits = q.flip(4).flatten(4) @ keys[:, :, None].transpose(-1, -2)
        logits = (logits / (STRIDE * self.asked.q.shape[3] ** 0.5)).unflatten(-1, (self.asked.n_blocks, -1))
        may = torch.nn.functional.pad(may, (0, 0, *fill), value=True).unflatten(0, (-1, STRIDE)).all(dim=1)
        logits = logits.masked_fill(~(may[..., None] & real[:, :, None, None]), -torch.inf)
        held = logits.flatten(-2).softmax(dim=-1).nan_to_num(nan=0.0).unflatten(-1, (self.asked.n_blocks, -1))
        held = held.sum(dim=-1).mean(dim=2)  # [B, Hkv, groups of queries, blocks]
        first = self.asked.offset + begin - lead
        share = torch.arange(held.shape[2], device=held.device) * STRIDE + first
        share = share // self.asked.chosen.query_block - first // self.asked.chosen.query_block
        total = held.new_zeros((*held.shape[:2], int(share[-1]) + 1, self.asked.n_blocks))
        return total.index_add_(2, share, held)

    def _grouped(self, begin: int, past: int) -> Tensor:
        """[B, Hkv, G, queries, D], wide."""
        return self.asked.q[:, :, begin:past].to(self.asked.wide).unflatten(1, (self.asked.k.shape[1], -1))


def readable_blocks(asked: Asked) -> Tensor | None:
    """Blocks of which key_mask leaves a key, bool [B, blocks]; None for all."""
    return None if asked.key_mask is None else by_block(asked.key_mask, asked.filled).any(dim=-1)
