"""Patterns as boolean tensors, for kernels that take a mask."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.errors import KernelError
from asterism.kernels.operands import Operands, refuse_distances
from asterism.kernels.terms.philox import dropped
from asterism.kernels.transforms import is_for_onnx
from asterism.memo import cached_property
from asterism.patterns import Pattern, require_cross_attention
from asterism.patterns.by_text import by_text, remember
from asterism.patterns.selected import require_static


def allowed_pairs(operands: Operands) -> Tensor:
    """All pairs that may attend, bool [B or 1, H or 1, Nq, Nk]."""
    if operands.allowed is not None:
        return operands.allowed
    n_queries, n_keys, offset = operands.q.shape[2], operands.k.shape[2], operands.query_offset
    first, past = operands.known_distances
    pairs = _as_numbers if is_for_onnx() else mask
    allowed = pairs(operands.text, n_queries, n_keys, offset, first, past, operands.q.device)[None]
    if operands.key_mask is not None:
        allowed = allowed & operands.key_mask[:, None, None, :]
    if operands.segments is not None:
        asked = operands.segments[:, offset : offset + n_queries]
        allowed = allowed & (asked[:, None, :, None] == operands.segments[:, None, None, :])
    return allowed


def kept_pairs(operands: Operands) -> Tensor:
    """The pairs that dropout keeps, bool [B, H, Nq, Nk]."""
    batch, heads, n_queries, _ = operands.q.shape
    rows, head, queries, keys = (
        torch.arange(count, device=operands.q.device).view([-1 if axis == own else 1 for axis in range(4)])
        for own, count in enumerate((batch, heads, n_queries, operands.k.shape[2]))
    )
    return ~dropped(queries + operands.query_offset, keys, head, rows, (operands.dropout, operands.seed))


def distances(operands: Operands) -> Tensor:
    """Position of the query - position of the key, int64 [Nq, Nk]."""
    queries, keys = (torch.arange(x.shape[2], device=x.device) for x in (operands.q, operands.k))
    return queries[:, None] + operands.query_offset - keys


@torch.library.custom_op("asterism::mask", mutates_args=())
def mask(
    pattern: str, n_queries: int, n_keys: int, query_offset: int, first: int, past: int, device: torch.device
) -> Tensor:
    """The pattern as bool [heads, n_queries, n_keys].

    Raises KernelError where it reads a key at a distance that is not in [first, past).
    """
    found = by_text(pattern).derived(_mask, n_queries, n_keys, query_offset, device)
    has_all = first <= query_offset - n_keys + 1 and past >= query_offset + n_queries
    if not has_all and found.distances is not None:
        refuse_distances(found.distances, (first, past), pattern)
    return found.allowed.clone()


@mask.register_fake
def _(
    pattern: str, n_queries: int, n_keys: int, query_offset: int, first: int, past: int, device: torch.device
) -> Tensor:
    return torch.empty((by_text(pattern).heads, n_queries, n_keys), dtype=torch.bool, device=device)


@dataclass(frozen=True)
class _Mask:
    """Who may read whom, bool [heads, queries, keys]."""

    allowed: Tensor
    query_offset: int

    @cached_property
    def distances(self) -> tuple[int, int] | None:
        """The least and the greatest distance of a pair that is allowed."""
        _, queries, keys = self.allowed.cpu().numpy().nonzero()
        between = queries + self.query_offset - keys
        return (int(between.min()), int(between.max())) if len(between) else None


def _mask(pattern: Pattern, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> _Mask:
    require_static(pattern, "a mask")
    return _Mask(torch.from_numpy(pattern.dense(n_queries, n_keys, query_offset)).to(device), query_offset)


def _as_numbers(
    pattern: str, n_queries: int, n_keys: int, query_offset: int, first: int, past: int, device: torch.device
) -> Tensor:
    """The same as `mask`, written into the graph: ONNX has no operators of this library. Raises KernelError."""
    if not all(isinstance(size, int) for size in (n_queries, n_keys, query_offset)):
        raise KernelError("onnx-one-length", "a pattern is exported to ONNX for one length: leave dynamic_shapes out")
    return torch.from_numpy(by_text(pattern).dense(n_queries, n_keys, query_offset)).to(device)


def readable(pattern: Pattern, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Find the slots that queries may read: queries at positions [B or 1, M], keys at [B or 1, L], -1 for an empty
    slot.

    bool [B or 1, heads of the pattern, M, L], on the device of the positions. The pattern must be prefix-stable.
    """
    return _readable(remember(pattern), query_positions, key_positions, None)


def readable_keys(pattern: Pattern | str, query_positions: Tensor, n_keys: int) -> Tensor:
    """Find the keys of a source that tokens of a decoder read, as the argument `allowed` of `decode_slots`.

    The queries stand at `query_positions` (int64 [B or 1, M]) of their own sequence; the source has `n_keys` tokens.
    Returns bool [B or 1, heads of the pattern, M, n_keys] on the device of the positions: rows of
    `pattern.dense(n_queries, n_keys, 0)`, the pairs of `attend` with the same `query_offset`. Work and memory grow with
    M * n_keys. Raises PatternError for a pattern that needs the queries to be tokens of the source.
    """
    rule = by_text(pattern) if isinstance(pattern, str) else pattern
    require_cross_attention(rule)
    keys = torch.arange(n_keys, device=query_positions.device)[None]
    text = rule.text if torch.compiler.is_compiling() else remember(rule)  # graphs cannot trace weak references
    return _readable(text, query_positions, keys, n_keys)


@torch.library.custom_op("asterism::readable", mutates_args=())
def _readable(pattern: str, query_positions: Tensor, key_positions: Tensor, length: int | None) -> Tensor:
    rule = by_text(pattern)
    require_static(rule, "a cache")
    asked, kept = query_positions.cpu().numpy()[:, :, None], key_positions.cpu().numpy()[:, None, :]
    if length is None:
        length = int(max(asked.max(initial=-1), kept.max(initial=-1))) + 1
    allowed = [rule.allows(asked, np.maximum(kept, 0), length, head) for head in range(rule.heads)]
    return torch.from_numpy(np.stack(allowed, axis=1) & (kept >= 0)[:, None]).to(query_positions.device)


@_readable.register_fake
def _(pattern: str, query_positions: Tensor, key_positions: Tensor, length: int | None) -> Tensor:
    batch = torch.broadcast_shapes(query_positions.shape[:1], key_positions.shape[:1])
    shape = (*batch, by_text(pattern).heads, query_positions.shape[1], key_positions.shape[1])
    return torch.empty(shape, dtype=torch.bool, device=query_positions.device)


@_readable.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], pattern: str, *given: Any) -> tuple[Tensor, int]:
    *positions, length = given
    each = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(positions, in_dims[1:], strict=False)]
        for i in range(info.batch_size)
    ]
    return torch.stack([_readable(pattern, *some, length) for some in each]), 0
