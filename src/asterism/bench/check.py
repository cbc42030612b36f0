"""Check output and gradients against float64 on a short sequence, before anything is timed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asterism.bench.case import Case
from asterism.bench.contenders import Contender
from asterism.errors import AsterismError
from asterism.kernels.reference import reference

_FACTORS = {"out": (2, 1e-5), "dq": (3, 2e-4), "dk": (3, 2e-4), "dv": (3, 2e-4)}
"""The allowed error, as a multiple of the error of plain arithmetic in the same dtype, and its floor."""

NO_BACKWARD = (AsterismError, NotImplementedError)
"""Errors that a contender without a backward pass raises."""


@dataclass(frozen=True)
class Check:
    """The outcome of a check. `reason` is empty if the result is right, and `no_backward` is empty if the gradients
    are.
    """

    length: int
    reason: str = ""
    refused: bool = False
    no_backward: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


def check(contender: Contender, case: Case, backward: bool) -> Check:
    """Compare a contender with the float64 oracle at its checked length, with batch 1."""
    short = replace(case, length=contender.checked_length(case), batch=1)
    try:
        return _compare(contender, short, backward)
    except AsterismError as error:
        return Check(short.length, first_line(error), refused=True)
    except Exception as error:  # whatever breaks in a kernel or a peer, the others are still worth measuring
        return Check(short.length, f"{type(error).__name__}: {first_line(error)}")


def _compare(contender: Contender, case: Case, backward: bool) -> Check:
    prepared = contender.prepare(case)
    *operands, grad = case.operands()
    mask = prepared.mask().to(case.device)[None]

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference(q, k, v, mask)[0]

    exact = _results(oracle, [x.double() for x in operands], grad.double(), backward)
    plain = _results(oracle, operands, grad, backward)
    with torch.no_grad():
        found = {"out": prepared.compute(*operands)}
    missing = ""
    if backward:
        try:
            found = _results(prepared.compute, operands, grad, backward)
        except NO_BACKWARD as error:
            missing = first_line(error)
    for name, result in found.items():
        if complaint := _complaint(name, result, exact[name], plain[name], contender.loose):
            return Check(case.length, complaint)
    return Check(case.length, no_backward=missing)


def _results(
    compute: Callable[[Tensor, Tensor, Tensor], Tensor], operands: list[Tensor], grad: Tensor, backward: bool
) -> dict[str, Tensor]:
    leaves = [x.detach().clone().requires_grad_(backward) for x in operands]
    out = compute(*leaves)
    if not backward:
        return {"out": out}
    gradients = torch.autograd.grad(out, leaves, grad)
    return {"out": out.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def _complaint(name: str, found: Tensor, exact: Tensor, plain: Tensor, loose: float) -> str:
    """Describe what is wrong with a result; empty if nothing is."""
    if found.shape != exact.shape:
        return f"{name} has shape {list(found.shape)}, expected {list(exact.shape)}"
    error = (found.double() - exact).abs().max().item()
    factor, floor = _FACTORS[name]
    rounding = torch.finfo(found.dtype).eps * exact.abs().max().item()
    allowed = loose * (factor * (plain.double() - exact).abs().max().item() + floor + rounding)
    if not error <= allowed:  # NaN is wrong too
        return f"{name} is off by {error:.2g}, allowed {allowed:.2g}"
    return ""


def first_line(error: Exception) -> str:
    """The message of an error in one line; compilers put the reason into the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
