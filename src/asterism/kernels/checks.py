"""Checks of the tensors of attention, before any kernel runs."""

import operator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from asterism.errors import KernelError, shown
from asterism.patterns.across import steps
from asterism.patterns.by_text import by_text
from asterism.patterns.part import counts_positions, is_of_itself
from asterism.patterns.pattern import default_offset, resolve_lengths

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What q, k and v may be."""

_KINDS = ("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu", torch._C._get_privateuse1_backend_name())
_AUTOCASTS = frozenset(kind for kind in _KINDS if torch.amp.is_autocast_available(kind))
"""Devices that know autocast, asked here because torch.compile of torch 2.11 cannot ask within a graph."""


def autocast(*operands: Tensor) -> tuple[Tensor, ...]:
    """The operands, such as q [B, H, N, D], in the dtype of torch.autocast where it is on, as PyTorch's own attention
    casts them: float64 and integers stay as they are."""
    kind = operands[0].device.type
    if not (kind in _AUTOCASTS and torch.is_autocast_enabled(kind)):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in operands)


def as_they_are(x: Tensor) -> AbstractContextManager[object]:
    """No casts on the device of x, such as q [B, H, N, D], of any dtype: autocast continues inside an operator, and
    would round what a kernel needs wide."""
    kind = x.device.type
    if not (kind in _AUTOCASTS and torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def check_types(**operands: object) -> None:
    """Raises KernelError for what is not an ordinary tensor of numbers in rows; None stands for none."""
    for name, operand in operands.items():
        if operand is None and name in ("key_mask", "segments"):
            continue
        if not isinstance(operand, Tensor):
            raise KernelError("not-a-tensor", f"{name} must be a torch.Tensor, got a {type(operand).__name__}")
        if operand.layout != torch.strided or operand.is_nested:
            kind = "nested" if operand.is_nested else str(operand.layout)
            raise KernelError(
                "not-strided", f"{name} must be an ordinary (strided) tensor, got a {kind} one: convert it first"
            )


def check_offset(query_offset: int | None, q: Tensor, k: Tensor, text: str) -> int:
    """Where the queries begin among the keys, for q [B, H, Nq, D] and k [B, Hkv, Nk, D] of any dtype.

    Raises KernelError for what is not a whole number, PatternError for a place that the pattern does not know.
    In a graph, where lengths may be symbols, the operators say the latter.
    """
    if torch.compiler.is_compiling():
        return default_offset(crossing(text).crosses, q.shape[2], k.shape[2]) if query_offset is None else query_offset
    try:
        asked = None if query_offset is None else operator.index(query_offset)
    except TypeError:
        raise KernelError("query-offset", f"query_offset must be a whole number, got {shown(query_offset)}") from None
    return resolve_lengths(by_text(text), q.shape[2], k.shape[2], asked)[1]


class Crossing(NamedTuple):
    """Whether a pattern's queries are no tokens of the keys, and distances between numbers those between positions."""

    crosses: bool
    by_ones: bool
    has_segments: bool
    """Whether the queries are tokens of the keys, which have segments: also in a part of a sequence with itself."""
    chooses: bool
    """Whether it is only known when queries and keys are."""


def crossing(text: str) -> Crossing:
    """What the text of a pattern says of that; a graph keeps the answer."""
    pattern = by_text(text)
    by_ones = set(steps(pattern)) <= {1} and counts_positions(pattern)
    return Crossing(pattern.crosses, by_ones, not pattern.crosses or is_of_itself(pattern), pattern.chooses)


# What torch.compiler.assume_constant_result does, without its second of imports.
crossing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_segments(segments: Tensor | None, q: Tensor, k: Tensor, text: str, offset: int) -> None:
    """Raises KernelError for segments [B, Nk] where the queries of q [B, H, Nq, D] are not tokens of the sequence of
    k [B, Hkv, Nk, D]; their dtypes are those of `check_tensors`."""
    if segments is not None and (not crossing(text).has_segments or offset + q.shape[2] > k.shape[2]):
        raise KernelError(
            "segments-across",
            "segments are for self-attention, but the queries of cross attention belong to another sequence: choose"
            " keys with key_mask",
        )


