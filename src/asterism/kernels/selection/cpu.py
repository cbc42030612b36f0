"""Attention under a pattern with selected(...) by the CPU kernels: tiles of the plan for what is read in any case, then
tile of keys by tile of keys for the queries that chose it, which go on from there."""

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.compiler.blocks import rest_plan
from asterism.kernels.checks import as_they_are
from asterism.kernels.cpu import CPU, interface, is_available
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Chosen, check, pointer
from asterism.kernels.cpu.kernel import problem_of
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.operator import Rounded
from asterism.patterns.by_text import remember
from asterism.patterns.selected import Bounds


def refusal(operands: Operands) -> str | None:
    """Why the kernel cannot take the operands, in one line; None if it can."""
    reason = CPU.refuses(operands)
    return reason or (None if is_available() else "implementation 'cpu' could not be built: use 'auto'")


def attend(operands: Operands, bounds: Bounds, indices: Tensor) -> Attended:
    """Attention of operands q [B, H, Nq, D] with the blocks chosen, int32 [B, heads, G, K], and with gradients.

    bfloat16 is computed in float32 in the blocks chosen.
    """
    always = replace(operands, text=remember(bounds.always), with_lse=True)
    with torch.no_grad(), as_they_are(operands.q):
        total = CPU.rounded(always)
        _call(library().asterism_forward_chosen, operands, bounds, indices, total, {})
    if not operands.differentiated:
        return Attended(total.out, total.lse)
    before = CPU.part(always, total)
    q, k, v = operands.q, operands.k, operands.v
    return Attended(*_Part.apply(q, k, v, *before, total, operands, bounds, indices))  # type: ignore[no-untyped-call]


class _Part(torch.autograd.Function):
    """`total` as a function of what was read before and of the blocks chosen."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        total: Rounded,
        operands: Operands,
        bounds: Bounds,
        indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, indices, total.out, total.lse, total.residual)
        o = operands
        ctx.settings = o.key_mask, None, None, o.text, o.query_offset, o.scale
        ctx.bounds = bounds
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, indices, *of_total = ctx.saved_tensors
        total = Rounded(*of_total)
        tensors = {name: torch.empty(x.shape, dtype=torch.float32) for name, x in zip(_GRADS, (q, k, v), strict=True)}
        with as_they_are(q):
            tensors["delta"] = total.delta(grad_out, grad_lse).contiguous()
            operands = Operands(q, k, v, *ctx.settings)
            _call(library().asterism_backward_chosen, operands, ctx.bounds, indices, total, tensors, grad_out)
        grads = (tensors[name].to(q.dtype) for name in _GRADS)
        return *grads, grad_out, grad_lse, None, None, None, None


_GRADS = ("grad_q", "grad_k", "grad_v")


def _call(
    function: Any,
    o: Operands,
    bounds: Bounds,
    indices: Tensor,
    total: Rounded,
    tensors: Mapping[str, Tensor],
    grad_out: Tensor | None = None,
) -> None:
    """Calls into the library, which goes on from `total`, or in a backward pass writes gradients, float32."""
    if not (total.lse.numel() and o.k.shape[2]):
        for x in tensors.values():
            x.zero_()
        return
    problem = problem_of(o, total, rest_plan(o.pattern, o.q.shape[2], o.k.shape[2], o.query_offset))
    if grad_out is not None:
        problem.grad_out = interface.Tensor.of("grad_out", grad_out, o.q.dtype, *total.out.shape)
    chosen = Chosen(pointer("indices", indices, torch.int32, *indices.shape), *indices.shape[1:])
    chosen.block, chosen.query_block = bounds.chosen.block, bounds.chosen.query_block
    for name, x in tensors.items():
        setattr(chosen, name, pointer(name, x, torch.float32, *x.shape))
    check(function(ctypes.byref(problem), ctypes.byref(chosen)))
