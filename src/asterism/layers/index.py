"""An index branch: narrow queries and keys by which a layer chooses its blocks, and the loss that teaches it.

No gradient goes through a choice, so the branch learns from attention: the softmax of its block scores shall be the
share of attention that each block gets. The branch reads detached hidden states, and the loss detached queries and
keys, so the model around it learns as if it were not there.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asterism.errors import ConfigurationError, KernelError
from asterism.kernels.checks import as_they_are, check_offset, check_scale, check_tensors, check_types
from asterism.kernels.selection.asked import Asked, Scorer, readable_blocks
from asterism.kernels.selection.select import bounds_missing
from asterism.kernels.transforms import outside_graphs
from asterism.layers.linear import Linear
from asterism.layers.positions import Rotary
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text, remember
from asterism.patterns.selected import bounds_of

SCORES = ("mean", "max", "minmax")
"""By which an index branch can choose and learn."""

_AT_A_TIME = 2**23
"""Scores of pairs computed together."""


class Index(NamedTuple):
    """Index queries q and keys k, both [B, Hkv, N, width], in the dtype of the weights."""

    q: Tensor
    k: Tensor


class IndexBranch(nn.Module):
    """Queries and keys by which blocks are chosen, one of each per key head.

    heads   key heads of the layer
    width   features of an index query and of an index key
    rotary  turns both by position; None for none

    Raises ConfigurationError for an odd width with rotary positions.
    """

    def __init__(self, hidden_size: int, heads: int, width: int = 32, *, rotary: Rotary | None = None) -> None:
        super().__init__()
        if rotary is not None and width % 2:
            raise ConfigurationError(
                "index-width", f"rotary positions turn pairs of features, but the index branch is {width} wide"
            )
        self.heads, self.rotary = heads, rotary
        self.query = Linear(hidden_size, heads * width, bias=False)
        self.key = Linear(hidden_size, heads * width, bias=False)

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Index:
        """Index of hidden states [B, N, hidden_size], through which no gradient flows.

        positions  int64 [B or 1, N], -1 for padding; by default 0, 1, 2, ...
        """
        hidden = hidden.detach()
        q, k = (side(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for side in (self.query, self.key))
        if self.rotary is None:
            return Index(q, k)
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        return Index(self.rotary(q, positions), self.rotary(k, positions))


@outside_graphs
def index_loss(
    index: Index,
    q: Tensor,
    k: Tensor,
    pattern: Pattern | str,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    query_offset: int | None = None,
) -> Tensor:
    """Compute the KL divergence of each query's choice from attention: [B, Hkv, Nq], float32 (float64 for float64).

    It is KL(p || softmax(scores / sqrt(width))) over the blocks that the query may choose. Here p is the attention that
    each block gets, where a query reads all pairs that the pattern with selected(...) could let it read, summed over
    the query heads that share a key head, and normalised. Scores are those of `select`, by the pattern's own rule. A
    query that may choose nothing has 0. This is the loss of DeepSeek-V3.2's indexer in its dense warm-up, over blocks
    in place of tokens; MiniMax Sparse Attention (arXiv 2606.13392) takes it over the blocks that are chosen.

    index is that of the same tokens: index.q [B, Hkv, Nq, width] and index.k [B, Hkv, Nk, width]; q [B, H, Nq, D] and
    k [B, Hkv, Nk, D] are the layer's, of one dtype, and get no gradient. `scale`, `key_mask` (bool [B, Nk]) and
    `query_offset` are those of `attend`. Time is that of all pairs; memory that of queries times blocks, for each key
    head, and of the pairs of a few queries. torch.compile breaks its graph here.

    Raises KernelError for tensors that do not fit, for a pattern without selected(...) and for other scores than those
    of `SCORES`; PatternError where selected(...) cannot stand.
    """
    check_types(**{"q": q, "k": k, "index.q": index.q, "index.k": index.k, "key_mask": key_mask})
    check_tensors(q, k, k, key_mask, None)
    text = remember(pattern) if isinstance(pattern, Pattern) else pattern
    asked = Asked(by_text(text), *index, key_mask, check_offset(query_offset, q, k, text))
    if not asked.pattern.chooses:
        bounds_missing(asked.pattern)
    _check_index(asked, q, k)
    scale = q.shape[-1] ** -0.5 if scale is None else check_scale(scale)
    with as_they_are(q):
        scorer, step = Scorer(asked), max(1, _AT_A_TIME // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
        once = asked.chosen.score != "max" or not torch.is_grad_enabled()
        # Products with each key are computed a second time rather than kept.
        compute = _divergence if once else partial(checkpoint, _divergence, use_reentrant=False)
        found = []
        for begin in range(0, max(1, q.shape[2]), step):
            past = min(q.shape[2], begin + step)
            mass, may = _mass(asked, q, k, scale, begin, past)
            found.append(compute(scorer, mass, may, begin, past))
    return torch.cat(found, dim=2)


def _check_index(asked: Asked, q: Tensor, k: Tensor) -> None:
    """Raises KernelError for an index that is not of these queries and keys, or by which nothing is scored."""
    expected = [[*k.shape[:2], length] for length in (q.shape[2], k.shape[2])]
    seen = [list(asked.q.shape), list(asked.k.shape)]
    if [each[:3] for each in seen] != expected or any(len(each) != 4 for each in seen) or seen[0][3] != seen[1][3]:
        raise KernelError(
            "index-shape", f"index.q and index.k must be {expected[0]} and {expected[1]} by a width, got {seen}"
        )
    if asked.chosen.score not in SCORES:
        raise KernelError(
            "index-score", f"an index branch learns scores of {', '.join(SCORES)}, but the pattern has {asked.chosen}"
        )


@torch.no_grad()
def _mass(asked: Asked, q: Tensor, k: Tensor, scale: float, begin: int, past: int) -> tuple[Tensor, Tensor]:
    """What the queries [begin, past) give each block of its attention, [B, Hkv, queries, blocks], normalised over those
    that they may choose, bool [B or 1, 1, queries, blocks]."""
    device, n_keys, block = q.device, k.shape[2], asked.filled
    may = torch.from_numpy(asked.blocks.may.dense(begin, past, asked.n_blocks)).to(device)[None, None]
    if (readable := readable_blocks(asked)) is not None:
        may = may & readable[:, None, None]
    rows = torch.arange(begin, past)[:, None] + asked.offset
    most = bounds_of(asked.pattern).most.allows(rows.numpy(), torch.arange(n_keys)[None].numpy(), n_keys)
    allowed = torch.tensor(most, device=device).expand(past - begin, n_keys)
    if asked.key_mask is not None:
        allowed = allowed & asked.key_mask[:, None, None]
    total = q.new_zeros((*k.shape[:2], past - begin, asked.n_blocks), dtype=asked.wide)
    keys = k.to(asked.wide).transpose(-1, -2)
    for member in q[:, :, begin:past].to(asked.wide).unflatten(1, (k.shape[1], -1)).unbind(dim=2):
        scores = (member * scale @ keys).masked_fill_(~allowed, torch.finfo(asked.wide).min)
        weights = nn.functional.pad(scores.softmax(dim=-1), (0, -n_keys % block))
        total += weights.unflatten(-1, (-1, block)).sum(dim=-1)
    total = total.masked_fill(~may, 0)
    return total / total.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(asked.wide).tiny), may


def _divergence(scorer: Scorer, mass: Tensor, may: Tensor, begin: int, past: int) -> Tensor:
    """KL of the scores of the queries [begin, past) from their `mass`, both [B, Hkv, queries, blocks]."""
    scores = scorer.scores(begin, past) * scorer.asked.q.shape[-1] ** -0.5
    log_shares = scores.masked_fill(~may, torch.finfo(scores.dtype).min).log_softmax(dim=-1)
    return (torch.special.xlogy(mass, mass) - mass * log_shares).sum(dim=-1)
