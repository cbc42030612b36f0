"""Who may attend to whom as boolean tensors, for the kernels that take a mask: operators that know only the rule."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.kernels.operands import Operands
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text, remember


def allowed_pairs(operands: Operands) -> Tensor:
    """All pairs that may attend, bool [B or 1, H or 1, Nq, Nk]."""
    if operands.allowed is not None:
        return operands.allowed
    n_queries, n_keys, offset = operands.q.shape[2], operands.k.shape[2], operands.query_offset
    allowed = mask(operands.text, n_queries, n_keys, offset, operands.q.device)[None]
    if operands.key_mask is not None:
        allowed = allowed & operands.key_mask[:, None, None, :]
    if operands.segments is not None:
        asked = operands.segments[:, offset : offset + n_queries]
        allowed = allowed & (asked[:, None, :, None] == operands.segments[:, None, None, :])
    return allowed


@torch.library.custom_op("asterism::mask", mutates_args=())
def mask(pattern: str, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    """The pattern as a boolean tensor [heads, n_queries, n_keys]."""
    return _mask(pattern, n_queries, n_keys, query_offset, device).clone()


@mask.register_fake
def _(pattern: str, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    return torch.empty((by_text(pattern).heads, n_queries, n_keys), dtype=torch.bool, device=device)


@lru_cache(maxsize=32)
def _mask(pattern: str, n_queries: int, n_keys: int, query_offset: int, device: torch.device) -> Tensor:
    return torch.from_numpy(by_text(pattern).dense(n_queries, n_keys, query_offset)).to(device)


def readable(pattern: Pattern, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Whether queries at [B or 1, M] may read slots whose keys stand at [B or 1, L], -1 for none.

    bool [B or 1, heads of the pattern, M, L], on the device of the positions. The pattern must be prefix-stable.
    """
    return _readable(remember(pattern), query_positions, key_positions)


@torch.library.custom_op("asterism::readable", mutates_args=())
def _readable(pattern: str, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    rule = by_text(pattern)
    asked, kept = query_positions.cpu().numpy()[:, :, None], key_positions.cpu().numpy()[:, None, :]
    length = int(max(asked.max(initial=-1), kept.max(initial=-1))) + 1
    allowed = [rule.allows(asked, np.maximum(kept, 0), length, head) for head in range(rule.heads)]
    return torch.from_numpy(np.stack(allowed, axis=1) & (kept >= 0)[:, None]).to(query_positions.device)


@_readable.register_fake
def _(pattern: str, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(query_positions.shape[:1], key_positions.shape[:1])
    shape = (*batch, by_text(pattern).heads, query_positions.shape[1], key_positions.shape[1])
    return torch.empty(shape, dtype=torch.bool, device=query_positions.device)


@_readable.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], pattern: str, *positions: Tensor) -> tuple[Tensor, int]:
    each = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(positions, in_dims[1:], strict=True)]
        for i in range(info.batch_size)
    ]
    return torch.stack([_readable(pattern, *some) for some in each]), 0
