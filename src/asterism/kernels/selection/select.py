"""Choosing blocks of keys by content: scores of blocks, a few queries at a time, and the highest of them.

It is the definition in plain PyTorch, for every dtype and device. No gradient goes through a choice.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from asterism.compiler.blocks import ChoosableBlocks, choosable_blocks
from asterism.errors import KernelError
from asterism.kernels.checks import as_they_are, check_offset, check_tensors, check_types
from asterism.kernels.transforms import is_transformed
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text, remember
from asterism.patterns.selected import Selected, bounds_of

_AT_A_TIME = 2**22
"""Scores of tokens, or of blocks, computed together."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The blocks that queries read.

    indices  int32 [B, heads, G, K]: the blocks of each of G blocks of queries, ascending, then -1
    counts   int32 [B, heads, G]: how many they are
    block, query_block  tokens of a block of keys, and of queries

    Key block j has the keys j * block, ...; the first block of queries is the one that the first query stands in. Query
    heads that share a key head share a choice, or all of them do: `heads` is 1, or the key heads, or the query heads.
    """

    indices: Tensor
    counts: Tensor
    block: int
    query_block: int = 1


def select(
    q: Tensor,
    k: Tensor,
    pattern: Pattern | str,
    *,
    key_mask: Tensor | None = None,
    query_offset: int | None = None,
    scores: Tensor | None = None,
) -> Choice:
    """Choose the blocks of keys that each query reads under a pattern with selected(...).

    q is [B, H, Nq, D] and k [B, Hkv, Nk, D], those of attention or of an index branch, of a dtype that `attend` takes.
    The choice has the heads of k: query heads that share a key head share a choice, by the sum of their scores; for one
    per query head, give k.repeat_interleave(H // Hkv, 1). `key_mask` (bool [B, Nk]) and `query_offset` are those of
    `attend`. `scores` [B, Hkv, query blocks, key blocks], any float, for score="given" only.

    What may be chosen is said in `patterns.selected`. Scores are computed in float32 (float64 for float64); of equal
    ones the block with the lower index is chosen, and one that is NaN comes last. Time is that of all pairs of a query
    and a block, memory a few queries at a time. Nothing of the result has a gradient.

    Raises KernelError for tensors that do not fit, and inside torch.compile and torch.func; PatternError for a pattern
    without selected(...), or with it where it cannot stand.
    """
    if torch.compiler.is_compiling() or is_transformed():
        raise KernelError(
            "select-in-transform", "select is not for torch.compile or torch.func: choose outside, and give choice="
        )
    check_types(q=q, k=k, key_mask=key_mask)
    check_tensors(q, k, k, key_mask, None)
    text = remember(pattern) if isinstance(pattern, Pattern) else pattern
    asked = Asked(by_text(text), q, k, key_mask, check_offset(query_offset, q, k, text))
    _check_scores(scores, asked)
    with torch.no_grad(), as_they_are(q):
        return _select(asked, scores)


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
    def wide(self) -> torch.dtype:
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def shares(self) -> Tensor:
        """The block of queries of each query, int64 [Nq], from 0."""
        place = torch.arange(self.q.shape[2], device=self.q.device) + self.offset
        return place // self.chosen.query_block - self.offset // self.chosen.query_block

    @property
    def n_shares(self) -> int:
        last, size = self.offset + self.q.shape[2] - 1, self.chosen.query_block
        return last // size - self.offset // size + 1 if self.q.shape[2] else 0


def _check_scores(scores: object, asked: Asked) -> None:
    """Raises KernelError unless scores are there where the pattern wants them, with the right shape, and only then."""
    if not asked.pattern.chooses:
        bounds_missing(asked.pattern)
    if (asked.chosen.score == "given") != (scores is not None):
        hint = "they are for" if scores is not None else "give them for"
        raise KernelError("select-scores", f'scores: {hint} score="given", and the pattern has {asked.chosen}')
    expected = [*asked.k.shape[:2], asked.n_shares, asked.n_blocks]
    if scores is None:
        return
    if not isinstance(scores, Tensor) or list(scores.shape) != expected or not scores.is_floating_point():
        seen = f"{list(scores.shape)} of {scores.dtype}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise KernelError("given-scores", f"scores must be floats {expected}, got {seen}")


def bounds_missing(pattern: Pattern) -> None:
    """Raises KernelError: a choice is for patterns that choose."""
    raise KernelError("nothing-to-choose", f"{pattern} has no part selected(...): there is nothing to choose")


def _select(asked: Asked, scores: Tensor | None) -> Choice:
    chosen, shares = asked.chosen, asked.shares
    (batch, heads), n_queries = asked.k.shape[:2], asked.q.shape[2]
    keys = None if scores is not None else _Scorer(asked)
    per_query = batch * asked.q.shape[1] * (asked.k.shape[2] if chosen.score == "max" else asked.n_blocks)
    step = max(1, _AT_A_TIME // max(1, per_query)) * chosen.query_block
    sets = [asked.q.new_zeros((batch, heads, 0, asked.n_blocks), dtype=torch.bool)]
    begin = 0
    while begin < n_queries:
        past = min(n_queries, begin + step - (asked.offset + begin) % chosen.query_block)
        may, must = (
            torch.from_numpy(runs.dense(begin, past, asked.n_blocks)).to(asked.q.device)
            for runs in (asked.blocks.may, asked.blocks.must)
        )
        share = shares[begin:past] - shares[begin]
        if keys is None:
            assert scores is not None, "one or the other"
            found = scores[:, :, shares[begin] : shares[past - 1] + 1].to(asked.wide)
            candidates = _any_of(may, share)[None, None]
        else:
            found, candidates = _means(keys.scores(begin, past), may, share)
        sets.append(_highest(found, candidates & _readable(asked), _any_of(must, share), chosen.topk))
        begin = past
    return _listed(torch.cat(sets, dim=2), chosen)


def _any_of(rows: Tensor, share: Tensor) -> Tensor:
    """bool [queries, blocks] -> [shares, blocks]: whether any query of a share has the block."""
    found = rows.new_zeros((int(share[-1]) + 1, rows.shape[1]), dtype=torch.int32)
    return found.index_add_(0, share, rows.to(torch.int32)) > 0


def _means(scores: Tensor, may: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The mean scores [B, heads, shares, blocks] of [B, heads, queries, blocks], over the queries of a share that may
    choose a block, bool [queries, blocks]; and which blocks some query may choose, [shares, blocks]."""
    if int(share[-1]) + 1 == len(share):
        return scores, may
    shape = (*scores.shape[:2], int(share[-1]) + 1, scores.shape[3])
    sums = scores.new_zeros(shape).index_add_(2, share, scores.masked_fill(~may, 0))
    counts = scores.new_zeros(shape[2:]).index_add_(0, share, may.to(scores.dtype))
    return sums / counts.clamp(min=1), counts > 0


def _readable(asked: Asked) -> Tensor:
    """Blocks of which key_mask leaves a key, bool [B or 1, 1, 1, blocks]."""
    if asked.key_mask is None:
        return torch.ones((1, 1, 1, asked.n_blocks), dtype=torch.bool, device=asked.q.device)
    return _by_block(asked.key_mask, asked.chosen.block, False).any(dim=-1)[:, None, None]


def _highest(scores: Tensor, candidates: Tensor, must: Tensor, topk: int) -> Tensor:
    """bool [B, heads, shares, blocks]: what must be read, and of the other candidates those with the highest scores."""
    candidates = (candidates & ~must).expand(scores.shape)
    least = torch.finfo(scores.dtype).min
    ranked = scores.nan_to_num(nan=least, posinf=-least, neginf=least).masked_fill(~candidates, -torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices
    left = (topk - must.sum(dim=-1, keepdim=True)).clamp(min=0)
    is_high = torch.arange(scores.shape[-1], device=scores.device) < left
    found = torch.zeros_like(candidates).scatter_(-1, order, is_high.expand(scores.shape))
    return found & candidates | must


def _listed(sets: Tensor, chosen: Selected) -> Choice:
    """The blocks of each set bool [B, heads, shares, blocks], as a choice."""
    counts = sets.sum(dim=-1)
    width = max(1, int(counts.max())) if counts.numel() else 1
    indices = torch.full((*counts.shape, width + 1), -1, dtype=torch.int32, device=sets.device)
    places = (sets.cumsum(dim=-1) - 1).masked_fill(~sets, width)  # the last place takes what is not in the set
    numbers = torch.arange(sets.shape[-1], dtype=torch.int32, device=sets.device).expand(sets.shape)
    indices.scatter_(-1, places, numbers)
    return Choice(indices[..., :width].contiguous(), counts.to(torch.int32), chosen.block, chosen.query_block)


def _by_block(x: Tensor, block: int, filling: float | bool) -> Tensor:
    """[..., Nk] -> [..., blocks, block], filled up at the end."""
    missing = -x.shape[-1] % block
    return torch.nn.functional.pad(x, (0, missing), value=filling).unflatten(-1, (-1, block))


class _Scorer:
    """Scores of queries and blocks by what the keys of the blocks are, prepared once."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.kind, block = asked, asked.chosen.score, asked.chosen.block
        k, n_keys = asked.k.to(asked.wide), asked.k.shape[2]
        real = torch.ones((1, n_keys), dtype=torch.bool, device=k.device) if asked.key_mask is None else asked.key_mask
        self.real = _by_block(real, block, False)[:, None]  # [B or 1, 1, blocks, block]
        k = torch.where(real[:, None, :, None], k, 0)  # what is not read may be NaN
        tokens = _by_block(k.transpose(2, 3), block, 0.0).permute(0, 1, 3, 4, 2)  # [B, Hkv, blocks, block, D]
        if self.kind == "mean":
            self.keys = tokens.sum(dim=3) / self.real.sum(dim=-1).clamp(min=1)[..., None]
        elif self.kind == "minmax":
            least, greatest = (tokens.masked_fill(~self.real[..., None], fill) for fill in (torch.inf, -torch.inf))
            ends = torch.cat([greatest.amax(dim=3), least.amin(dim=3)], dim=-1)
            self.keys = ends.masked_fill(~self.real.any(dim=-1)[..., None], 0)
        else:
            self.keys = tokens

    def scores(self, begin: int, past: int) -> Tensor:
        """[B, Hkv, queries, blocks] of the queries [begin, past)."""
        q = self.asked.q[:, :, begin:past].to(self.asked.wide).unflatten(1, (self.asked.k.shape[1], -1))
        if self.kind == "max":
            return self._greatest(q)
        if self.kind == "minmax":  # of q < 0 the least key gives the greatest product
            q = torch.cat([q.clamp(min=0), q.clamp(max=0)], dim=-1)
        return q.sum(dim=2) @ self.keys.transpose(-1, -2)

    def _greatest(self, q: Tensor) -> Tensor:
        """The greatest products [B, Hkv, queries, blocks] of q [B, Hkv, G, queries, D], summed over G."""
        keys = self.keys.flatten(2, 3).transpose(-1, -2)
        total = q.new_zeros((*q.shape[:2], q.shape[3], self.asked.n_blocks))
        for member in q.unbind(dim=2):
            products = (member @ keys).unflatten(-1, (-1, self.asked.chosen.block))
            best = products.masked_fill(~self.real[:, :, None], -torch.inf).amax(dim=-1)
            total += best.masked_fill(best == -torch.inf, 0)  # of blocks without a key, which nobody chooses
        return total
