"""Decoding where the distance between query and key changes the score: relative positions and adaptive spans.

    weight(q, k) = m(q - k) exp(scale * q . (k + p(q - k)))

p is a table of relative positions and m the soft mask of an adaptive span (Sukhbaatar et al. 2019). `attend` takes both
as terms of the score; against the keys of a cache, where each slot has a distance of its own, this is the formula in
PyTorch.

Letters: B batch, H heads, M queries, K keys that they may read, D head_dim, R distances 0 ... R - 1.
"""

import math
from typing import NamedTuple

import torch

from asterism.errors import KernelError
from asterism.kernels.checks import autocast, check_positions, check_tensors
from asterism.kernels.masks import readable
from asterism.kernels.terms import SoftSpan
from asterism.kernels.transforms import is_transformed
from asterism.patterns import Pattern

_MOST_QUERIES = 256
"""Queries at a time."""


class Pairs(NamedTuple):
    """Which queries may read which keys: allowed bool [B or 1, H or 1, M, K], distances int64 [B or 1, 1, M, K]."""

    allowed: torch.Tensor
    distances: torch.Tensor


def decode_by_distance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Pattern,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    *,
    relative: torch.Tensor | None = None,
    span: SoftSpan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, H, M, Dv], lse [B, H, M]) of a few queries against the L keys that a cache has kept, as `decode` gives
    them.

    The pattern is causal and reads no further than the table `relative` [R, D]. A key whose weight m is 0 is not read.
    Raises KernelError for tensors that do not fit each other, and under torch.func or forward-mode differentiation.
    """
    if is_transformed():
        raise KernelError(
            "decoding with relative positions or adaptive spans has no forward-mode derivatives and cannot be"
            " transformed by torch.func"
        )
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, None, None)
    check_positions("query_positions", query_positions, q)
    check_positions("key_positions", key_positions, k)
    parts = []
    for start in range(0, q.shape[2], _MOST_QUERIES):
        chunk = slice(start, start + _MOST_QUERIES)
        asked = query_positions[:, chunk]
        distances = (asked[:, :, None] - key_positions[:, None, :])[:, None]
        pairs = Pairs(readable(pattern, asked, key_positions), distances)
        parts.append(_read(q[:, :, chunk], k, v, pairs, relative, span))
    out, lse = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return out, lse


def _read(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pairs: Pairs,
    relative: torch.Tensor | None,
    span: SoftSpan | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula for all queries [B, H, M, D] and keys [B, Hkv, K, D] at once: (out [B, H, M, Dv], lse [B, H, M])."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    allowed, distances = pairs
    weights = None if span is None else SoftSpan(span.reach.to(wide), span.ramp).weights(distances)
    if weights is not None:
        allowed = allowed & (weights > 0)
    unread = ~allowed.any(dim=-2)[..., None]
    k, v = (x.repeat_interleave(group, dim=1).masked_fill(unread, 0) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        scores = (q @ k.transpose(-1, -2)).to(wide)
        if relative is not None:
            by_distance = (q @ relative.to(q.dtype).T).to(wide)
            places = distances.clamp(0, len(relative) - 1).expand(scores.shape)
            scores = scores + by_distance.gather(-1, places)
        scores = (scores / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
        top = scores.detach().amax(dim=-1, keepdim=True)
        empty = top == -math.inf
        top = top.masked_fill(empty, 0)
        powers = torch.exp(scores - top)
        powers = powers if weights is None else powers * weights
        total = powers.sum(dim=-1, keepdim=True).masked_fill(empty, 1)
        lse = (total.log() + top).masked_fill(empty, -math.inf)
        return (powers / total).to(q.dtype) @ v, lse[..., 0]
