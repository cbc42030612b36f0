"""What makes a kernel an operator of PyTorch: schema, fake results and gradient, written once for all kernels.

A kernel of tiles is a pair of functions, forward and backward, over `Operands`. `operator` registers them with
torch.library, so that `torch.compile(fullgraph=True)`, autograd and `opcheck` know them.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.cost import Setting
from asterism.errors import KernelError
from asterism.kernels.operands import Attended, Operands, as_heads
from asterism.kernels.transforms import is_transformed, over_batches, refuse_second_derivatives, refuse_tangents

_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? segments, Tensor? allowed"
_SETTINGS = "str pattern, SymInt query_offset, float scale"
_FORWARD = f"({_OPERANDS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor)"
_BACKWARD = (
    f"({_OPERANDS}, {_SETTINGS}, Tensor out, Tensor residual, Tensor lse, Tensor grad_out, Tensor grad_lse,"
    " bool[3] wanted) -> (Tensor, Tensor, Tensor)"
)
_TENSORS = 6
_ARGUMENTS = 9


@dataclass(frozen=True)
class Rounded:
    """What a forward pass gives.

    out [B, H, Nq, Dv] in the dtype of q, lse [B, H, Nq] wide, and for half precision what rounding took from out
    (`residual`, like out), because the backward pass needs more digits of it than it has; else an empty tensor.
    """

    out: Tensor
    lse: Tensor
    residual: Tensor

    @classmethod
    def rounded(cls, out: Tensor, lse: Tensor, dtype: torch.dtype) -> "Rounded":
        """From the output before rounding."""
        if out.dtype == dtype:
            return cls(out.contiguous(), lse.contiguous(), out.new_empty(0))
        narrow = out.to(dtype).contiguous()
        return cls(narrow, lse.contiguous(), (out - narrow).to(dtype).contiguous())

    def delta(self, grad_out: Tensor, grad_lse: Tensor) -> Tensor:
        """rowsum(grad_out * out) - grad_lse [B, H, Nq], wide; 0 where nothing is read (Dao 2023, section 3.1)."""
        wide = self.lse.dtype
        out = self.out.to(wide)
        if self.residual.numel():
            out = out + self.residual
        delta = (grad_out.to(wide) * out).sum(dim=-1) - grad_lse
        return delta.masked_fill(self.lse == -math.inf, 0)


Forward = Callable[[Operands], Rounded]
Wanted = Sequence[bool]
"""Whether the gradients of q, k and v are asked for; a schema has no tuples."""
Gradients = tuple[Tensor | None, ...]
"""Those of q, k and v; None for what was not asked for."""
Backward = Callable[[Operands, Rounded, Tensor, Tensor, Wanted], Gradients]
Operator = Callable[..., tuple[Tensor, Tensor, Tensor]]


def operator(name: str, forward: Forward, backward: Backward) -> Operator:
    """Attention as the operators `asterism::name` and `asterism::name_backward`, and a function that calls them.

    It takes (q, k, v, key_mask, segments, allowed, pattern, query_offset, scale), the fields of `Operands`, and gives
    (out, lse, residual), those of `Rounded`. `backward` takes the operands, what forward gave, the gradients of out and
    lse, and which gradients are wanted, and gives those of q, k and v, contiguous and in their dtypes; from the
    operator itself, what is not wanted comes back with no elements. Operands may be strided at will.
    """

    def run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        operands = Operands(*arguments).with_equal_rows()
        with _as_they_are(operands.q):
            attended = forward(operands)
        shape = arguments[0].shape[:2]
        out, lse, residual = (_like_rows(x, shape) for x in (attended.out, attended.lse, attended.residual))
        return out, lse, residual

    def differentiate(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        asked = Operands(*arguments[:_ARGUMENTS])
        operands, given, wanted = asked.with_equal_rows(), arguments[_ARGUMENTS:-1], arguments[-1]
        if operands is not asked:
            given = tuple(as_heads(x) if x.ndim > 1 else x for x in given)
        out, residual, lse, grad_out, grad_lse = given
        with _as_they_are(out):
            gradients = backward(operands, Rounded(out, lse, residual), grad_out, grad_lse, wanted)
        grad_q, grad_k, grad_v = (
            x.new_empty(0) if gradient is None else _like_rows(gradient, x.shape[:2])
            for gradient, x in zip(gradients, arguments[:3], strict=True)
        )
        return grad_q, grad_k, grad_v

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        out, lse, residual = output
        ctx.mark_non_differentiable(residual)
        ctx.set_materialize_grads(False)
        ctx.settings = inputs[_TENSORS:]
        ctx.save_for_backward(*inputs[:_TENSORS], out, residual, lse)

    def gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputation hands each tensor out a single time
        out, _, lse = saved[_TENSORS:]
        given = (
            torch.zeros_like(result) if grad is None else grad.contiguous()
            for grad, result in zip(grads, (out, lse), strict=False)
        )
        wanted = list(ctx.needs_input_grad[:3])
        gradients = differentiated(*saved[:_TENSORS], *ctx.settings, *saved[_TENSORS:], *given, wanted)
        found = [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted, strict=True)]
        return *found, *[None] * (_ARGUMENTS - 3)

    def refuse(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second_derivatives(name)

    attended = _callable(name, _FORWARD, run, _fake_forward, save, gradient)
    differentiated = _callable(f"{name}_backward", _BACKWARD, differentiate, _fake_backward, _save_nothing, refuse)
    return attended


def _callable(
    name: str,
    schema: str,
    run: Callable[..., tuple[Tensor, Tensor, Tensor]],
    fake: Callable[..., tuple[Tensor, Tensor, Tensor]],
    save: Callable[..., None],
    gradient: Callable[..., tuple[Tensor | None, ...]],
) -> Operator:
    """An operator of torch.library with its gradient, and the way to it.

    The gradient that torch.library makes of `save` and `gradient` is for torch.autograd and torch.compile: torch.func
    refuses it, and forward-mode differentiation passes it by. For them the same two make an autograd.Function.
    """
    registered = torch.library.custom_op(f"asterism::{name}", run, mutates_args=(), schema=schema)
    registered.register_fake(fake)
    registered.register_autograd(gradient, setup_context=save)
    registered.register_vmap(over_batches(registered))

    class Transformed(torch.autograd.Function):
        forward = staticmethod(registered)
        setup_context = staticmethod(save)
        backward = staticmethod(gradient)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
            refuse_tangents(name.removesuffix("_backward"))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            return over_batches(Transformed.apply)(info, in_dims, *arguments)

    def call(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        if not is_transformed():
            return registered(*arguments)
        if torch.compiler.is_compiling():
            raise KernelError("attention under torch.func or forward-mode derivatives cannot be compiled")
        return Transformed.apply(*arguments)  # type: ignore[no-untyped-call]

    return call


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """For a gradient that is always refused."""


def _as_they_are(x: Tensor) -> AbstractContextManager[object]:
    """No casts: autocast goes on inside an operator, and would round the wide sums of a kernel in PyTorch."""
    kind = x.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _like_rows(x: Tensor, rows: torch.Size) -> Tensor:
    """x [1, B * H, ...] as [B, H, ...], where it is not (see Operands.with_equal_rows)."""
    return x if x.ndim == 1 or x.shape[:2] == rows else x.view(*rows, *x.shape[2:])


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    residual = q.new_empty(0 if q.dtype == wide else out.shape)
    return out, q.new_empty(q.shape[:3], dtype=wide), residual


def _fake_backward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    wanted = others[-1]
    grad_q, grad_k, grad_v = (
        x.new_empty(x.shape if is_wanted else 0) for x, is_wanted in zip((q, k, v), wanted, strict=True)
    )
    return grad_q, grad_k, grad_v


# --- the operator as a kernel ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """A kernel that runs a plan, by its operator."""

    name: str
    operator: Operator
    refuses: Callable[[Operands], str | None]

    def refusal(self, operands: Operands) -> str | None:
        return self.refuses(operands)

    def run(self, operands: Operands) -> Attended:
        o = operands
        out, lse, _ = self.operator(o.q, o.k, o.v, o.key_mask, o.segments, o.allowed, o.text, o.query_offset, o.scale)
        return Attended(out, lse)

    def costs(self, plan: Plan, setting: Setting) -> float:
        return plan.sparse_cost(self.name, setting)
