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
from asterism.kernels.masks import allowed_pairs
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.transforms import is_transformed, refuse_second_derivatives


@dataclass(frozen=True)
class Dense:
    """Attention over all pairs, over those of the past ("causal", with as many queries as keys), or by a mask."""

    kind: Literal["full", "causal", "sparse"]

    def refusal(self, operands: Operands) -> str | None:
        if operands.with_lse:
            return 'implementation="dense" cannot return the log-sum-exp: use "eager" or "reference"'
        return operands.refusal_of_terms("dense", (), instead='"auto", "eager" or "reference"')

    def run(self, operands: Operands) -> Attended:
        allowed = allowed_pairs(operands) if self.kind == "sparse" else None
        return Attended(dense(operands.q, operands.k, operands.v, allowed, self.kind == "causal", operands.scale), None)

    def costs(self, plan: Plan, setting: Setting) -> float:
        pairs = plan.n_queries * plan.n_keys
        if self.kind == "sparse" and pairs > DENSE_MASK_LIMIT:
            return math.inf
        return dense_cost(self.kind, pairs, setting)


FULL, CAUSAL, MASKED = Dense("full"), Dense("causal"), Dense("sparse")


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
        return _attend(q, k, v, is_causal=is_causal, scale=scale)[..., :width]
    empty = ~allowed.any(dim=-1, keepdim=True)
    out = _attend(q, k, v, attn_mask=allowed | empty, scale=scale)[..., :width]
    return out.masked_fill(empty, 0)


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
