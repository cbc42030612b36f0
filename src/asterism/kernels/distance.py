"""Causal attention in which the distance between query and key changes the weight.

    weight(q, k) = m(q - k) exp(scale * q . (k + p(q - k)))

p is a table of relative positions and m the soft mask of an adaptive span (Sukhbaatar et al. 2019). The fused kernels
know neither, so this is plain PyTorch, a block of queries at a time: the keys that the pattern's spans name are
gathered, scored and forgotten, and the backward pass computes the scores again. Time and memory follow what is read;
no n x n table is built.

It stands beside the single door `attend`, not behind it, because its weights are parameters that no other kernel takes.
What `attend` promises of tensors, casts, empty rows and derivatives holds here too.

Letters: B batch, H heads, M queries of a block, K keys that they may read, D head_dim, R distances 0 ... R - 1.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from asterism.errors import KernelError
from asterism.kernels.checks import autocast, check_positions, check_tensors
from asterism.kernels.masks import readable
from asterism.kernels.terms import SoftSpan
from asterism.kernels.transforms import is_transformed
from asterism.patterns import Pattern

_SCORES_AT_A_TIME = 2**22
_FEWEST_QUERIES, _MOST_QUERIES = 16, 256


class Pairs(NamedTuple):
    """Which queries may read which keys: allowed bool [B or 1, H or 1, M, K], distances int64 [B or 1, 1, M, K]."""

    allowed: torch.Tensor
    distances: torch.Tensor


def attend_by_distance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Pattern,
    *,
    relative: torch.Tensor | None = None,
    span: SoftSpan | None = None,
    key_mask: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, H, N, Dv], lse [B, H, N]) as `attend` gives them, once differentiable.

    q [B, H, N, D], k [B, Hkv, N, D], v [B, Hkv, N, Dv]; the pattern is causal and reads no further than the table
    `relative` [R, D]. A key whose weight m is 0 is not read. Raises KernelError for tensors that do not fit each other,
    for a second derivative, and under torch.func or forward-mode differentiation.
    """
    q, k, v = _checked(q, k, v, key_mask, segments)
    reach, ramp = (None, None) if span is None else (span.reach, span.ramp)
    relative = None if relative is None else relative[: q.shape[2]]
    attended: Any = _AttendByDistance.apply
    return attended(q, k, v, relative, reach, ramp, pattern, key_mask, segments)


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
    """The same for a few queries [B, H, M, D] against the L keys that a cache has kept, as `decode` gives it."""
    q, k, v = _checked(q, k, v)
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


def _checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None = None,
    segments: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    if is_transformed():
        raise KernelError(
            "attention by distance (relative positions, adaptive spans) has no forward-mode derivatives and cannot be"
            " transformed by torch.func: use backward()"
        )
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, key_mask, segments)
    return q, k, v


class _AttendByDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        relative: torch.Tensor | None,
        reach: torch.Tensor | None,
        ramp: int,
        pattern: Pattern,
        key_mask: torch.Tensor | None,
        segments: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        context.save_for_backward(q, k, v, relative, reach, key_mask, segments)
        context.ramp, context.pattern = ramp, pattern
        out = q.new_zeros((*q.shape[:3], v.shape[-1]))
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
        for queries, keys, pairs in _blocks(q, pattern, key_mask, segments):
            span = None if reach is None else SoftSpan(reach, ramp)
            some = q[:, :, queries], k[:, :, keys], v[:, :, keys]
            out[:, :, queries], lse[:, :, queries] = _read(*some, pairs, relative, span)
        return out, lse

    @staticmethod
    def backward(context: Any, d_out: torch.Tensor, d_lse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = context.saved_tensors  # read once: recomputation hands each tensor out a single time
        with torch.no_grad():
            gradients = _gradients(saved, context.pattern, context.ramp, d_out, d_lse)
        # What the gradients depend on goes along, so that a second derivative comes to `_Once` and is not lost.
        once: Any = _Once.apply
        return *once(len(gradients), *gradients, d_out, d_lse, *saved), None, None, None, None


class _Once(torch.autograd.Function):
    """Gradients as they are; whoever differentiates them again is told that this cannot be had."""

    @staticmethod
    def forward(context: Any, count: int, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in tensors[:count])

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> NoReturn:
        raise KernelError(
            "attention by distance (relative positions, adaptive spans) is differentiable once, and the gradient of its"
            " gradient was asked for"
        )


def _gradients(
    saved: tuple[Any, ...], pattern: Pattern, ramp: int, d_out: torch.Tensor, d_lse: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """Of q, k, v, the table of relative positions and the reach; the scores are computed again."""
    q, k, v, relative, reach, key_mask, segments = saved
    wide = torch.promote_types(q.dtype, torch.float32)
    d_q = torch.zeros_like(q)
    totals = [None if x is None else torch.zeros_like(x, dtype=wide) for x in (k, v, relative, reach)]
    for queries, keys, pairs in _blocks(q, pattern, key_mask, segments):
        some = [q[:, :, queries], k[:, :, keys], v[:, :, keys], relative, reach]
        leaves: list[Any] = [None if x is None else x.detach().requires_grad_() for x in some]
        with torch.enable_grad():
            span = None if leaves[4] is None else SoftSpan(leaves[4], ramp)
            results = _read(leaves[0], leaves[1], leaves[2], pairs, leaves[3], span)
        given = [x for x in leaves if x is not None]
        gradients = iter(torch.autograd.grad(results, given, (d_out[:, :, queries], d_lse[:, :, queries])))
        d_q[:, :, queries] = next(gradients)
        for number, total in enumerate(totals):
            if total is None:
                continue
            if number < 2:  # keys and values, of which the block has read some
                total.index_add_(2, keys, next(gradients).to(wide))
            else:
                total += next(gradients)
    d_k, d_v, d_relative, d_reach = (
        None if total is None else total.to(x.dtype) for total, x in zip(totals, (k, v, relative, reach), strict=True)
    )
    return d_q, d_k, d_v, d_relative, d_reach


def _blocks(
    q: torch.Tensor, pattern: Pattern, key_mask: torch.Tensor | None, segments: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor, Pairs]]:
    """Blocks of queries that read something, and the positions [K] of the keys that some of them may read."""
    batch, heads, length, _ = q.shape
    most_keys = max(len(_keys(pattern, max(0, length - _MOST_QUERIES), length, length)), 1)
    step = min(max(_SCORES_AT_A_TIME // (batch * heads * most_keys), _FEWEST_QUERIES), _MOST_QUERIES)
    for start in range(0, length, step):
        stop = min(start + step, length)
        asked, kept = np.arange(start, stop)[:, None], _keys(pattern, start, stop, length)
        if not len(kept):
            continue
        rule = np.stack([pattern.allows(asked, kept, length, head) for head in range(pattern.heads)])
        allowed = torch.from_numpy(rule)[None].to(q.device)
        distances = torch.from_numpy(asked - kept)[None, None].to(q.device)
        queries, keys = slice(start, stop), torch.from_numpy(kept).to(q.device)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, keys]
        if segments is not None:
            allowed = allowed & (segments[:, None, queries, None] == segments[:, None, None, keys])
        yield queries, keys, Pairs(allowed, distances)


def _keys(pattern: Pattern, start: int, stop: int, length: int) -> np.ndarray:
    """The keys that some query in [start, stop) may read, over all heads, in order: int64 [K]."""
    spans = np.concatenate([pattern.spans((start, stop), length, head) for head in range(pattern.heads)])
    return np.unique(np.concatenate([np.arange(0), *(np.arange(first, last) for first, last in spans)]))


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
