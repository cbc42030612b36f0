"""Results of the same queries over disjoint sets of keys, merged exactly by their log-sum-exps (Dao 2023; Liu et al.
2023, Ring Attention)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.parallel.places import Places


class Result(NamedTuple):
    """out [B, H, N, Dv] and log-sum-exp [B, H, N], float32 or wider; 0 and -inf for queries that read nothing."""

    out: Tensor
    lse: Tensor


def merged(results: Sequence[Result]) -> Result:
    """What attention to all the keys together gives."""
    if len(results) == 1:
        return results[0]
    tensors = *(result.out for result in results), *(result.lse for result in results)
    return Result(*_Merged.apply(*tensors))  # type: ignore[no-untyped-call]


def merged_at(whole: Result, more: Result, places: Places) -> Result:
    """The same where `more` has the results of some of the queries only: of those at these places."""
    if len(places) == whole.lse.shape[2]:
        return merged((whole, more))
    own = Result(*(places.take(x) for x in whole))
    return Result(*(places.put(x, y) for x, y in zip(whole, merged((own, more)), strict=True)))


def unread(q: Tensor, k: Tensor, v: Tensor) -> Result:
    """The results of queries that read nothing, with gradients of 0: so a rank without keys, too, takes part in the
    backward pass."""
    return Result(*_Unread.apply(q, k, v))  # type: ignore[no-untyped-call]


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        outs, lses = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        lse = lses[0]
        for other in lses[1:]:
            lse = torch.logaddexp(lse, other)
        finite = lse.masked_fill(lse == -math.inf, 0)
        shares = [(own - finite).exp() for own in lses]
        wide = sum(out * share[..., None] for out, share in zip(outs, shares, strict=True))
        assert isinstance(wide, Tensor)
        out = wide.to(outs[0].dtype)
        ctx.save_for_backward(out, *outs, *shares)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor, ...]:
        out, *saved = ctx.saved_tensors
        outs, shares = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        wide = shares[0].dtype
        of_all = grad_lse - (grad_out.to(wide) * out).sum(-1)
        grads, grads_lse = [], []
        for own, share in zip(outs, shares, strict=True):
            grads.append((grad_out * share[..., None]).to(grad_out.dtype))
            grads_lse.append(share * ((grad_out.to(wide) * own).sum(-1) + of_all))
        return *grads, *grads_lse


class _Unread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v)
        wide = torch.promote_types(q.dtype, torch.float32)
        return q.new_zeros((*q.shape[:3], v.shape[-1])), q.new_full(q.shape[:3], -math.inf, dtype=wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(x) for x in ctx.saved_tensors)
