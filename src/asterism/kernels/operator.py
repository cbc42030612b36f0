"""Registers a kernel as an operator of PyTorch: schema, fake results and gradient, once for all kernels.

A kernel of tiles is a pair of functions, forward and backward, over `Operands`. `operator` registers them with
torch.library, so that `torch.compile(fullgraph=True)`, autograd and `opcheck` know them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.compiler import Plan
from asterism.compiler.cost import Setting
from asterism.errors import KernelError
from asterism.kernels.checks import as_they_are
from asterism.kernels.merging import share
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.transforms import (
    is_observed,
    is_transformed,
    over_batches,
    refuse_second_derivatives,
    refuse_tangents,
)

_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? segments, Tensor? bias, Tensor? relative, Tensor? sinks"
)
_SETTINGS = (
    "str pattern, SymInt query_offset, float scale, SymInt first_distance, float softcap, float dropout, SymInt seed"
)
_FORWARD = f"({_OPERANDS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor)"
_BACKWARD = (
    f"({_OPERANDS}, {_SETTINGS}, Tensor out, Tensor residual, Tensor lse, Tensor grad_out, Tensor grad_lse,"
    " bool[6] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_TENSORS = ("q", "k", "v", "key_mask", "segments", "bias", "relative", "sinks")
_SETTING_NAMES = ("text", "query_offset", "scale", "first_distance", "softcap", "dropout", "seed")
_FIELDS = (*_TENSORS, *_SETTING_NAMES)
"""The arguments of the operators, as fields of `Operands`."""
_DIFFERENTIABLE = ("q", "k", "v", "bias", "relative", "sinks")


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

    def with_sinks(self, sinks: Tensor) -> "Rounded":
        """The same, where every query also reads a score `sinks` [H] of its head, with a value of 0."""
        lse = torch.logaddexp(self.lse, sinks[:, None])
        part = share(self.lse, lse)[..., None]
        if not self.residual.numel():
            return Rounded(self.out.mul_(part), lse, self.residual)
        return Rounded.rounded((self.out.to(lse.dtype) + self.residual) * part, lse, self.out.dtype)

    def gradient_of_sinks(self, sinks: Tensor, grad_out: Tensor, grad_lse: Tensor) -> Tensor:
        """That of `sinks` [H], which are part of this lse."""
        weights = (sinks[:, None] - self.lse.masked_fill(self.lse == -math.inf, math.inf)).exp()
        return -(weights * self.delta(grad_out, grad_lse)).sum(dim=(0, 2))


Forward = Callable[[Operands], Rounded]
Wanted = Sequence[bool]
"""Whether the gradients of q, k, v, bias and relative are asked for; a schema has no tuples."""
Gradients = tuple[Tensor | None, ...]
"""Those of q, k, v, bias and relative; None for what was not asked for. A kernel that takes no bias and no relative
positions gives only the first three."""
Backward = Callable[[Operands, Rounded, Tensor, Tensor, Wanted], Gradients]
Operator = Callable[..., tuple[Tensor, ...]]


def operator(name: str, forward: Forward, backward: Backward) -> tuple[Operator, Operator]:
    """Attention as the operators `asterism::name` and `asterism::name_backward`, and a function that calls them.

    It takes the fields of `Operands` named in `_FIELDS`, and gives (out, lse, residual), those of `Rounded`. `backward`
    takes the operands, what forward gave, the gradients of out and lse, and which gradients are wanted, and gives those
    of q, k, v, bias and relative, contiguous and in their dtypes; from the operator itself, what is not wanted comes
    back with no elements. Operands may be strided at will.

    Neither function sees sinks: they change out and lse by a factor, and the gradients by the lse that includes them.
    A bias that they see has all distances, and no pattern reads beyond what the tables know.

    The second function computes nothing forward. It takes (out, lse, residual) after the fields: results over these
    keys and others. It gives this out and lse, whose gradients reach the operands as those of their part in them.
    """

    def run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        asked = _operands(arguments)
        operands = _for_kernel(asked)
        with as_they_are(operands.q):
            attended = forward(operands)
            if asked.sinks is not None:
                attended = attended.with_sinks(asked.sinks)
        return attended.out, attended.lse, attended.residual

    def differentiate(*arguments: Any) -> tuple[Tensor, ...]:
        asked = _operands(arguments[: len(_FIELDS)])
        operands, wanted = _without_spoilt(_for_kernel(asked)), arguments[-1]
        out, residual, lse, grad_out, grad_lse = arguments[len(_FIELDS) : -1]
        attended = Rounded(out, lse, residual)
        found: list[Tensor | None] = [None] * len(_DIFFERENTIABLE)
        with as_they_are(out):
            if any(wanted[:-1]):
                gradients = backward(operands, attended, grad_out, grad_lse, wanted[:-1])
                found[: len(gradients)] = gradients
            if asked.sinks is not None and wanted[-1]:
                found[-1] = attended.gradient_of_sinks(asked.sinks, grad_out, grad_lse)
        return tuple(_like_operand(x, asked, name) for x, name in zip(found, _DIFFERENTIABLE, strict=True))

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        out, lse, residual = output
        ctx.mark_non_differentiable(residual)
        ctx.set_materialize_grads(False)
        ctx.settings = inputs[len(_TENSORS) :]
        ctx.save_for_backward(*inputs[: len(_TENSORS)], out, residual, lse)

    def gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputation hands each tensor out a single time
        tensors, (out, residual, lse) = saved[: len(_TENSORS)], saved[len(_TENSORS) :]
        given = (
            torch.zeros_like(result) if grad is None else grad.contiguous()
            for grad, result in zip(grads, (out, lse), strict=False)
        )
        needed = dict(zip(_FIELDS, ctx.needs_input_grad, strict=False))  # results that were given have none
        wanted = [needed[name] for name in _DIFFERENTIABLE]
        gradients = differentiated(*tensors, *ctx.settings, out, residual, lse, *given, wanted)
        found = dict(zip(_DIFFERENTIABLE, gradients, strict=True))
        return tuple(found[name] if needed[name] else None for name in _FIELDS)

    def refuse(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second_derivatives(name)

    attended = _callable(name, _FORWARD, run, _fake_forward, save, gradient)
    differentiated = _callable(f"{name}_backward", _BACKWARD, differentiate, _fake_backward, _save_nothing, refuse)
    return attended, _part(save, gradient)


def _callable(
    name: str,
    schema: str,
    run: Callable[..., tuple[Tensor, ...]],
    fake: Callable[..., tuple[Tensor, ...]],
    save: Callable[..., None],
    gradient: Callable[..., tuple[Tensor | None, ...]],
) -> Operator:
    """An operator of torch.library with its gradient, and the way to it.

    The gradient that torch.library makes of `save` and `gradient` is for torch.compile: torch.func refuses it,
    forward-mode differentiation passes it by, and an ordinary call with it takes half a millisecond more than the
    kernel. For them the same two make an autograd.Function, and an ordinary call goes by the operator only where
    somebody looks at operators.
    """
    registered = torch.library.custom_op(f"asterism::{name}", run, mutates_args=(), schema=schema)
    registered.register_fake(fake)
    registered.register_autograd(gradient, setup_context=save)
    registered.register_vmap(over_batches(registered, _has_rows_apart))

    class Differentiable(torch.autograd.Function):
        forward = staticmethod(run)
        setup_context = staticmethod(save)
        backward = staticmethod(gradient)

    class Transformed(Differentiable):
        forward = staticmethod(registered)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
            refuse_tangents(name.removesuffix("_backward"))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            return over_batches(Transformed.apply, _has_rows_apart)(info, in_dims, *arguments)

    def call(*arguments: Any) -> tuple[Tensor, ...]:
        if is_transformed():
            if torch.compiler.is_compiling():
                raise KernelError(
                    "functional-in-compile", "attention under torch.func or forward-mode derivatives cannot be compiled"
                )
            return Transformed.apply(*arguments)  # type: ignore[no-untyped-call]
        if torch.compiler.is_compiling() or is_observed(arguments):
            return registered(*arguments)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
            return Differentiable.apply(*arguments)  # type: ignore[no-untyped-call]
        return run(*arguments)

    return call


def _operands(arguments: Sequence[Any]) -> Operands:
    return Operands(allowed=None, **dict(zip(_FIELDS, arguments, strict=True)))


def _for_kernel(asked: Operands) -> Operands:
    """The operands as a kernel gets them. Raises KernelError for a pattern that reads what the terms do not know."""
    operands = asked if asked.sinks is None else replace(asked, sinks=None)
    operands.check_distances()
    return operands.with_whole_bias()


def _without_spoilt(operands: Operands) -> Operands:
    """The operands of a backward pass, whose tables are finite but for a bias of -inf.

    What is not finite and is read has made the log-sum-exp, and so the gradients, infinite or NaN; what is not read
    must not become NaN as it is multiplied by a gradient of 0.
    """
    bias, relative = operands.bias, operands.relative
    if bias is None and relative is None:
        return operands
    return replace(
        operands,
        bias=None if bias is None else bias.nan_to_num(0, 0, -math.inf),
        relative=None if relative is None else relative.nan_to_num(0, 0, 0),
    )


def _like_operand(gradient: Tensor | None, asked: Operands, name: str) -> Tensor:
    """The gradient as the operator gives it."""
    operand = getattr(asked, name)
    if gradient is None:
        return asked.q.new_empty(0)
    if name == "bias" and gradient.shape != operand.shape:
        part = gradient.narrow(1, asked.first_distance - asked.distances[0], operand.shape[1])
        return part.clone(memory_format=torch.contiguous_format)  # also of one row, which keeps a stride of the whole
    return gradient


def _has_rows_apart(arguments: Sequence[Any]) -> bool:
    """Whether rows of a batch are more than rows: a term's gradient is their sum, and dropout counts them."""
    given = dict(zip(_FIELDS, arguments, strict=False))
    return given["dropout"] > 0 or any(given[name] is not None for name in ("bias", "relative", "sinks"))


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """For a gradient that is always refused."""


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    residual = q.new_empty(0 if q.dtype == wide else out.shape)
    return out, q.new_empty(q.shape[:3], dtype=wide), residual


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    given, wanted = dict(zip(_FIELDS, arguments, strict=False)), arguments[-1]
    return tuple(
        given[name].new_empty(given[name].shape) if is_wanted else given["q"].new_empty(0)
        for name, is_wanted in zip(_DIFFERENTIABLE, wanted, strict=True)
    )


