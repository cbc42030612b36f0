"""Dense attention: PyTorch's `scaled_dot_product_attention`, for full or causal plans and for short sequences.

With a mask it needs O(n_queries * n_keys) memory, so a mask is only built for short sequences or few queries.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.patterns import parse


def dense(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Attention over the pairs that `allowed` [B or 1, H or 1, Nq, Nk] permits; None permits all (or the causal ones).

    Queries that may attend to nothing give 0 and have gradient 0; keys that no query may read have no influence.
    """
    if scale == 0:
        q, scale = q * 0, 1.0  # PyTorch scales q and k by sqrt(scale) and then divides by it
    group = q.shape[1] // k.shape[1]
    width = v.shape[-1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if allowed is not None:
        unread = ~allowed.any(dim=-2)[..., None]
        k, v = k.masked_fill(unread, 0), v.masked_fill(unread, 0)
    if q.shape[-1] != width:
        widest = max(q.shape[-1], width)
        q, k, v = (F.pad(x, (0, widest - x.shape[-1])) for x in (q, k, v))
    if allowed is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)[..., :width]
    empty = ~allowed.any(dim=-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | empty, scale=scale)[..., :width]
    return out.masked_fill(empty, 0)


@torch.library.custom_op("asterism::mask", mutates_args=())
def mask(like: Tensor, pattern: str, n_queries: int, n_keys: int, query_offset: int) -> Tensor:
    """The pattern as a boolean tensor [heads, n_queries, n_keys] on the device of `like`."""
    return _mask(pattern, n_queries, n_keys, query_offset, like.device).clone()


@mask.register_fake
def _(like: Tensor, pattern: str, n_queries: int, n_keys: int, query_offset: int) -> Tensor:
    return like.new_empty((parse(pattern).heads, n_queries, n_keys), dtype=torch.bool)


@lru_cache(maxsize=32)
def _mask(pattern: str, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    return torch.from_numpy(parse(pattern).dense(n_queries, n_keys, query_offset)).to(device)
