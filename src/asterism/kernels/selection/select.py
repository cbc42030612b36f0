"""Choosing blocks of keys by content: scores of blocks, a few queries at a time, and the highest of them.

It is the definition in plain PyTorch, for every dtype and device. No gradient goes through a choice.
"""

import torch
from torch import Tensor

from asterism.errors import KernelError
from asterism.kernels.checks import as_they_are, check_offset, check_tensors, check_types
from asterism.kernels.selection import choosing
from asterism.kernels.selection.asked import Asked, Choice, Scorer, readable_blocks
from asterism.kernels.transforms import is_transformed, outside_graphs
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text, remember
from asterism.patterns.selected import Selected

_AT_A_TIME = 2**22
"""Scores of tokens, or of blocks, computed together."""


@outside_graphs
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

    Raises KernelError for tensors that do not fit, for a pattern without selected(...), and inside torch.func;
    PatternError for one where it cannot stand. torch.compile breaks its graph here.
    """
    if is_transformed():
        raise KernelError("select-in-transform", "select is not for torch.func: choose outside, and give choice=")
    check_types(q=q, k=k, key_mask=key_mask)
    require_numbers(q)
    check_tensors(q, k, k, key_mask, None)
    text = remember(pattern) if isinstance(pattern, Pattern) else pattern
    asked = Asked(by_text(text), q, k, key_mask, check_offset(query_offset, q, k, text))
    _check_scores(scores, asked)
    with torch.no_grad(), as_they_are(q):
        return _select(asked, scores)


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
    seen = f"a {type(scores).__name__}"
    if isinstance(scores, Tensor):
        fits = scores.layout == torch.strided and scores.is_floating_point() and scores.device == asked.q.device
        if fits and list(scores.shape) == expected:
            return
        seen = f"{list(scores.shape)} of {scores.dtype}, {scores.layout}, on {scores.device}"
    raise KernelError("given-scores", f"scores must be floats {expected} on {asked.q.device}, got {seen}")


def require_numbers(q: Tensor) -> None:
    """Raises KernelError where tensors like q [B, H, N, D], of any dtype, have no numbers to choose by: on the meta
    device, or while a graph is exported."""
    if q.is_meta or type(q.new_empty(0)) is not Tensor:
        raise KernelError(
            "choice-without-numbers", "blocks are chosen by numbers, and these tensors have none: selected(...) is not"
            " for the meta device and exported graphs"
        )  # fmt: skip


def bounds_missing(pattern: Pattern) -> None:
    """Raises KernelError: a choice is for patterns that choose."""
    raise KernelError("nothing-to-choose", f"{pattern} has no part selected(...): there is nothing to choose")


def _select(asked: Asked, scores: Tensor | None) -> Choice:
    if scores is None and choosing.takes(asked):
        return choosing.choose(asked)
    chosen, shares = asked.chosen, asked.shares
    (batch, heads), n_queries = asked.k.shape[:2], asked.q.shape[2]
    keys = None if scores is not None else Scorer(asked)
    readable = readable_blocks(asked)
    readable = asked.q.new_ones((), dtype=torch.bool) if readable is None else readable[:, None, None]
    per_query = (
        batch * asked.q.shape[1] * (asked.k.shape[2] if chosen.score in ("max", "antidiagonal") else asked.n_blocks)
    )
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
        elif chosen.score == "antidiagonal":
            found, candidates = keys.of_antidiagonals(begin, past, may), _any_of(may, share)
        else:
            found, candidates = _means(keys.scores(begin, past), may, share)
        must = _any_of(must, share)
        candidates = (candidates & readable & ~must).expand(found.shape)
        sets.append(must | _highest(found, candidates, must, asked))
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


def _highest(scores: Tensor, candidates: Tensor, must: Tensor, asked: Asked) -> Tensor:
    """bool [B, heads, shares, blocks]: of the candidates, those with the highest scores: as many as are left beside
    what must be read, or as few as hold the mass that is asked for."""
    least = torch.finfo(scores.dtype).min
    ranked = scores.nan_to_num(nan=least, posinf=-least, neginf=least).masked_fill(~candidates, -torch.inf)
    ranked, order = ranked.sort(dim=-1, descending=True, stable=True)
    if asked.chosen.topk is not None:
        left = (asked.chosen.topk - must.sum(dim=-1, keepdim=True)).clamp(min=0)
        is_high = (torch.arange(scores.shape[-1], device=scores.device) < left).expand(scores.shape)
    else:
        assert asked.chosen.mass is not None, "one or the other"
        held = _estimated(ranked, asked)
        is_high = held.cumsum(dim=-1) - held < asked.chosen.mass
    return torch.zeros_like(candidates).scatter_(-1, order, is_high) & candidates


def _estimated(ranked: Tensor, asked: Asked) -> Tensor:
    """The share of each block in the attention to all candidates, by scores [..., blocks], -inf for no candidate; 0 for
    those, and everywhere where there is none."""
    if asked.chosen.score in ("antidiagonal", "given"):
        held = ranked.clamp(min=0)
        return held / held.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(held.dtype).tiny)
    group = asked.q.shape[1] // asked.k.shape[1]
    return (ranked * (asked.q.shape[3] ** -0.5 / group)).softmax(dim=-1).nan_to_num(nan=0.0)


def _listed(sets: Tensor, chosen: Selected) -> Choice:
    """The blocks of each set bool [B, heads, shares, blocks], as a choice."""
    counts = sets.sum(dim=-1)
    width = max(1, int(counts.max())) if counts.numel() else 1
    indices = torch.full((*counts.shape, width + 1), -1, dtype=torch.int32, device=sets.device)
    places = (sets.cumsum(dim=-1) - 1).masked_fill(~sets, width)  # the last place takes what is not in the set
    numbers = torch.arange(sets.shape[-1], dtype=torch.int32, device=sets.device).expand(sets.shape)
    indices.scatter_(-1, places, numbers)
    return Choice(indices[..., :width].contiguous(), counts.to(torch.int32), chosen.block, chosen.query_block)
