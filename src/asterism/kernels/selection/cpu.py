"""The pairs that a choice adds, by the CPU kernel: tile of keys by tile of keys, for the queries that chose it."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.compiler.blocks import rest_plan
from asterism.kernels.checks import as_they_are
from asterism.kernels.cpu import interface, is_available
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Chosen, check, pointer
from asterism.kernels.cpu.kernel import problem_under
from asterism.kernels.cpu.kernel import refusal as refusal_of_operands
from asterism.kernels.merging import Result
from asterism.kernels.operands import Operands
from asterism.patterns.selected import Bounds


def refusal(operands: Operands) -> str | None:
    """Why the kernel cannot take the operands, in one line; None if it can."""
    reason = refusal_of_operands(operands)
    return reason or (None if is_available() else "implementation 'cpu' could not be built: use 'auto'")


def attend(operands: Operands, bounds: Bounds, indices: Tensor) -> Result:
    """As `eager.attend`: out [B, H, Nq, Dv] and log-sum-exp [B, H, Nq], float32, with gradients. bfloat16 is computed
    in float32."""
    q, k, v = operands.q, operands.k, operands.v
    with as_they_are(q):
        return Result(*_Attention.apply(q, k, v, operands, bounds, indices))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, operands: Operands, bounds: Bounds, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        out = q.new_empty((*q.shape[:3], v.shape[3]), dtype=torch.float32)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, indices, out, lse)
        ctx.mask, ctx.settings = operands.key_mask, (operands.text, operands.query_offset, operands.scale, bounds)
        _call(library().asterism_forward_chosen, operands, bounds, (indices, out, lse), {})
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, indices, out, lse = ctx.saved_tensors
        text, offset, scale, bounds = ctx.settings
        operands = Operands(q, k, v, ctx.mask, None, None, text, offset, scale)
        delta = ((grad_out * out).sum(dim=-1) - grad_lse).masked_fill(lse == -torch.inf, 0).contiguous()
        given = {"grad_q": q, "grad_k": k, "grad_v": v}
        grads = {name: torch.empty(x.shape, dtype=torch.float32, device=x.device) for name, x in given.items()}
        tensors = {"grad_out": grad_out, "delta": delta, **grads}
        _call(library().asterism_backward_chosen, operands, bounds, (indices, out, lse), tensors)
        return *(grads[name].to(x.dtype) for name, x in given.items()), None, None, None


def _call(
    function: Any, o: Operands, bounds: Bounds, results: tuple[Tensor, Tensor, Tensor], others: dict[str, Tensor]
) -> None:
    """Calls into the library with a choice, results and, in a backward pass, what that takes and gives."""
    indices, out, lse = results
    plan = rest_plan(o.pattern, o.q.shape[2], o.k.shape[2], o.query_offset)
    problem = problem_under(plan, o)
    heads, shares, width = indices.shape[1:]
    chosen = Chosen(pointer("indices", indices, torch.int32, *indices.shape), heads, shares, width)
    chosen.block, chosen.query_block = bounds.chosen.block, bounds.chosen.query_block
    chosen.out = pointer("out", out, torch.float32, *out.shape)
    chosen.lse = pointer("lse", lse, torch.float32, *lse.shape)
    for name, x in others.items():
        if name == "grad_out":
            chosen.grad_out = interface.Tensor.of(name, x, torch.float32, *out.shape)
        else:
            setattr(chosen, name, pointer(name, x, torch.float32, *x.shape))
    if out.shape[:3].numel() and o.k.shape[2]:
        check(function(ctypes.byref(problem), ctypes.byref(chosen)))
    elif not others:
        out.zero_()
        lse.fill_(-torch.inf)
