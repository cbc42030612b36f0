"""Function transforms: torch.func (grad, vjp, jvp, vmap), forward-mode differentiation, and export to ONNX.

Under them, tensors carry more than their numbers (a tangent, a hidden axis), which a kernel that reads memory would
drop in silence. So a kernel says what it can: differentiate once, and see a hidden axis as part of the batch.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from asterism.errors import KernelError

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def outside_graphs(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The function as torch.compiler.disable gives it, without its second of imports where nothing is compiled: a graph
    is broken before it, and nothing that it calls is traced."""
    disabled: list[Callable[Arguments, Returned]] = []

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **named)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*arguments, **named)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is under way; torch.compile can trace this."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def is_observed(arguments: Sequence[Any]) -> bool:
    """Whether an operator of these arguments must be called as one: somebody watches operators (modes of dispatch, the
    tracer, the profiler), or a tensor has its own idea of them, as subclasses of Tensor have."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
        or any(isinstance(x, Tensor) and type(x) not in (Tensor, torch.nn.Parameter) for x in arguments)
    )


_PLAIN = [False]
"""Whether a graph that is exported now is for programs without this library."""


def is_for_onnx() -> bool:
    """Whether a graph is exported that may have no operators of this library, such as by torch.onnx.export.

    torch.compile can trace this.
    """
    return torch.compiler.is_exporting() and (torch.onnx.is_in_onnx_export() or _PLAIN[0])


@contextmanager
def without_own_operators() -> Iterator[None]:
    """Graphs that torch.export makes within the body have PyTorch's operators alone, as those for ONNX."""
    before, _PLAIN[0] = _PLAIN[0], True
    try:
        yield
    finally:
        _PLAIN[0] = before


def refuse_tangents(name: str) -> NoReturn:
    """Raise KernelError: the implementation has no forward-mode derivatives."""
    raise KernelError(
        "no-forward-mode",
        f'implementation="{name}" has no forward-mode derivatives (torch.func.jvp, jacfwd, forward_ad):'
        ' use implementation="reference" or "dense"',
    )


def refuse_second_derivatives(name: str) -> NoReturn:
    """Raise KernelError: the implementation is differentiable once."""
    raise KernelError(
        "no-second-derivative",
        f'implementation="{name}" has no second derivatives: use implementation="reference"',
    )


def over_batches(
    compute: Callable[..., tuple[Tensor, ...]], has_rows_apart: Callable[[Sequence[Any]], bool]
) -> Callable[..., Any]:
    """The rule of torch.func.vmap for `compute`, whose tensors [B, ...], of any dtypes, all begin with the batch: the
    hidden axis joins it.

    Tensors of one dimension (the empty residual of `Rounded`) have no batch and stay as they are. Where
    `has_rows_apart(arguments)`, a longer batch would be another question, and each is computed by itself.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size
        if has_rows_apart(arguments):
            each = [
                compute(*(_select(x, dim, i) for x, dim in zip(arguments, in_dims, strict=True))) for i in range(size)
            ]
            return tuple(torch.stack(results) for results in zip(*each, strict=True)), (0,) * len(each[0])
        results = compute(*(_fold(x, dim, size) for x, dim in zip(arguments, in_dims, strict=True)))
        unfolded = tuple(x if x.ndim == 1 else x.unflatten(0, (size, x.shape[0] // size)) for x in results)
        return unfolded, tuple(None if x.ndim == 1 else 0 for x in results)

    return rule


def _select(x: Any, dim: int | None, place: int) -> Any:
    return x.select(dim, place) if isinstance(x, Tensor) and dim is not None else x


def _fold(x: Any, dim: int | None, size: int) -> Any:
    """The hidden axis `dim` of x in front of its batch and one with it; without one, x once for each of `size`."""
    if not isinstance(x, Tensor) or (dim is None and x.ndim == 1):
        return x
    moved = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return moved.flatten(0, 1)
