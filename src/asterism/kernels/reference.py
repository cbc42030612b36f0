"""The specification: attention through a dense boolean mask.

It takes a mask, never a plan, and needs nothing but torch, so that it shares nothing with the kernels but the rule.
Memory is O(n_queries * n_keys).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PairTerms(NamedTuple):
    """Terms of the score, said pair by pair; None or 0 for none.

    distances  int64 [Nq, Nk], position of the query - position of the key
    bias       [H or 1, L], for the distances first, first + 1, ..., added to the scores
    relative   [R, D], a vector for each distance 0, 1, ..., added to the keys
    softcap    the bound of the scores before the bias
    sinks      [H], a score per head that every query reads besides, without a value
    kept       bool [B, H, Nq, Nk], the pairs that dropout does not drop, and its `rate`
    """

    distances: Tensor
    bias: Tensor | None = None
    first: int = 0
    relative: Tensor | None = None
    softcap: float = 0.0
    sinks: Tensor | None = None
    kept: Tensor | None = None
    rate: float = 0.0


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None, terms: PairTerms | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the pairs that `mask` allows.

    q [B, H, Nq, D], k [B, Hkv, Nk, D], v [B, Hkv, Nk, Dv], H a multiple of Hkv; `mask` is boolean and broadcasts to
    [B, H, Nq, Nk], True means may attend. `scale` defaults to 1/sqrt(D). Returns out [B, H, Nq, Dv] in the dtype of q,
    and the log-sum-exp [B, H, Nq] (natural logarithm) in float32, or float64 for float64 inputs. A query that may
    attend to nothing gets output 0, log-sum-exp -inf (or the sink) and gradient 0; what a key that no query may read
    holds, even NaN, changes nothing. The pairs allowed must be at distances that the tables of `terms` have.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    bias = None
    if terms is not None and terms.bias is not None:
        bias = _at(terms.bias, terms.distances - terms.first).to(wide)
        mask = mask & (bias != -math.inf)
    unread = ~mask.any(dim=2)[..., None]
    k = k.repeat_interleave(group, dim=1).masked_fill(unread, 0)
    v = v.repeat_interleave(group, dim=1).masked_fill(unread, 0)
    scores = (q @ k.transpose(-1, -2)).to(wide)
    if terms is not None and terms.relative is not None:
        positions = terms.distances.clamp(0, len(terms.relative) - 1).expand(scores.shape)
        scores = scores + (q @ terms.relative.T).to(wide).gather(-1, positions)
    scores = scores * scale
    if terms is not None and terms.softcap:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    if bias is not None:
        scores = scores + bias
    if terms is not None and terms.sinks is not None:
        sinks = terms.sinks.to(wide)[:, None, None].expand(*scores.shape[:3], 1)
        scores, mask = torch.cat([scores, sinks], dim=-1), torch.cat([mask, sinks != -math.inf], dim=-1)
    weights, lse = _softmax(scores, mask)
    weights = weights[..., : k.shape[2]]
    if terms is not None and terms.kept is not None:
        weights = weights * terms.kept / (1 - terms.rate)
    return weights.to(q.dtype) @ v, lse


def _at(table: Tensor, places: Tensor) -> Tensor:
    """[H or 1, L] at places [Nq, Nk] as [H or 1, Nq, Nk]; the last entry where there is no such place."""
    if not table.shape[1]:
        return table.new_zeros((table.shape[0], *places.shape))
    return table[:, places.clamp(0, table.shape[1] - 1)]


def _softmax(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp of the scores allowed; 0 and -inf in a row without any."""
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0)
    weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True).masked_fill(empty, -math.inf)
    return weights, lse[..., 0]
