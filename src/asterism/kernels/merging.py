"""Results of the same queries over disjoint sets of keys, merged exactly by their log-sum-exps (Dao 2023; Liu et al.
2023, Ring Attention).

The sum of all weights is exp(log-sum-exp), so a result over some of the keys counts with exp(its own - that of all).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Result(NamedTuple):
    """out [B, H, N, Dv] and log-sum-exp [B, H, N], float32 or wider; 0 and -inf for queries that read nothing."""

    out: Tensor
    lse: Tensor


class Indices(Protocol):
    """Some of the places along the tokens of a tensor [B, H, N, ...] of any dtype."""

    def __len__(self) -> int: ...

    def take(self, x: Tensor) -> Tensor:
        """What stands there: [B, H, chosen, ...] of x [B, H, N, ...]."""

    def put(self, x: Tensor, some: Tensor) -> Tensor:
        """x [B, H, N, ...] with `some` [B, H, chosen, ...] there."""


def share(lse: Tensor, whole: Tensor) -> Tensor:
    """exp(lse - whole), all [B, H, N] and float32 or float64: what a result counts with in one over more keys; 0 where
    neither reads anything."""
    return (lse - whole.masked_fill(whole == -math.inf, 0)).exp()


def joined(lses: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The log-sum-exp of all of them and the share of each in it, all [B, H, N] and float32 or float64."""
    lse = lses[0]
    for other in lses[1:]:
        lse = torch.logaddexp(lse, other)
    return lse, [share(own, lse) for own in lses]


def merged(results: Sequence[Result]) -> Result:
    """What attention to all the keys together gives."""
    if len(results) == 1:
        return results[0]
    tensors = *(result.out for result in results), *(result.lse for result in results)
    return Result(*_Merged.apply(*tensors))  # type: ignore[no-untyped-call]


def merged_at(whole: Result, more: Result, places: Indices) -> Result:
    """The same where `more` has the results of some of the queries only: of those at these places."""
    if len(places) == whole.lse.shape[2]:
        return merged((whole, more))
    return Result(*_MergedAt.apply(places, *whole, *more))  # type: ignore[no-untyped-call]


def unread(q: Tensor, k: Tensor, v: Tensor) -> Result:
    """The results of queries q [B, H, N, D] that read nothing of k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv], with
    gradients of 0: so a rank without keys, too, takes part in the backward pass. out has the dtype of q."""
    return Result(*_Unread.apply(q, k, v))  # type: ignore[no-untyped-call]


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        outs, lses = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        out, lse, shares = _merge(outs, lses)
        ctx.save_for_backward(out, *outs, *shares)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor, ...]:
        out, *saved = ctx.saved_tensors
        grads, grads_lse = _part(out, saved[: len(saved) // 2], saved[len(saved) // 2 :], grad_out, grad_lse)
        return *grads, *grads_lse


class _MergedAt(torch.autograd.Function):
    """As a whole, it copies the results of the other queries once on each way; slices would leave zeros to be added."""

    @staticmethod
    def forward(
        ctx: Any, places: Indices, out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor
    ) -> tuple[Tensor, Tensor]:
        own_out = places.take(out)
        merged_out, merged_lse, shares = _merge((own_out, more_out), (places.take(lse), more_lse))
        ctx.places = places
        ctx.save_for_backward(merged_out, own_out, more_out, *shares)
        return places.put(out, merged_out), places.put(lse, merged_lse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        out, own_out, more_out, *shares = ctx.saved_tensors
        places = ctx.places
        at = places.take(grad_out), places.take(grad_lse)
        (own, more), (own_lse, more_lse) = _part(out, (own_out, more_out), shares, *at)
        return None, places.put(grad_out, own), places.put(grad_lse, own_lse), more, more_lse


def _merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs and log-sum-exps as one, and the share of each in them."""
    lse, shares = joined(lses)
    wide = sum(out * part[..., None] for out, part in zip(outs, shares, strict=True))
    assert isinstance(wide, Tensor)
    return wide.to(outs[0].dtype), lse, shares


def _part(
    out: Tensor, outs: Sequence[Tensor], shares: Sequence[Tensor], grad_out: Tensor, grad_lse: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the outputs and log-sum-exps that were merged, by their shares."""
    wide = shares[0].dtype
    of_all = grad_lse - (grad_out.to(wide) * out).sum(-1)
    grads, grads_lse = [], []
    for own, part in zip(outs, shares, strict=True):
        grads.append((grad_out * part[..., None]).to(grad_out.dtype))
        grads_lse.append(part * ((grad_out.to(wide) * own).sum(-1) + of_all))
    return grads, grads_lse


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
