"""Attention under a pattern with selected(...) by the CPU kernels: tiles of the plan for what is read in any case, then
tile of keys by tile of keys for the queries that chose it, which go on from there."""

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from asterism.compiler.blocks import tile_of
from asterism.compiler.compile import compile_in_order
from asterism.kernels.checks import as_they_are
from asterism.kernels.cpu import CPU, interface, is_available
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Chosen, check, pointer
from asterism.kernels.cpu.kernel import backward, problem_of
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.operator import Rounded
from asterism.kernels.transforms import refuse_second_derivatives
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
    q, k, v = operands.q, operands.k, operands.v
    found = _Attention.apply(q, k, v, operands.sinks, total, always, bounds, indices)  # type: ignore[no-untyped-call]
    return Attended(*found)


class _Attention(torch.autograd.Function):
    """`total` as a function of its operands."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        total: Rounded,
        always: Operands,
        bounds: Bounds,
        indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, sinks, indices, total.out, total.lse, total.residual)
        ctx.settings = always.key_mask, None, None, always.text, always.query_offset, always.scale
        ctx.bounds = bounds
        return total.out, total.lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, indices, *of_total = ctx.saved_tensors
        given = Operands(q, k, v, *ctx.settings), Rounded(*of_total), ctx.bounds, indices
        found = _Gradients.apply(q, k, v, sinks, grad_out, grad_lse, given)  # type: ignore[no-untyped-call]
        return *found, None, None, None, None


class _Gradients(torch.autograd.Function):
    """Those of q, k, v and sinks; as a function, so that somebody who differentiates them is refused."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        grad_out: Tensor,
        grad_lse: Tensor,
        given: tuple[Operands, Rounded, Bounds, Tensor],
    ) -> tuple[Tensor | None, ...]:
        always, total, bounds, indices = given
        with as_they_are(q):
            grad_out, grad_lse = grad_out.contiguous(), grad_lse.contiguous()
            before = backward(always, total, grad_out, grad_lse, (True, True, True, False, False))
            grads = [x.to(torch.float32) for x in before[:3] if x is not None]
            tensors = dict(zip(("grad_q", "grad_k", "grad_v"), grads, strict=True))
            tensors["delta"] = total.delta(grad_out, grad_lse).contiguous()
            _call(library().asterism_backward_chosen, always, bounds, indices, total, tensors, grad_out)
            of_sinks = None if sinks is None else total.gradient_of_sinks(sinks, grad_out, grad_lse)
        return *(x.to(q.dtype) for x in grads), of_sinks

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second_derivatives("cpu")


def _call(
    function: Any,
    o: Operands,
    bounds: Bounds,
    indices: Tensor,
    total: Rounded,
    tensors: Mapping[str, Tensor],
    grad_out: Tensor | None = None,
) -> None:
    """Calls into the library, which goes on from `total`, or in a backward pass adds to gradients, float32."""
    if not (total.lse.numel() and o.k.shape[2]):
        return
    plan = compile_in_order(bounds.rest, o.q.shape[2], o.k.shape[2], o.query_offset, tile_of(bounds.chosen.block))
    problem = problem_of(o, total, plan)
    if grad_out is not None:
        problem.grad_out = interface.Tensor.of("grad_out", grad_out, o.q.dtype, *total.out.shape)
    chosen = Chosen(pointer("indices", indices, torch.int32, *indices.shape), *indices.shape[1:])
    chosen.block, chosen.query_block = bounds.chosen.block, bounds.chosen.query_block
    for name, x in tensors.items():
        setattr(chosen, name, pointer(name, x, torch.float32, *x.shape))
    check(function(ctypes.byref(problem), ctypes.byref(chosen)))
