"""Muon (Jordan 2024): momentum whose matrices are made orthogonal, many matrices of one shape at a time.

The updates are those of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, which takes one matrix after the
other: hundreds of small products in a step, each of which alone keeps few cores busy, and none for long. It also
computes in bfloat16 always; here products are of the type that the run computes in, as a processor without
instructions for bfloat16 takes a hundred times as long over it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of x -> a x + b x^3 + c x^5, which takes every singular value towards 1 (Jordan 2024)."""

ITERATIONS = 5

MOMENTUM = 0.95

_AT_ONCE = 2**22
"""The most elements of a stack of matrices; larger stacks gain nothing, and their copies take memory."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and decoupled weight decay, for parameters with two axes.

    Updates have the size of AdamW's, so that both share one learning rate (Liu et al. 2025, section 2.2). The state of
    a parameter is its `momentum_buffer`. Products are computed in `precision`; bfloat16 is enough for an update.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, precision: torch.dtype) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.precision = precision

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # closures are refused
        """One step; `closure` is accepted because optimisers have it, and refused when given."""
        if closure is not None:
            raise ValueError("Muon does not evaluate closures: compute the gradients before the step")
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step(parameters, group["lr"], group["weight_decay"])

    def _step(self, parameters: list[Tensor], rate: float, weight_decay: float) -> None:
        for places in _of_one_shape(parameters):
            alike = [parameters[place] for place in places]
            stack = alike[0].new_empty((len(alike), *sorted(alike[0].shape)), dtype=self.precision)
            for parameter, row in zip(alike, stack, strict=True):
                gradient = cast(Tensor, parameter.grad)
                momentum = self._momentum(parameter).lerp_(gradient, 1 - MOMENTUM)
                row.copy_(_wide(torch.lerp(gradient, momentum, MOMENTUM)))
            for parameter, update in zip(alike, orthogonal(stack), strict=True):
                update = update if parameter.shape == update.shape else update.T
                parameter.mul_(1 - rate * weight_decay)
                parameter.add_(update, alpha=-0.2 * max(parameter.shape) ** 0.5 * rate)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def orthogonal(matrices: Tensor, epsilon: float = 1e-7) -> Tensor:
    """Floating [count, rows, columns], rows <= columns, each with its singular values brought near 1.

    By iterations of Newton and Schulz: they end between 0.5 and 1.5, which serves as well as 1 (Jordan 2024).
    """
    norms = matrices.norm(dim=(1, 2), keepdim=True)
    matrices = matrices / norms.clamp(min=epsilon)  # no singular value is above 1
    if matrices.dtype == torch.float32 and matrices.shape[2] >= 2 * matrices.shape[1]:
        return _by_squares(matrices)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = matrices @ matrices.mT
        matrices = torch.baddbmm(matrices, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), matrices, beta=a)
    return matrices


def _by_squares(matrices: Tensor) -> Tensor:
    """The same iterations, with about half the operations where columns are four times the rows.

    Each multiplies the matrices by a polynomial of their Gram matrix, and that by its square: all of them together by
    scale * I + rest, and until the end only square matrices are multiplied. They hold squares of singular values, for
    which bfloat16 has too few digits.
    """
    a, b, c = COEFFICIENTS
    gram = matrices @ matrices.mT
    rest = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # the first polynomial is a * I + this
    scale, polynomial = a, rest
    for _ in range(ITERATIONS - 1):
        half = torch.baddbmm(gram, polynomial, gram, beta=a)
        gram = torch.baddbmm(half, half, polynomial, beta=a)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        rest = torch.baddbmm(scale * polynomial + a * rest, polynomial, rest)
        scale *= a
    return torch.baddbmm(matrices, rest, matrices, beta=scale)


def _of_one_shape(parameters: list[Tensor]) -> Iterator[list[int]]:
    """Places of parameters whose matrices are alike up to a transposition, as many as are worth taking at once."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, parameter in enumerate(parameters):
        by_shape.setdefault(tuple(sorted(parameter.shape)), []).append(place)
    for (rows, columns), places in by_shape.items():
        count = max(1, _AT_ONCE // (rows * columns))
        yield from (places[at : at + count] for at in range(0, len(places), count))


def _wide(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