def _part(save: Callable[..., None], gradient: Callable[..., tuple[Tensor | None, ...]]) -> Operator:
    """The second function that `operator` gives."""

    class PartFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
            out, lse, residual = arguments[len(_FIELDS) :]
            save(ctx, arguments[: len(_FIELDS)], (out, lse, residual))
            return out.view_as(out), lse.view_as(lse)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return *gradient(ctx, *grads), None, None, None

    def part(*arguments: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = PartFunction.apply(*arguments)  # type: ignore[no-untyped-call]
        return found

    return part


class PartOf(torch.autograd.Function):
    """`total` as a function of the results of some keys, out [B, H, Nq, Dv] in the dtype of q and log-sum-exp
    [B, H, Nq], wide, for kernels that must compute these a second time."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, lse: Tensor, total: Rounded) -> tuple[Tensor, Tensor]:
        ctx.total = total
        ctx.save_for_backward(out, lse)
        return total.out.view_as(total.out), total.lse.view_as(total.lse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        (out, lse), total = ctx.saved_tensors, ctx.total
        part = share(lse, total.lse)
        wide = grad_out.to(part.dtype)
        of_lse = part * ((wide * out).sum(dim=-1) - total.delta(grad_out, grad_lse))
        return (wide * part[..., None]).to(grad_out.dtype), of_lse, None


# --- the operator as a kernel ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileKernel:
    """A kernel that runs a plan, by its operator.

    `terms` are those that it computes, of bias, relative, softcap and dropout; its operator joins sinks.
    """

    name: str
    operators: tuple[Operator, Operator]
    refuses: Callable[[Operands], str | None]
    terms: tuple[str, ...] = ()

    def refusal(self, operands: Operands) -> str | None:
        reason = operands.refusal_of_terms(self.name, (*self.terms, "sinks"), instead='"eager" or "auto"')
        return self.refuses(operands) or reason

    def run(self, operands: Operands) -> Attended:
        out, lse, _ = self.operators[0](*(getattr(operands, name) for name in _FIELDS))
        return Attended(out, lse)

    def rounded(self, operands: Operands) -> Rounded:
        """What the forward pass gives, without gradients: nobody else holds the tensors."""
        return Rounded(*self.operators[0](*(getattr(operands, name) for name in _FIELDS)))

    def part(self, operands: Operands, total: Rounded) -> Attended:
        """What `total` says, as a function of these operands, whose keys are some of those it was computed from."""
        given = total.out, total.lse, total.residual
        return Attended(*self.operators[1](*(getattr(operands, name) for name in _FIELDS), *given))

    def costs(self, plan: Plan, setting: Setting) -> float:
        return plan.sparse_cost(self.name, setting)
