"""Dense attention: PyTorch's `scaled_dot_product_attention`, for full or causal plans and for short sequences.

With a mask it needs O(n_queries * n_keys) memory, so a mask is only built for short sequences or few queries.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.cost import DENSE_MASK_LIMIT, Setting, dense_cost
from asterism.kernels.masks import allowed_pairs, distances
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.transforms import is_transformed, refuse_second_derivatives


@dataclass(frozen=True)
class DenseKernel:
    """Attention over all pairs, over those of the past ("causal", with as many queries as keys), or by a mask."""

    kind: Literal["full", "causal", "sparse"]

    def refusal(self, operands: Operands) -> str | None:
        if operands.with_lse:
            return 'implementation="dense" cannot return the log-sum-exp: use "eager" or "reference"'
        computed = ("bias", "sinks") if self.kind == "sparse" else ()
        if reason := operands.refusal_of_terms("dense", computed, instead='"auto", "eager" or "reference"'):
            return reason
        if operands.terms and operands.q.dtype != operands.wide:
            return (
                f'implementation="dense" rounds bias and sinks to the dtype of q, {operands.q.dtype}: use "auto" or'
                ' "eager", or float32'
            )
        return None

    def run(self, operands: Operands) -> Attended:
        o = operands
        allowed = allowed_pairs(o) if self.kind == "sparse" else None
        if allowed is not None and o.terms:
            return Attended(_with_terms(o, allowed), None)
        return Attended(dense(o.q, o.k, o.v, allowed, self.kind == "causal", o.scale), None)

    def costs(self, plan: Plan, setting: Setting) -> float:
        pairs = plan.n_queries * plan.n_keys
        if self.kind == "sparse" and pairs > DENSE_MASK_LIMIT:
            return math.inf
        return dense_cost(self.kind, pairs, setting)


FULL, CAUSAL, MASKED = DenseKernel("full"), DenseKernel("causal"), DenseKernel("sparse")


def dense(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Attention over the pairs that `allowed` (bool [B or 1, H or 1, Nq, Nk]) permits; None permits all (or the causal
    ones). q [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv] of one dtype give [B, H, Nq, Dv] of it.

    Queries that may attend to nothing give 0 and have gradient 0. Keys that no query may read have no influence.
    """
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if allowed is None:
        return _attend_wide(q, k, v, None, scale, is_causal)
    unread = ~allowed.any(dim=-2)[..., None]
    k, v = k.masked_fill(unread, 0), v.masked_fill(unread, 0)
    empty = ~allowed.any(dim=-1, keepdim=True)
    return _attend_wide(q, k, v, allowed | empty, scale).masked_fill(empty, 0)


def _attend_wide(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, is_causal: bool = False) -> Tensor:
    """Attention whose values may be wider or narrower than its keys, at any scale."""
    if scale == 0:
        q, scale = q * 0, 1.0  # PyTorch scales q and k by sqrt(scale) and then divides by it
    width = v.shape[-1]
    if q.shape[-1] != width:
        widest = max(q.shape[-1], width)
        q, k, v = (F.pad(x, (0, widest - x.shape[-1])) for x in (q, k, v))
    return _attend(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)[..., :width]


def _with_terms(operands: Operands, allowed: Tensor) -> Tensor:
    """The same with a bias and with sinks, which are one more key of 0, with a value of 0 and a bias of its own."""
    k, v, whole = operands.k, operands.v, operands.with_whole_bias()
    mask = torch.zeros(allowed.shape, dtype=operands.q.dtype, device=allowed.device)
    if whole.bias is not None:
        mask = whole.bias[:, distances(whole) - whole.first_distance]
        allowed = allowed & (mask > -math.inf)
    empty = ~allowed.any(dim=-1, keepdim=True)
    mask = torch.where(allowed, mask, -math.inf)
    unread = ~allowed.any(dim=-2)[..., None]
    k, v = (x.repeat_interleave(operands.group, dim=1).masked_fill(unread, 0) for x in (k, v))
    if operands.sinks is not None:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        heads = len(operands.sinks)
        column = operands.sinks[:, None, None].expand(mask.shape[0], heads, mask.shape[2], 1)
        mask = torch.cat([mask.expand(-1, heads, -1, -1), column], dim=-1)
    return _attend_wide(operands.q, k, v, mask.masked_fill(empty, 0), operands.scale).masked_fill(empty, 0)


def _attend(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
    """scaled_dot_product_attention. Of its ways to compute only the plain one, O(n^2) memory, knows transforms."""
    if is_transformed():
        from torch.nn.attention import SDPBackend, sdpa_kernel  # loads Triton where it is installed

        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, **arguments)
    q, k, v = (_with_tokens_apart(x) for x in (q, k, v))
    if not torch.compiler.is_compiling() and torch.is_grad_enabled():
        q, k, v = (_differentiable_once(x) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **arguments)


def _with_tokens_apart(x: Tensor) -> Tensor:
    """x, copied where its tokens overlap in memory, as windows of one step do.

    There PyTorch's fused attention on CPUs passes strides to its matrix product that this refuses without a word, and
    returns what lay in fresh memory (seen in 2.13, queries with strides 1 and 1).
    """
    return x.contiguous() if x.stride(-2) < x.shape[-1] and x.stride(-1) == 1 else x


def _differentiable_once(x: Tensor) -> Tensor:
    """A view of x whose gradient has none: PyTorch's fused ways have no second derivative, and say so in riddles."""
    if not x.requires_grad:
        return x
    x = x.view_as(x)
    x.register_hook(_without_gradient)
    return x


def _without_gradient(gradient: Tensor) -> Tensor | None:
    return _Last.apply(gradient) if gradient.requires_grad else None  # type: ignore[no-untyped-call]


class _Last(torch.autograd.Function):
    """A gradient as it is, whose own gradient is refused."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        refuse_second_derivatives("dense")
