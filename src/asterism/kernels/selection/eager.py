"""The pairs that a choice adds, in plain PyTorch: a few queries at a time, each with copies of its blocks."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from asterism.kernels.checks import as_they_are
from asterism.kernels.merging import Result
from asterism.kernels.operands import Operands
from asterism.kernels.selection.asked import shares_of
from asterism.patterns.selected import Bounds

_AT_A_TIME = 2**22
"""Numbers of keys and values copied together, about."""


def attend(operands: Operands, bounds: Bounds, indices: Tensor) -> Result:
    """Attention to the pairs of the pattern's rest in the blocks chosen, int32 [B, heads, G, K], with gradients.

    out [B, H, Nq, Dv] and log-sum-exp [B, H, Nq], float32, or float64 for float64. What the backward pass needs is
    computed a second time.
    """
    o, block = operands, bounds.chosen.block
    filled = min(block, o.k.shape[2])
    wide, width = o.wide, indices.shape[3] * filled * (o.q.shape[3] + o.v.shape[3])
    step = max(1, _AT_A_TIME // max(1, o.q.shape[0] * o.q.shape[1] * width))
    place = torch.arange(o.q.shape[2], device=o.q.device) + o.query_offset
    share = shares_of(o.q, o.query_offset, bounds.chosen.query_block)

    def some(q: Tensor, k: Tensor, v: Tensor, first: int) -> tuple[Tensor, Tensor]:
        past = min(first + step, o.q.shape[2])
        chosen = indices[:, :, share[first:past]].repeat_interleave(o.q.shape[1] // indices.shape[1], dim=1)
        keys = (chosen[..., None].long() * block + torch.arange(filled, device=q.device)).flatten(3)  # [B, H, n, K']
        mask = _allowed(o, bounds, place[first:past], keys)
        keys = keys.clamp(0, k.shape[2] - 1)
        k, v = (_taken(x, keys, o.group).to(wide).masked_fill(~mask[..., None], 0) for x in (k, v))
        scores = (q[:, :, first:past, None].to(wide) @ k.transpose(-1, -2))[..., 0, :] * o.scale
        scores = scores.masked_fill(~mask, -math.inf)
        empty = ~mask.any(dim=-1, keepdim=True)
        lse = scores.masked_fill(empty, 0).logsumexp(dim=-1, keepdim=True)
        weights = (scores - lse).exp().masked_fill(~mask, 0)
        return (weights[..., None, :] @ v)[..., 0, :], lse.masked_fill(empty, -math.inf)[..., 0]

    with as_they_are(o.q):
        again = partial(checkpoint, some, use_reentrant=False, preserve_rng_state=False) if o.differentiated else some
        parts = [again(o.q, o.k, o.v, first) for first in range(0, max(1, o.q.shape[2]), step)]
    return Result(torch.cat([out for out, _ in parts], dim=2), torch.cat([lse for _, lse in parts], dim=2))


def _allowed(o: Operands, bounds: Bounds, place: Tensor, keys: Tensor) -> Tensor:
    """bool [B, H, n, K']: whether queries at `place` [n] may read keys [B, H, n, K'] of blocks chosen."""
    n_keys = o.k.shape[2]
    exists = (keys >= 0) & (keys < n_keys)
    asked = np.broadcast_to(place.cpu().numpy()[:, None], keys.shape)
    some = exists.cpu().numpy()
    found = np.zeros(keys.shape, bool)
    found[some] = bounds.rest.allows(asked[some], keys.cpu().numpy()[some], n_keys)
    mask = torch.from_numpy(found).to(keys.device)
    if o.key_mask is not None:
        rows = o.key_mask[:, None, None].expand(*keys.shape[:3], -1)
        mask = mask & rows.gather(3, keys.clamp(0, n_keys - 1))
    return mask


def _taken(x: Tensor, keys: Tensor, group: int) -> Tensor:
    """x [B, Hkv, Nk, D] at keys [B, H, n, K'], as [B, H, n, K', D]."""
    batch, heads = keys.shape[:2]
    rows = torch.arange(batch, device=x.device)[:, None] * x.shape[1] + torch.arange(heads, device=x.device) // group
    return x.flatten(0, 2)[rows[..., None, None] * x.shape[2] + keys]
