"""Choosing blocks by the CPU kernel: scores that are products of features, in float32, each query for itself."""

import ctypes
import os

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.blocks import BlockRuns
from asterism.kernels.cpu import is_available
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Choices, Runs, address, check, pointer
from asterism.kernels.selection.asked import Asked, Choice, Scorer, readable_blocks

_LANES = 16
"""Of the widest vectors; rows of blocks are filled up to whole ones."""


def takes(asked: Asked) -> bool:
    """Whether the kernel chooses for these: what it chooses is what `select` says, but for how scores are rounded."""
    is_product = asked.chosen.query_block == 1 and asked.chosen.score in ("mean", "minmax")
    is_product = is_product and asked.chosen.topk is not None
    return is_product and asked.q.is_cpu and asked.wide == torch.float32 and is_available()


def choose(asked: Asked) -> Choice:
    """The choice of operands q [B, H, Nq, D] and k [B, Hkv, Nk, D], float32 or narrower."""
    scorer, blocks, chosen = Scorer(asked), asked.blocks, asked.chosen
    assert chosen.topk is not None, "see `takes`"
    batch, heads, n_queries = asked.k.shape[0], asked.k.shape[1], asked.q.shape[2]
    must = blocks.must.counts()
    left = np.minimum(np.maximum(chosen.topk - must, 0), blocks.may.counts())
    width = max(1, int((must + left).max(initial=0)))
    indices = asked.q.new_empty((batch, heads, n_queries, width), dtype=torch.int32)
    counts = asked.q.new_empty((batch, heads, n_queries), dtype=torch.int32)
    choice = Choice(indices, counts, chosen.block)
    if not counts.numel():
        return choice
    q = scorer.of_queries(0, n_queries).contiguous()
    keys = scorer.of_blocks.transpose(-1, -2)
    keys = torch.nn.functional.pad(keys, (0, -asked.n_blocks % _LANES)).contiguous()
    topk, readable = min(chosen.topk, asked.n_blocks), readable_blocks(asked)
    given = Choices(batch, heads, n_queries, asked.n_blocks, q.shape[3], keys.shape[3], topk, width)
    given.q, given.keys = (pointer(name, x, torch.float32, *x.shape) for name, x in (("q", q), ("keys", keys)))
    if readable is not None:
        given.readable = pointer("readable", readable, torch.bool, batch, asked.n_blocks)
    given.may, given.must = _runs(blocks.may), _runs(blocks.must)
    given.indices, given.counts = (pointer(name, x, torch.int32, *x.shape) for name, x in _named(choice))
    given.threads, given.poison = torch.get_num_threads(), bool(os.environ.get("ASTERISM_POISON"))
    check(library().asterism_choose(ctypes.byref(given)))
    return choice


def _named(choice: Choice) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    return ("indices", choice.indices), ("counts", choice.counts)


def _runs(runs: BlockRuns) -> Runs:
    return Runs(address(runs.offsets, np.int64), address(runs.bounds, np.int32))
