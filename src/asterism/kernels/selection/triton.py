"""The pairs that a choice adds, on GPUs: the host's half of `kernels/triton/chosen.py`."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.blocks import kinds_of, tile_of
from asterism.compiler.compile import compile_in_order
from asterism.kernels.checks import as_they_are
from asterism.kernels.merging import Result
from asterism.kernels.operands import Operands
from asterism.kernels.selection.asked import shares_of
from asterism.kernels.transforms import refuse_second_derivatives
from asterism.kernels.triton.kernel import padded
from asterism.kernels.triton.launch import launch
from asterism.patterns.selected import Bounds

_QUERIES = 16
"""Queries that a program for keys has in hand at a time: the fewest that Triton multiplies."""


def attend(operands: Operands, bounds: Bounds, indices: Tensor) -> Result:
    """Attention to the pairs of the pattern's rest in the blocks chosen, int32 [B, heads, G, K], with gradients.

    out [B, H, Nq, Dv] and log-sum-exp [B, H, Nq], float32, of operands in float32, bfloat16 or float16.
    """
    found = _Attention.apply(operands.q, operands.k, operands.v, operands, bounds, indices)  # type: ignore[no-untyped-call]
    return Result(*found)


class _Tables(NamedTuple):
    """Which pairs may be read, of a plan in natural order (`kernels/triton/chosen.py`)."""

    kinds: Tensor
    masks: Tensor


def _tables(plan: Plan, device: torch.device) -> _Tables:
    masks = np.array(plan.masks).view(np.int64)
    masks = masks if len(masks) else np.zeros((1, plan.tile, -(-plan.tile // 64)), np.int64)
    return _Tables(torch.from_numpy(kinds_of(plan)).to(device), torch.from_numpy(masks).to(device))


class _Attention(torch.autograd.Function):
    """out and lse of the pairs chosen."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, operands: Operands, bounds: Bounds, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        if lse.numel() and k.shape[2] and indices.shape[3]:
            with as_they_are(q):
                _launch("forward_chosen", _of_queries(operands, bounds, indices) | {"out": out, "lse": lse})
        ctx.save_for_backward(q, k, v, indices, out, lse)
        ctx.given = operands.key_mask, operands.text, operands.query_offset, operands.scale, bounds
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, indices, out, lse = ctx.saved_tensors
        key_mask, text, offset, scale, bounds = ctx.given
        operands = Operands(q, k, v, key_mask, None, None, text, offset, scale)
        grads = _Gradients.apply(q, k, v, grad_out, grad_lse, (operands, bounds, indices, out, lse))  # type: ignore[no-untyped-call]
        return *grads, None, None, None


