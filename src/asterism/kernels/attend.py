"""The single door to attention: checks, the choice of implementation, and attention against a cache.

Every implementation computes the same numbers; choosing one never changes the meaning. One named explicitly is used, or
refused with the reason.
"""

import math
from functools import lru_cache
from typing import Literal, overload

import torch
from torch import Tensor

from asterism.compiler import compile_pattern
from asterism.compiler.cost import DENSE_MASK_LIMIT, Setting
from asterism.errors import KernelError, PatternError, nearest
from asterism.kernels import cpu as cpu_kernel
from asterism.kernels import dense as dense_kernel
from asterism.kernels import triton as triton_kernel
from asterism.kernels.cpu import cpu
from asterism.kernels.eager import eager
from asterism.kernels.masks import mask, readable
from asterism.kernels.reference import reference
from asterism.kernels.transforms import is_transformed
from asterism.kernels.triton import triton, triton_decode
from asterism.patterns import Pattern, parse, require_prefix_stable

IMPLEMENTATIONS = ("auto", "reference", "eager", "cpu", "triton", "dense", "flex")
"""What `implementation` may be."""

OPERATORS = {"eager": eager, "cpu": cpu, "triton": triton}
"""The implementations that run a plan."""

REFUSALS = {"cpu": cpu_kernel.refusal, "triton": triton_kernel.refusal}
"""Why the fused ones cannot take some q and v, or None."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What q, k and v may be."""

