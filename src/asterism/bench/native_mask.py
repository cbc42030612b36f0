"""Write a pattern as a mask function of FlexAttention, as its users would, without plans and layouts."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from asterism.patterns import Pattern
from asterism.patterns.pattern import And, Named, Not, Or
from asterism.patterns.primitives import Blocks, Causal, Columns, Dense, GlobalQueries, KeySet, Stride, Window
from asterism.patterns.random_blocks import RandomBlocks

BLOCK = 128
"""FlexAttention's default block size."""

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mask_function(rule: Pattern, length: int, device: str) -> MaskFunction | None:
    """The rule as a function of (batch, head, query, key); None for rules that have no native form here."""
    match rule:
        case Named(body=body):
            return mask_function(body, length, device)
        case Or(parts=parts) | And(parts=parts):
            inner = [mask_function(part, length, device) for part in parts]
            return _joined([part for part in inner if part is not None], isinstance(rule, Or), len(inner))
        case Not(part=part):
            negated = mask_function(part, length, device)
            return None if negated is None else lambda b, h, q, k: ~negated(b, h, q, k)
        case Dense():
            return lambda b, h, q, k: q >= 0
        case Causal():
            return lambda b, h, q, k: k <= q
        case Window(left=left, right=right):
            return lambda b, h, q, k: (q - k <= left) & (k - q <= right)
        case Stride(period=period):
            return lambda b, h, q, k: q % period == k % period
        case Blocks(size=size, left=left, right=right):
            return lambda b, h, q, k: (q // size - k // size <= left) & (k // size - q // size <= right)
        case Columns(period=period, first=first, count=count):
            return lambda b, h, q, k: (k % period >= first) & (k % period < first + count)
        case KeySet():
            keys = _members(rule.members(length), length, device)
            return lambda b, h, q, k: keys[k]
        case GlobalQueries():
            queries = _members(rule.members(length), length, device)
            return lambda b, h, q, k: queries[q]
        case RandomBlocks(heads=1):
            return _random(rule, length, device)
        case _:
            return None


def _joined(parts: list[MaskFunction], is_union: bool, expected: int) -> MaskFunction | None:
    if len(parts) < expected:
        return None
    join = torch.logical_or if is_union else torch.logical_and
    return lambda b, h, q, k: reduce(join, [part(b, h, q, k) for part in parts])


def _members(members: np.ndarray, length: int, device: str) -> Tensor:
    chosen = torch.zeros(length, dtype=torch.bool, device=device)
    chosen[torch.from_numpy(members).to(device)] = True
    return chosen


def _random(rule: RandomBlocks, length: int, device: str) -> MaskFunction:
    drawn = torch.tensor(rule.drawn(length, 0), device=device)
    block, count = rule.block, rule.count

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        hits = [drawn[q // block, choice] == k // block for choice in range(count)]
        return reduce(torch.logical_or, hits)

    return allowed


def block_mask(rule: MaskFunction, length: int, device: str) -> BlockMask:
    """The block mask that create_block_mask makes of a rule. It looks at all n^2 pairs, one row of blocks at a time."""
    n_blocks = -(-length // BLOCK)
    keys = torch.arange(length, device=device)
    nothing = torch.zeros((), dtype=torch.int64, device=device)
    some = torch.zeros((n_blocks, n_blocks), dtype=torch.bool, device=device)
    every = torch.zeros_like(some)
    for row in range(n_blocks):
        queries = torch.arange(row * BLOCK, min((row + 1) * BLOCK, length), device=device)
        allowed = rule(nothing, nothing, queries[:, None], keys[None]).expand(len(queries), length)
        counts = torch.nn.functional.pad(allowed.sum(0), (0, n_blocks * BLOCK - length)).unflatten(0, (-1, BLOCK))
        sizes = (length - torch.arange(n_blocks, device=device) * BLOCK).clamp(max=BLOCK)
        some[row] = counts.sum(1) > 0
        every[row] = counts.sum(1) == sizes * len(queries)
    lists = [_ordered(some & ~every), _ordered(every)]
    return BlockMask.from_kv_blocks(*lists[0], *lists[1], BLOCK_SIZE=BLOCK, mask_mod=rule, seq_lengths=(length, length))


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    columns = torch.argsort((~chosen).to(torch.int8), dim=-1, stable=True)
    return chosen.sum(-1).to(torch.int32)[None, None], columns.to(torch.int32)[None, None]
