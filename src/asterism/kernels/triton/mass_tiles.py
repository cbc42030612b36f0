"""The mass of tiles on GPUs: the host's half of `kernels/triton/mass.py`, with the calls of `kernels/cpu/mass.py`."""

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.kernels.operands import Operands
from asterism.kernels.triton.kernel import padded, refusal
from asterism.kernels.triton.launch import launch
from asterism.kernels.triton.tables import tabulate

_SHORTEST, _LONGEST = 16, {64: 64, 128: 32, 256: 16}
"""Tokens of a run: the fewest that Triton multiplies, and the most at a time by padded features of a head."""


def takes(operands: Operands, run: int) -> bool:
    """Whether the kernel adds up runs of so many tokens for these operands, which have no sinks and no dropout."""
    is_on_gpu = operands.q.device.type == "cuda" and operands.q.dtype == torch.float32
    return is_on_gpu and run >= _SHORTEST and operands.relative is None and refusal(operands) is None


def mass_of_tiles(operands: Operands, lse: Tensor, number: int, run: int) -> Tensor:
    """Sums of weights for each entry of a pass of the plan, float32 [B, H, entries, tile / run, tile / run].

    lse [B, H, Nq] is that of attention to all keys; inf leaves a query out. A head has the entries of its own list, and
    0 elsewhere.
    """
    from asterism.kernels.triton import mass

    q, k, plan = operands.q, operands.k, operands.plan
    program, part = plan.derived(tabulate, q.device, q.shape[1], k.shape[1]), plan.passes[number]
    tiles, heads = plan.derived(_entries, number, q.device), program.parts[number].rows.heads
    width = padded(q.shape[3])
    block = min(run, _LONGEST[max(64, width)])
    runs, shared = plan.tile // block, program.parts[number].rows.shared
    sums = q.new_zeros((*q.shape[:2], len(tiles), runs, runs))
    bias = None if operands.bias is None else operands.bias.contiguous()
    strides = {
        f"{name}_{axis}": stride
        for name, tensor in (("q", q), ("k", k))
        for axis, stride in zip(("batch", "head", "token", "feature"), tensor.stride(), strict=True)
    }
    arguments = {
        "q": q,
        "k": k,
        "lse": lse.contiguous(),
        "key_mask": None if operands.key_mask is None else operands.key_mask.contiguous().view(torch.uint8),
        "segments": None if operands.segments is None else operands.segments.contiguous(),
        "bias": bias,
        "bias_head": None if bias is None else bias.shape[1] if bias.shape[0] > 1 else 0,
        "softcap": operands.softcap or None,
        "sums": sums,
        "heads": heads,
        "tiles": tiles,
        "query_index": program.parts[number].query_index,
        "key_index": program.parts[number].key_index,
        "masks": program.masks,
        "reads": program.reads,
        **strides,
        "n_tiles": len(tiles),
        "shared": shared,
        "n_rows": part.n_queries,
        "n_columns": part.n_keys,
        "n_heads": q.shape[1],
        "n_queries": q.shape[2],
        "n_keys": k.shape[2],
        "query_offset": plan.query_offset,
        "group": operands.group,
        "scale": operands.scale,
        "WIDTH": q.shape[3],
        "BLOCK_D": width,
        "TILE": plan.tile,
        "WORDS": program.masks.shape[3],
        "BLOCK": block,
        "num_warps": 4,
        "num_stages": 1,
    }
    with torch.cuda.device_of(q):
        launch(mass.mass, q.shape[0] * shared * len(tiles) * runs**2, arguments)
    many = run // block
    return sums.unflatten(4, (-1, many)).sum(dim=5).unflatten(3, (-1, many)).sum(dim=4) if many > 1 else sums


def _entries(plan: Plan, number: int, device: torch.device) -> Tensor:
    """The table `tiles` of a pass; a full tile that the last keys do not fill becomes a masked one."""
    part = plan.passes[number]
    which, row = part.entries()
    found = np.stack([row, part.columns, plan.kinds_with_ends(part), which], axis=1).astype(np.int32)
    return torch.tensor(found, device=device)