_DECODED_AT_A_TIME = 256
"""Queries that attend to a cache at a time."""


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    return_lse: Literal[False] = False,
    implementation: str = "auto",
    query_offset: int | None = None,
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    return_lse: Literal[True],
    implementation: str = "auto",
    query_offset: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: str = "auto",
    query_offset: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention over the pairs that a pattern allows; differentiable.

    q is [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv]; H is a multiple of Hkv, and query head h reads key
    head h // (H // Hkv). float64, float32, bfloat16 or float16. `pattern` is a Pattern or its text, of 1 or H
    heads. The queries stand at positions query_offset, query_offset + 1, ... of the keys' sequence, by default at
    its end.

    `key_mask` (bool [B, Nk]): keys that may be read at all. `segments` (integers [B, Nk]): a query reads only keys of
    its own segment. `scale` defaults to 1/sqrt(D). Returns out [B, H, Nq, Dv] in the dtype of q and, with `return_lse`,
    the log-sum-exp [B, H, Nq] (natural logarithm; float32, or float64 for float64), differentiable too. A query that
    may attend to nothing gets out 0, log-sum-exp -inf and gradient 0; what unread keys hold changes nothing.

    Under torch.autocast q, k and v are cast to its dtype first, float64 apart, as scaled_dot_product_attention does it.
    torch.func.vmap, grad and vjp go through every implementation but "flex". Forward-mode derivatives need "reference"
    or "dense", second derivatives "reference"; the others refuse them with KernelError.

    `implementation`: "cpu" (fused tiles in C++: float32 and bfloat16), "triton" (fused tiles on a GPU: these and
    float16), "eager" (tiles in plain PyTorch), "dense" (scaled_dot_product_attention; with a mask for short sequences),
    "flex" (PyTorch's FlexAttention; on CPUs without gradients), "reference" (the oracle, O(n^2) memory), or "auto": the
    fastest implementation of tiles that there is for the operands, or dense where the cost model finds it cheaper.
    Raises KernelError for tensors that do not fit each other or the implementation, PatternError for the pattern.
    """
    if not isinstance(pattern, (Pattern, str)):
        raise PatternError(f"attend needs a Pattern or its text, got a {type(pattern).__name__}")
    text = pattern if isinstance(pattern, str) else pattern.text
    q, k, v = _autocast(q, k, v)
    _check_tensors(q, k, v, key_mask, segments)
    n_queries, n_keys = q.shape[2], k.shape[2]
    offset = n_keys - n_queries if query_offset is None else query_offset
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    masked = key_mask is not None or segments is not None
    tiles = _tile_implementation(q, v, implementation)
    way = _choose(q, k, v, text, offset, implementation, tiles, masked, return_lse)
    if way in OPERATORS:
        out, lse, _ = OPERATORS[way](q, k, v, key_mask, segments, text, offset, float(scale))
        return (out, lse) if return_lse else out
    if way == "flex":
        from asterism.kernels.flex import flex  # loads PyTorch's compiler

        out, lse = flex(q, k, v, key_mask, segments, text, offset, float(scale), return_lse)
        return (out, lse) if return_lse else out
    if way in ("full", "causal"):
        return dense_kernel.dense(q, k, v, None, way == "causal", scale)
    allowed = mask(text, n_queries, n_keys, offset, q.device)[None]
    allowed = _restrict(allowed, key_mask, segments, offset, n_queries)
    if way == "mask":
        return dense_kernel.dense(q, k, v, allowed, False, scale)
    out, lse = reference(q, k, v, allowed, scale)
    return (out, lse) if return_lse else out


@overload
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scale: float | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of a few queries against the keys that a cache has kept.

    q is [B, H, M, D], k [B, Hkv, L, D] and v [B, Hkv, L, Dv]. `query_positions` [B or 1, M] and `key_positions`
    [B or 1, L] (int64) say where in the sequence each query and key stands; a key at -1 is an empty slot. Returns out
    [B, H, M, Dv] and, with `return_lse`, the log-sum-exp [B, H, M], as `attend` does. Raises KernelError for tensors or
    positions that do not fit each other, and PatternError for a pattern that is not prefix-stable, because its answer
    would depend on the length to come.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    q, k, v = _autocast(q, k, v)
    _check_tensors(q, k, v, None, None)
    _check_positions("query_positions", query_positions, q)
    _check_positions("key_positions", key_positions, k)
    pattern.check_heads(q.shape[1])
    require_prefix_stable(pattern)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    fused = q.is_cuda and not (differentiated or is_transformed()) and triton_kernel.refusal(q, v) is None
    wide = torch.promote_types(q.dtype, torch.float32)
    outs, lses = [q.new_zeros((*q.shape[:2], 0, v.shape[-1]))], [q.new_zeros((*q.shape[:2], 0), dtype=wide)]
    for start in range(0, q.shape[2], _DECODED_AT_A_TIME):
        chunk = slice(start, start + _DECODED_AT_A_TIME)
        allowed = readable(pattern, query_positions[:, chunk], key_positions).to(q.device)
        if fused or return_lse:
            out, lse = (triton_decode if fused else reference)(q[:, :, chunk], k, v, allowed, scale)
            lses.append(lse)
        else:
            out = dense_kernel.dense(q[:, :, chunk], k, v, allowed, False, scale)
        outs.append(out)
    return (torch.cat(outs, dim=2), torch.cat(lses, dim=2)) if return_lse else torch.cat(outs, dim=2)


def _restrict(allowed: Tensor, key_mask: Tensor | None, segments: Tensor | None, offset: int, n_queries: int) -> Tensor:
    """The allowed pairs [1, heads, Nq, Nk], less what key_mask and segments forbid."""
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    if segments is not None:
        asked = segments[:, offset : offset + n_queries]
        allowed = allowed & (asked[:, None, :, None] == segments[:, None, None, :])
    return allowed


# --- the choice ------------------------------------------------------------------------------------------------------


def _tile_implementation(q: Tensor, v: Tensor, implementation: str) -> str:
    """The implementation that runs a plan, if one does: as named, or the fastest that takes the operands."""
    if implementation not in IMPLEMENTATIONS:
        raise KernelError(
            f"unknown implementation {implementation!r}: use one of {', '.join(IMPLEMENTATIONS)}."
            f"{nearest(implementation, IMPLEMENTATIONS)}"
        )
    if implementation in REFUSALS:
        if reason := REFUSALS[implementation](q, v):
            raise KernelError(reason)
        return implementation
    if implementation != "auto":
        return "eager"
    if q.is_cuda:
        return "triton" if triton_kernel.refusal(q, v) is None else "eager"
    return "cpu" if cpu_kernel.refusal(q, v) is None and cpu_kernel.is_available() else "eager"


def _setting(q: Tensor, k: Tensor, v: Tensor) -> Setting:
    """What the cost of attention depends on, beside the plan."""
    return Setting(
        heads=q.shape[0] * q.shape[1],
        half=q.dtype in (torch.float16, torch.bfloat16),
        training=torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
        on_gpu=q.is_cuda,
    )


def _choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    text: str,
    offset: int,
    implementation: str,
    tiles: str,
    masked: bool,
    return_lse: bool,
) -> str:
    """How to compute: a key of OPERATORS, "reference", or dense attention as "full", "causal" or "mask"."""
    if implementation == "dense" and return_lse:
        raise KernelError('implementation="dense" cannot return the log-sum-exp: use "eager" or "reference"')
    heads, n_queries, n_keys = q.shape[1], q.shape[2], k.shape[2]
    if torch.compiler.is_compiling():
        return _choose_for_any_length(text, n_queries == n_keys, implementation, tiles, masked or return_lse)
    if implementation == "auto" and is_transformed():
        implementation = tiles  # dense attention would take the way that holds all scores
    setting = _setting(q, k, v)
    return _choose_by_cost(text, heads, n_queries, n_keys, offset, implementation, tiles, masked, return_lse, setting)


def _choose_for_any_length(text: str, square: bool, implementation: str, tiles: str, plain_only: bool) -> str:
    """The choice inside torch.compile, where lengths may be symbols and no plan can be looked at."""
    if (implementation == "dense" or (implementation == "auto" and tiles == "eager")) and not plain_only:
        if text == "dense()":
            return "full"
        if text == "causal()" and square:
            return "causal"
    return {"auto": tiles, "dense": "mask"}.get(implementation, implementation)


@lru_cache(maxsize=4096)
def _choose_by_cost(
    text: str,
    heads: int,
    n_queries: int,
    n_keys: int,
    offset: int,
    implementation: str,
    tiles: str,
    masked: bool,
    return_lse: bool,
    setting: Setting,
) -> str:
    pattern = parse(text)
    pattern.check_heads(heads)
    if implementation in ("reference", "flex", *OPERATORS):
        return implementation
    by_name = _choose_for_any_length(text, n_queries == n_keys, implementation, tiles, masked or return_lse)
    if by_name in ("full", "causal"):
        return by_name
    plan = compile_pattern(pattern, n_queries, n_keys, query_offset=offset)
    if return_lse:
        return tiles
    way = "mask" if masked or plan.dense_kind == "sparse" else plan.dense_kind
    fits = way != "mask" or n_queries * n_keys <= DENSE_MASK_LIMIT
    if implementation == "dense":
        if not fits:
            raise KernelError(
                f'implementation="dense" needs a mask of {n_queries} x {n_keys} pairs for {text},'
                f' more than the limit of {DENSE_MASK_LIMIT}: use "auto"'
            )
        return way
    single = n_queries == n_keys == 1
    return way if fits and (single or plan.dense_cost(setting) < plan.sparse_cost(tiles, setting)) else tiles


# --- the checks ------------------------------------------------------------------------------------------------------


def _autocast(*operands: Tensor) -> tuple[Tensor, ...]:
    """The operands in the dtype of torch.autocast where it is on, float64 apart, as PyTorch's own attention does."""
    kind = operands[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in operands)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, segments: Tensor | None) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise KernelError(f"q, k and v must be [batch, heads, tokens, head_dim], got {shapes}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise KernelError(f"q, k and v must have one batch size, got {shapes}")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise KernelError(f"k and v must have equal heads and tokens, got {shapes}")
    if q.shape[3] != k.shape[3] or q.shape[3] == 0:
        raise KernelError(f"q and k must have one head_dim of at least 1, got {shapes}")
    if q.shape[1] == 0 or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise KernelError(f"the heads of q must be a multiple of the heads of k and v, got {shapes}")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise KernelError(f"q, k and v must have one dtype of {known}; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise KernelError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")
    for name, operand in (("key_mask", key_mask), ("segments", segments)):
        if operand is not None:
            _check_operand(name, operand, k)


def _check_operand(name: str, operand: Tensor, k: Tensor) -> None:
    expected = [k.shape[0], k.shape[2]]
    if list(operand.shape) != expected or operand.device != k.device:
        raise KernelError(
            f"{name} must be [batch, keys] = {expected} on {k.device}, got {list(operand.shape)} on {operand.device}"
        )
    if (operand.dtype == torch.bool) != (name == "key_mask") or operand.is_floating_point():
        raise KernelError(f"key_mask must be boolean and segments integer, got {name} of {operand.dtype}")


def _check_positions(name: str, positions: Tensor, tokens: Tensor) -> None:
    batch, _, count, _ = tokens.shape
    if positions.dtype != torch.int64 or positions.shape not in ((batch, count), (1, count)):
        raise KernelError(
            f"{name} must be int64 positions [{batch} or 1, {count}], got {list(positions.shape)} of {positions.dtype}"
        )
