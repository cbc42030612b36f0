"""The mass of tiles on GPUs: the host's half of `kernels/triton/mass.py`, with the calls of `kernels/cpu/mass.py`."""

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.kernels.operands import Operands
from asterism.kernels.triton.kernel import Call, padded, refusal
from asterism.kernels.triton.launch import launch

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
    from asterism.kernels.triton.mass import mass

    call = Call(operands)
    part, tiles = call.program.parts[number], operands.plan.derived(_entries, number, call.q.device)
    block = min(run, _LONGEST[max(64, padded(call.width))])
    runs = call.program.tile // block
    sums = call.q.new_zeros((call.batch, call.heads, len(tiles), runs, runs))
    own = {"lse": lse.contiguous(), "sums": sums, "tiles": tiles, "n_tiles": len(tiles), "reads": call.program.reads}
    known = call.of(part, part.rows) | own | {"BLOCK": block}
    arguments = {name: known[name] for name in mass.arg_names}
    with torch.cuda.device_of(call.q):
        programs = call.batch * part.rows.shared * len(tiles) * runs**2
        launch(mass, programs, arguments | {"num_warps": 4, "num_stages": 1})
    many = run // block
    return sums.unflatten(4, (-1, many)).sum(dim=5).unflatten(3, (-1, many)).sum(dim=4) if many > 1 else sums


def _entries(plan: Plan, number: int, device: torch.device) -> Tensor:
    """The table `tiles` of a pass; a full tile that the last keys do not fill becomes a masked one."""
    part = plan.passes[number]
    which, row = part.entries()
    found = np.stack([row, part.columns, plan.kinds_with_ends(part), which], axis=1).astype(np.int32)
    return torch.tensor(found, device=device)
