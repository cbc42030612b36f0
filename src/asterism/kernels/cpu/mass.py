"""The mass of tiles by the CPU kernel: what runs of queries give to runs of keys, from a log-sum-exp that is known."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from asterism.kernels.cpu import is_available
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import GROUP, Mass, check, pointer
from asterism.kernels.cpu.kernel import problem_of, refusal
from asterism.kernels.operands import Operands
from asterism.kernels.operator import Rounded


def takes(operands: Operands, run: int) -> bool:
    """Whether the kernel adds up runs of so many tokens for these operands, which have no sinks and no dropout."""
    is_wide = operands.q.dtype == torch.float32 and not operands.terms
    return is_wide and run % GROUP == 0 and refusal(operands) is None and is_available()


def mass_of_tiles(operands: Operands, lse: Tensor, number: int, run: int) -> Tensor:
    """Sums of weights for each entry of a pass of the plan, float32 [B, H, entries, tile / run, tile / run].

    lse [B, H, Nq] is that of attention to all keys; inf leaves a query out. A head has the entries of its own list, and
    0 elsewhere.
    """
    q, tile, entries = operands.q, operands.plan.tile, len(operands.plan.passes[number].columns)
    sums = torch.from_numpy(np.zeros((*q.shape[:2], entries, tile // run, tile // run), np.float32))
    unused = q.new_empty((*q.shape[:3], operands.v.shape[3]))
    problem = problem_of(operands, Rounded(out=unused, lse=lse.contiguous(), residual=q.new_empty(0)))
    to = Mass(number, run, entries, pointer("sums", sums, torch.float32, *sums.shape))
    if sums.numel():
        check(library().asterism_mass(ctypes.byref(problem), ctypes.byref(to)))
    return sums