class _Gradients(torch.autograd.Function):
    """Those of q, k and v; as a function, so that somebody who differentiates them is refused."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, grad_lse: Tensor, given: tuple[Any, ...]
    ) -> tuple[Tensor, ...]:
        operands, bounds, indices, out, lse = given
        grads = [x.new_zeros(x.shape, dtype=torch.float32) for x in (q, k, v)]
        if lse.numel() and k.shape[2] and indices.shape[3]:
            with as_they_are(q):
                empty = lse == -math.inf
                delta = ((out * grad_out).sum(dim=-1) - grad_lse).masked_fill(empty, 0).contiguous()
                power = (lse / math.log(2)).masked_fill(empty, math.inf)
                shared = {"grad_out": grad_out.contiguous(), "power": power, "delta": delta}
                _launch("grad_q_chosen", _of_queries(operands, bounds, indices) | shared | {"grad_q": grads[0]})
                shared |= {"grad_k": grads[1], "grad_v": grads[2]}
                _launch("grad_kv_chosen", _of_keys(operands, bounds, indices) | shared)
        return tuple(grad.to(x.dtype) for grad, x in zip(grads, (q, k, v), strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        refuse_second_derivatives("triton")


def _launch(name: str, arguments: dict[str, Any]) -> None:
    from asterism.kernels.triton import chosen  # needs Triton

    with torch.cuda.device_of(arguments["q"]):
        launch(getattr(chosen, name), arguments.pop("programs"), arguments)


def _of_both(o: Operands, bounds: Bounds, indices: Tensor) -> dict[str, Any]:
    """What all programs are given."""
    tile, block = tile_of(bounds.chosen.block), bounds.chosen.block
    plan = compile_in_order(bounds.rest, o.q.shape[2], o.k.shape[2], o.query_offset, tile)
    tables = plan.derived(_tables, o.q.device)
    strides = {
        f"{name}_{axis}": stride
        for name, x in (("q", o.q), ("k", o.k), ("v", o.v))
        for axis, stride in zip(("batch", "head", "token", "feature"), x.stride(), strict=True)
    }
    heads, key_heads, chosen_heads = o.q.shape[1], o.k.shape[1], indices.shape[1]
    key_mask = None if o.key_mask is None else o.key_mask.to(torch.uint8).contiguous()
    sizes = {"n_heads": heads, "n_queries": o.q.shape[2], "n_keys": o.k.shape[2], "n_tiles": -(-o.k.shape[2] // tile)}
    of = {"chosen_heads": chosen_heads, "of_choice": heads // chosen_heads, "of_keys": heads // key_heads}
    widths = {"WIDTH": o.q.shape[3], "VALUE_WIDTH": o.v.shape[3]}
    blocks = {"BLOCK_D": padded(o.q.shape[3]), "BLOCK_V": padded(o.v.shape[3])}
    tiles = {"TILE": tile, "WORDS": -(-tile // 64), "TILES": block // tile}
    operands = {"q": o.q, "k": o.k, "v": o.v, **tables._asdict(), "key_mask": key_mask, "scale": o.scale}
    return {**operands, **strides, **sizes, **of, **widths, **blocks, **tiles}


def _of_queries(o: Operands, bounds: Bounds, indices: Tensor) -> dict[str, Any]:
    """For programs that have a query in the heads that share both its choice and its keys."""
    given = _of_both(o, bounds, indices)
    group = min(given["of_choice"], given["of_keys"])
    programs = o.q.shape[0] * (o.q.shape[1] // group) * o.q.shape[2]
    own = {"n_shares": indices.shape[2], "query_offset": o.query_offset, "query_block": bounds.chosen.query_block}
    sizes = {"slots": indices.shape[3], "GROUP": group, "MEMBERS": padded(group)}
    return {**given, **own, **sizes, "indices": indices, "programs": programs}


def _of_keys(o: Operands, bounds: Bounds, indices: Tensor) -> dict[str, Any]:
    """For programs that have a tile of keys: the queries that chose each block, sorted by it."""
    n_queries, n_blocks = o.q.shape[2], -(-o.k.shape[2] // bounds.chosen.block)
    chosen = indices[:, :, shares_of(o.q, o.query_offset, bounds.chosen.query_block)].long()  # [B, C, Nq, K]
    lists = torch.arange(chosen.shape[0] * chosen.shape[1], device=o.q.device).view(*chosen.shape[:2], 1, 1)
    number = torch.where(chosen >= 0, lists * n_blocks + chosen, lists.numel() * n_blocks).flatten()
    number, order = number.sort(stable=True)
    starts = torch.searchsorted(number, torch.arange(lists.numel() * n_blocks + 1, device=o.q.device))
    order = (order // chosen.shape[3] % n_queries).to(torch.int32)
    given = _of_both(o, bounds, indices)
    sizes = {"key_heads": o.k.shape[1], "n_blocks": n_blocks, "BLOCK_M": _QUERIES}
    programs = o.k.shape[0] * o.k.shape[1] * given["n_tiles"]
    return {**given, **sizes, "starts": starts, "order": order, "programs": programs}
