"""The specification: attention through a dense boolean mask.

It takes a mask, never a plan, and needs nothing but torch, so that it shares nothing with the kernels but the rule.
Memory is O(n_queries * n_keys).
"""

import math

import torch
from torch import Tensor


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Softmax attention over the pairs that `mask` allows.

    q [B, H, Nq, D], k [B, Hkv, Nk, D], v [B, Hkv, Nk, Dv], H a multiple of Hkv; `mask` is boolean and broadcasts to
    [B, H, Nq, Nk], True means may attend. `scale` defaults to 1/sqrt(D). Returns out [B, H, Nq, Dv] in the dtype of q,
    and the log-sum-exp [B, H, Nq] (natural logarithm) in float32, or float64 for float64 inputs. A query that may
    attend to nothing gets output 0, log-sum-exp -inf and gradient 0; what a key that no query may read holds, even
    NaN, changes nothing.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    unread = ~mask.any(dim=2)[..., None]
    k = k.repeat_interleave(group, dim=1).masked_fill(unread, 0)
    v = v.repeat_interleave(group, dim=1).masked_fill(unread, 0)
    scores = (q @ k.transpose(-1, -2)).to(wide) * scale
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~mask, -math.inf).masked_fill(empty, 0)
    weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0)
    lse = torch.logsumexp(scores, dim=-1, keepdim=True).masked_fill(empty, -math.inf)
    return weights.to(q.dtype) @ v, lse[..., 0]
