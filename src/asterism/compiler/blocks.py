"""Which blocks of keys each query may choose under a pattern with selected(...), and which it reads in any case."""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.compile import compile_in_order
from asterism.compiler.plan import Booleans, Indices, Integers, Plan
from asterism.patterns.pattern import Pattern
from asterism.patterns.selected import bounds_of

_AT_A_TIME = 2**22
"""Pairs of a query and a tile of keys looked at together."""


@dataclass(frozen=True, eq=False)
class BlockRuns:
    """A set of blocks for each query: the runs [offsets[i], offsets[i + 1]) of query i, each from a first block to the
    one after its last. offsets int64 [Nq + 1], bounds int32 [runs, 2], ascending."""

    offsets: Integers
    bounds: Indices

    def dense(self, first: int, past: int, count: int) -> Booleans:
        """The sets of the queries [first, past) as bool [past - first, count], of all `count` blocks."""
        begin, end = self.offsets[first], self.offsets[past]
        row = np.repeat(np.arange(past - first), np.diff(self.offsets[first : past + 1]))
        steps = np.zeros((past - first, count + 1), np.int8)
        np.add.at(steps, (row, self.bounds[begin:end, 0]), 1)
        np.add.at(steps, (row, self.bounds[begin:end, 1]), -1)
        return np.cumsum(steps[:, :count], axis=1, dtype=np.int8).astype(bool)

    def counts(self) -> Integers:
        """How many blocks each query has, int64 [Nq]."""
        sizes = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.bounds[:, 1] - self.bounds[:, 0])])
        return np.diff(sizes[self.offsets])


@dataclass(frozen=True, eq=False)
class ChoosableBlocks:
    """Of one pattern and its lengths: what each query may choose, and what is forced on it.

    `may`   blocks that the pattern lets a query read entirely, and that it does not read entirely whatever it chooses;
            of a causal pattern no block that is still to be filled
    `must`  forced blocks of which the pattern lets it read something
    """

    may: BlockRuns
    must: BlockRuns


def choosable_blocks(pattern: Pattern, n_queries: int, n_keys: int, query_offset: int) -> ChoosableBlocks:
    """For a pattern with selected(...); found once. Raises PatternError as `bounds_of` does."""
    return pattern.derived(_choosable, n_queries, n_keys, query_offset)


def pairs_read(pattern: Pattern, n_queries: int, n_keys: int, query_offset: int) -> int:
    """How many pairs one head of a pattern with selected(...) reads, whatever is chosen; an upper bound where blocks
    hold pairs that it reads in any case."""
    bounds, blocks = bounds_of(pattern), choosable_blocks(pattern, n_queries, n_keys, query_offset)
    always = compile_in_order(bounds.always, n_queries, n_keys, query_offset, tile_of(bounds.chosen.block))
    chosen = blocks.may.counts()
    if bounds.chosen.topk is not None:  # a share of the attention may take all of them
        chosen = np.minimum(np.maximum(bounds.chosen.topk - blocks.must.counts(), 0), chosen)
    return always.pairs + int(chosen.sum()) * bounds.chosen.block


def tile_of(block: int) -> int:
    """The largest tile that divides a block."""
    return next(tile for tile in (128, 64, 32, 16) if block % tile == 0)


def _choosable(pattern: Pattern, n_queries: int, n_keys: int, offset: int) -> ChoosableBlocks:
    bounds = bounds_of(pattern)
    tile = tile_of(bounds.chosen.block)
    most, rest, forced = (
        compile_in_order(rule, n_queries, n_keys, offset, tile)
        for rule in (bounds.most, bounds.rest, bounds.most & bounds.chosen.forced)
    )
    blocks, n_tiles = -(-n_keys // bounds.chosen.block), -(-n_keys // tile)
    starts = np.minimum(np.arange(blocks) * (bounds.chosen.block // tile), max(n_tiles - 1, 0))
    # A causal query may choose a block once it is there as a whole, however many tokens have come.
    complete = n_keys // bounds.chosen.block if bounds.most.is_causal else blocks
    found: list[list[BlockRuns]] = []
    step = max(1, _AT_A_TIME // max(1, tile * n_tiles))
    for first in range(0, -(-n_queries // tile), step):
        rows = np.arange(first, min(first + step, -(-n_queries // tile)))
        whole = np.logical_and.reduceat(_covers(most, rows)[1], starts, axis=2)
        whole[..., complete:] = False
        some, must = (np.logical_or.reduceat(_covers(plan, rows)[0], starts, axis=2) for plan in (rest, forced))
        n_here = min(n_queries - first * tile, len(rows) * tile)
        sets = (x.reshape(-1, blocks)[:n_here] for x in (whole & some & ~must, must))
        found.append([_runs(x) for x in sets])
    joined = [_joined([part[i] for part in found]) for i in range(2)]
    return ChoosableBlocks(*joined)


def _covers(plan: Plan, rows: Integers) -> tuple[Booleans, Booleans]:
    """Whether each query of these tile rows reads some, and all, of each tile of keys: bool [rows, tile, tiles]."""
    kinds, n_tiles = kinds_of(plan, rows), -(-plan.n_keys // plan.tile)
    ones = np.bitwise_count(plan.masks).sum(axis=2, dtype=np.int64)  # by kind - 1 and query of the tile
    table = np.concatenate([np.full((1, plan.tile), plan.tile), ones, np.zeros((1, plan.tile), np.int64)])
    width = np.minimum(plan.tile, plan.n_keys - np.arange(n_tiles) * plan.tile)
    read = np.minimum(table[kinds], width[:, None])  # kind -1 is the last row
    return (read > 0).transpose(0, 2, 1), (read == width[:, None]).transpose(0, 2, 1)


def kinds_of(plan: Plan, rows: Integers | None = None) -> Indices:
    """The kind of each tile of a plan in natural order, or of these consecutive tile rows: int32 [rows, key tiles], -1
    for no pair, 0 for all, else one more than the number of its mask."""
    rows = np.arange(-(-plan.n_queries // plan.tile)) if rows is None else rows
    kinds = np.full((len(rows), -(-plan.n_keys // plan.tile)), -1, np.int32)
    for part in plan.passes if len(rows) else ():
        begin, end = part.row_offsets[0, rows[0]], part.row_offsets[0, rows[-1] + 1]
        row = np.repeat(rows - rows[0], np.diff(part.row_offsets[0, rows[0] : rows[-1] + 2]))
        kinds[row, part.columns[begin:end]] = part.kinds[begin:end]
    return kinds


def _runs(sets: Booleans) -> BlockRuns:
    """Of sets bool [queries, blocks]."""
    edges = np.diff(np.pad(sets, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, first = np.nonzero(edges == 1)
    _, past = np.nonzero(edges == -1)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(rows, minlength=len(sets)))])
    return BlockRuns(offsets, np.stack([first, past], axis=1).astype(np.int32))


def _joined(parts: list[BlockRuns]) -> BlockRuns:
    if not parts:
        return BlockRuns(np.zeros(1, np.int64), np.zeros((0, 2), np.int32))
    ends = np.cumsum([0, *(len(part.bounds) for part in parts)])
    offsets = [part.offsets[1:] + end for part, end in zip(parts, ends, strict=False)]
    return BlockRuns(np.concatenate([np.zeros(1, np.int64), *offsets]), np.concatenate([part.bounds for part in parts]))
