"""Attention mass per block: how much of their attention the queries of a block give to the keys of a block.

Two walks over the tiles of a plan, and no value is read. The first is attention itself, by the fastest implementation,
for the log-sum-exp. The second adds up the weights by block: by a fused kernel, a tile at a time, or in plain PyTorch,
a few tile rows at a time. Blocks are counted in the natural order of tokens, whatever order a pass has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Pass, Plan
from asterism.compiler.plan import Integers
from asterism.errors import KernelError, shown
from asterism.kernels.attend import operands_of
from asterism.kernels.checks import as_they_are
from asterism.kernels.choice.choice import choose
from asterism.kernels.cpu import mass as fused
from asterism.kernels.eager import TileWeights, weights_of_tiles
from asterism.kernels.merging import share
from asterism.kernels.operands import Operands
from asterism.kernels.terms.terms import Terms
from asterism.kernels.transforms import is_transformed
from asterism.kernels.triton import mass_tiles as on_gpu
from asterism.patterns import Pattern
from asterism.patterns.by_text import remember

_VALUES = 16
"""Features of the values in the first walk: nobody reads its output, and these are the fewest that fill a vector."""

_ENTRIES = 2**8
"""Tiles whose blocks are found at a time."""

_TABLE = 2**20
"""Numbers in a table from blocks to their place; one 16 times as long as there are blocks is taken, too."""


@dataclass(frozen=True, eq=False)
class BlockMass:
    """Attention mass per (query block, key block), for the blocks that hold a tile of the plan.

    block    tokens along a side of a block; query i is in block i // block, key j in block j // block
    queries  int64 [m], the query block of each pair of blocks, ascending
    keys     int64 [m], the key block, ascending for each query block
    values   [B, H, m], float32 (float64 for float64): for each head the sum, over the queries of the block, of their
             weights on the keys of the block. A query that reads anything gives 1 in all, less the weight of a sink;
             so divided by the queries of the block it is a mean.

    `queries` and `keys` are those of all heads; where heads have patterns of their own, a value may be 0.
    """

    block: int
    n_queries: int
    n_keys: int
    queries: Tensor
    keys: Tensor
    values: Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """How many blocks of queries and of keys there are."""
        return -(-self.n_queries // self.block), -(-self.n_keys // self.block)

    def coarser(self, times: int) -> "BlockMass":
        """The mass of blocks of `times` (a whole number of at least 1) as many tokens."""
        if not isinstance(times, int) or times < 1:
            raise KernelError("mass-coarser", f"blocks grow by a whole number of at least 1, got {shown(times)}")
        block = self.block * times
        columns = max(1, -(-self.n_keys // block))
        whole, place = torch.unique(self.queries // times * columns + self.keys // times, return_inverse=True)
        values = self.values.new_zeros((*self.values.shape[:2], len(whole)))
        values.scatter_add_(2, place.expand_as(self.values), self.values)
        return BlockMass(block, self.n_queries, self.n_keys, whole // columns, whole % columns, values)

    def dense(self) -> Tensor:
        """The mass as [B, H, query blocks, key blocks], 0 where the plan has no tile: for few blocks."""
        rows, columns = self.grid
        whole = self.values.new_zeros((*self.values.shape[:2], rows * columns))
        whole[..., self.queries * columns + self.keys] = self.values
        return whole.unflatten(2, (rows, columns))


def block_mass(
    q: Tensor,
    k: Tensor,
    pattern: Pattern | str,
    *,
    block: int | None = None,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    query_offset: int | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    terms: Terms | None = None,
) -> BlockMass:
    """Compute how much attention the queries of each block give to the keys of each block.

    q is [B, H, Nq, D] and k [B, Hkv, Nk, D], float64, float32, bfloat16 or float16; all arguments that `attend` has,
    too, mean the same. The weights are those of `attend` before dropout, which `terms` must not have; bfloat16 and
    float16 are computed in float32. `block` is the side of a block in tokens, by default the plan's tile (16 to 128).
    `query_mask` (bool [B, Nq]): the queries that count; by default all, padding too.

    Returns `BlockMass`: the values of the blocks that the plan touches, as sums of weights, without a gradient. A query
    that may read nothing counts 0.

    Runs of 16 tokens and more that lie in one block are added up by a fused kernel, on CPUs in about the time of
    attention, on GPUs in Triton; all else takes about that of `attend(..., implementation="eager")`. Memory is that of
    the result, B * H values per block, and of a few tile rows at a time; with `block` equal to the tile or a multiple
    of it, no pattern has more blocks than its plan has tiles in natural order. `stride(s)` touches every block, so
    choose larger blocks there.

    Raises KernelError as `attend` does, and inside torch.compile and torch.func; PatternError for a pattern that cannot
    be used.
    """
    if torch.compiler.is_compiling() or is_transformed():
        raise KernelError("mass-in-transform", "block_mass is not for torch.compile or torch.func: call it outside")
    v = k[..., :_VALUES] if isinstance(k, Tensor) and k.ndim else k
    marks = key_mask, segments
    with torch.no_grad():
        operands = operands_of(q, k, v, pattern, marks, query_offset, cu_seqlens, (scale, terms))
        return mass_of(operands, block, query_mask)


@torch.no_grad()
def mass_of(
    operands: Operands, block: int | None = None, query_mask: Tensor | None = None, lse: Tensor | None = None
) -> BlockMass:
    """The mass of operands as `attend` has them, q [B, H, Nq, D]; arguments, result (float32 or float64) and errors as
    those of `block_mass`. `lse` [B, H, Nq] is `lse_of(operands)`, where that is there."""
    _check_query_mask(query_mask, operands.q)
    if operands.dropout:
        raise KernelError("mass-dropout", "block_mass is of the weights before dropout: leave dropout out of terms")
    block = operands.plan.tile if block is None else block
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise KernelError("mass-block", f"block must be a whole number of tokens, at least 1, got {shown(block)}")
    n_keys = operands.k.shape[2]
    with as_they_are(operands.q):
        operands = _widened(operands)
        q, k = operands.q, operands.k
        columns = max(1, -(-n_keys // block))
        touched = torch.from_numpy(operands.plan.derived(_touched, block)).to(q.device)
        values = q.new_zeros((q.shape[0], k.shape[1], operands.group, len(touched) + 1))
        if len(touched) and len(q):
            lse = lse_of(operands) if lse is None else lse
            if query_mask is not None:
                lse = lse.masked_fill(~query_mask[:, None], math.inf)
            inner = replace(operands, sinks=None).with_whole_bias()
            places = _Places(touched, columns, -(-q.shape[2] // block) * columns)
            run = math.gcd(block, operands.plan.tile)
            kernel = next((one for one in (fused, on_gpu) if one.takes(inner, run)), None)
            if kernel is not None and operands.plan.derived(_has_whole_runs, block):
                for number in range(len(operands.plan.passes)):
                    sides = operands.plan.derived(_blocks_of_runs, number, block)
                    place = places.of(*(blocks.to(q.device) for blocks in sides)).flatten()
                    sums = kernel.mass_of_tiles(inner, lse, number, run).flatten(2)
                    values.flatten(1, 2).scatter_add_(2, place.expand_as(sums), sums)
            else:
                for tiles in weights_of_tiles(inner, lse):
                    _add(values, tiles, places, block, operands.plan.tile)
    found = values[..., :-1].flatten(1, 2)
    return BlockMass(block, q.shape[2], n_keys, touched // columns, touched % columns, found)


def _check_query_mask(query_mask: object, q: Tensor) -> None:
    """Raises KernelError unless it is bool [B, Nq] on the device of q [B, H, Nq, D], or None."""
    if query_mask is None:
        return
    expected, seen = [q.shape[0], q.shape[2]], f"a {type(query_mask).__name__}"
    if isinstance(query_mask, Tensor):
        if query_mask.dtype == torch.bool and query_mask.device == q.device and list(query_mask.shape) == expected:
            return
        seen = f"{list(query_mask.shape)} of {query_mask.dtype} on {query_mask.device}"
    raise KernelError("query-mask", f"query_mask must be bool {expected} on {q.device}, got {seen}")


@torch.no_grad()
def shares_of(operands: Operands, parts: Sequence[Pattern], lse: Tensor) -> Tensor:
    """The mean share of a query's attention that lies in each part of the pattern, [parts, B, H], float32 or float64.

    `operands` are those of `attend`, q [B, H, Nq, D]; each of the parts allows some of the pairs of the pattern. `lse`
    is `lse_of(operands)`. The share of a query is exp(log-sum-exp of the part - lse); queries that read nothing are not
    counted.
    """
    if not parts:
        return lse.new_zeros((0, *lse.shape[:2]))
    inner, reads = replace(operands, sinks=None), lse > -math.inf
    count = reads.sum(dim=2).clamp(min=1)
    each = [share(lse_of(replace(inner, text=remember(part))), lse) for part in parts]
    return torch.stack([one.masked_fill(~reads, 0).sum(dim=2) / count for one in each])


@torch.no_grad()
def lse_of(operands: Operands) -> Tensor:
    """The log-sum-exp [B, H, Nq], float32 or float64, of operands as `attend` has them, q [B, H, Nq, D], without
    dropout, by the fastest implementation."""
    with as_they_are(operands.q):
        operands = replace(_widened(operands), with_lse=True, dropout=0.0)
        lse = choose(operands, "auto").run(operands).lse
    assert lse is not None, "it was asked for"
    return lse


def _widened(operands: Operands) -> Operands:
    """The same numbers in float32 or float64, with few values."""
    wide, relative = operands.wide, operands.relative
    q, k = operands.q.to(wide), operands.k.to(wide)
    return replace(operands, q=q, k=k, v=k[..., :_VALUES], relative=None if relative is None else relative.to(wide))


class _Places:
    """Where the value of a block stands among those touched; the last place is for blocks that hold no pair."""

    def __init__(self, touched: Tensor, columns: int, count: int) -> None:
        self.touched, self.columns, self.table = touched, columns, None
        if count <= max(_TABLE, 16 * len(touched)):
            self.table = torch.full((count,), len(touched), device=touched.device)
            self.table[touched] = torch.arange(len(touched), device=touched.device)

    def of(self, queries: Tensor, keys: Tensor) -> Tensor:
        """int64 [R, rows, columns] for query blocks [R, rows] and key blocks [R, columns]."""
        number = queries[:, :, None] * self.columns + keys[:, None]
        if self.table is not None:
            return self.table[number]
        place = torch.searchsorted(self.touched, number).clamp_(max=len(self.touched) - 1)
        return place.masked_fill_(self.touched[place] != number, len(self.touched))


def _add(values: Tensor, tiles: TileWeights, places: _Places, block: int, tile: int) -> None:
    """Add the weights of a few tile rows to the values [B, K, G, blocks + 1]."""
    run = math.gcd(block, tile)
    queries, of_queries = _runs(tiles.queries // block, run)
    keys, of_keys = _runs(tiles.keys // block, run)
    weights = tiles.weights
    if of_keys > 1:
        weights = weights.unflatten(5, (-1, of_keys)).sum(dim=6)
    if of_queries > 1:
        weights = weights.unflatten(4, (-1, of_queries)).sum(dim=5)
    place = places.of(queries, keys).flatten()
    weights = weights.transpose(2, 3).flatten(3)  # [B, K', G', R * rows * columns]
    own, members = tiles.heads
    values[:, own, members].scatter_add_(3, place.expand_as(weights), weights)


def _runs(blocks: Tensor, run: int) -> tuple[Tensor, int]:
    """The blocks [R, n] of tokens, run by run where each run of tokens lies in one block, else token by token; and the
    length of these runs."""
    runs = blocks.unflatten(1, (-1, run))
    if run > 1 and bool((runs == runs[..., :1]).all()):
        return runs[..., 0], run
    return blocks, 1


def _has_whole_runs(plan: Plan, block: int) -> bool:
    """Whether no run of tokens of a tile lies in two blocks, in any pass."""
    return all(_runs_of(plan, part, block) is not None for part in plan.passes)


def _blocks_of_runs(plan: Plan, number: int, block: int) -> tuple[Tensor, Tensor]:
    """The blocks [entries, runs] of queries and of keys in each entry of a pass of which `_has_whole_runs` is true."""
    found = _runs_of(plan, plan.passes[number], block)
    assert found is not None, "its runs are whole"
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def _runs_of(plan: Plan, part: Pass, block: int) -> tuple[Integers, Integers] | None:
    run, (_, rows) = math.gcd(block, plan.tile), part.entries()
    sides = []
    for numbers, of_queries in ((rows, True), (part.columns, False)):
        known, where = np.unique(np.asarray(numbers, np.int64), return_inverse=True)
        tokens, is_there = plan.places(part, known, of_queries=of_queries)
        blocks = (tokens // block).reshape(len(known), -1, run)
        first = np.where(is_there.reshape(blocks.shape)[..., 0], blocks[..., 0], 0)  # without tokens it adds 0
        if ((blocks != first[..., None]) & is_there.reshape(blocks.shape)).any():
            return None
        sides.append(first[where].astype(np.int64))
    return sides[0], sides[1]


# --- the blocks of a plan -------------------------------------------------------------------------------------------


def _touched(plan: Plan, block: int) -> Integers:
    """The blocks that hold a tile of the plan or, of tiles that lie across blocks, an allowed pair: ascending numbers,
    query block * key blocks + key block."""
    found = np.zeros(0, np.int64)
    for part in plan.passes:
        _, rows = part.entries()
        of_part = [found]
        for start in range(0, len(rows), _ENTRIES):
            some = slice(start, start + _ENTRIES)
            of_part.append(np.unique(_touched_by(plan, part, rows[some], some, block)))
        found = np.unique(np.concatenate(of_part))
    return found


def _touched_by(plan: Plan, part: Pass, rows: Integers, some: slice, block: int) -> Integers:
    """The same of some entries of a pass, which stand in these tile rows, in any order."""
    columns = max(1, -(-plan.n_keys // block))
    queries, has_query = plan.places(part, rows, of_queries=True)
    keys, has_key = plan.places(part, part.columns[some], of_queries=False)
    query_blocks, key_blocks = queries // block, keys // block
    if (query_blocks == query_blocks[:, :1]).all() and (key_blocks == key_blocks[:, :1]).all():
        return query_blocks[:, 0] * columns + key_blocks[:, 0]
    allowed = plan.tile_masks(part.kinds[some]) & has_query[:, :, None] & has_key[:, None, :]
    return (query_blocks[:, :, None] * columns + key_blocks[:, None])[allowed]