def check_scale(scale: float) -> float:
    """The scale as Python's float. Raises KernelError for what is no number."""
    try:
        return float(scale)
    except (TypeError, ValueError, OverflowError):
        raise KernelError("scale-not-a-number", f"scale must be a number, got {shown(scale)}") from None


def check_tensors(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, segments: Tensor | None) -> None:
    """Raises KernelError unless q is [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv] of one of `DTYPES`,
    key_mask bool [B, Nk] and segments integers [B, Nk], all on one device."""
    if rule := _broken_rule(q.shape, k.shape, v.shape):
        raise KernelError("attention-shapes", f"{rule}, got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise KernelError(
            "attention-dtypes", f"q, k and v must have one dtype of {known}; got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if not q.device == k.device == v.device:
        raise KernelError(
            "attention-devices", f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}"
        )
    for name, operand in (("key_mask", key_mask), ("segments", segments)):
        if operand is not None:
            _check_mask(name, operand, k)


def _broken_rule(q: torch.Size, k: torch.Size, v: torch.Size) -> str | None:
    """What shapes must be and these are not."""
    if not len(q) == len(k) == len(v) == 4:
        return "q, k and v must be [batch, heads, tokens, head_dim]"
    if not q[0] == k[0] == v[0]:
        return "q, k and v must have one batch size"
    if k[1] != v[1] or k[2] != v[2]:
        return "k and v must have equal heads and tokens"
    if q[3] != k[3] or q[3] == 0:
        return "q and k must have one head_dim of at least 1"
    if q[1] == 0 or k[1] == 0 or q[1] % k[1]:
        return "the heads of q must be a multiple of the heads of k and v"
    return None


def _check_mask(name: str, operand: Tensor, k: Tensor) -> None:
    expected = [k.shape[0], k.shape[2]]
    if list(operand.shape) != expected or operand.device != k.device:
        raise KernelError(
            "operand-shape",
            f"{name} must be [batch, keys] = {expected} on {k.device}, got {list(operand.shape)} on {operand.device}",
        )
    if (operand.dtype == torch.bool) != (name == "key_mask") or operand.is_floating_point() or operand.is_complex():
        raise KernelError(
            "operand-dtype", f"key_mask must be boolean and segments integer, got {name} of {operand.dtype}"
        )


def check_positions(name: str, positions: Tensor, tokens: Tensor) -> None:
    """Raises KernelError unless positions are int64 [B or 1, N] for tokens [B, H, N, D]."""
    batch, _, count, _ = tokens.shape
    if positions.dtype != torch.int64 or positions.shape not in ((batch, count), (1, count)):
        raise KernelError(
            "positions-shape",
            f"{name} must be int64 positions [{batch} or 1, {count}], got {list(positions.shape)} of {positions.dtype}",
        )


def check_allowed(allowed: Tensor, q: Tensor, k: Tensor) -> None:
    """Raises KernelError unless `allowed` is bool [B or 1, 1 or H, M, L], for q [B, H, M, D] and k [B, Hkv, L, D]."""
    batch, heads, n_queries, _ = q.shape
    n_slots = k.shape[2]
    fits = allowed.ndim == 4 and allowed.shape[0] in (1, batch) and allowed.shape[1] in (1, heads)
    if not fits or allowed.shape[2:] != (n_queries, n_slots) or allowed.dtype != torch.bool:
        raise KernelError(
            "allowed-shape",
            f"allowed must be bool [{batch} or 1, 1 or {heads}, {n_queries} queries, {n_slots} slots],"
            f" got {list(allowed.shape)} of {allowed.dtype}",
        )
    if allowed.device != q.device:
        raise KernelError("allowed-device", f"allowed must be on the device of q, {q.device}, got {allowed.device}")
