"""Block-sparse attention in plain PyTorch: every device and dtype, forward and backward.

The tile rows of a pass are grouped by how many tiles they keep, and a group is computed a few rows at a time:
gather the queries and keys of those tiles through the pass's token orders, multiply, mask, exponentiate, multiply.
Partial results merge by log-sum-exp. Nothing of the scores is kept; the backward pass computes them again from the
merged log-sum-exp (FlashAttention-2: Dao 2023, section 3). Working memory is bounded by the chunk, whatever the
length.

Letters: B batch, K key heads, G query heads per key head, R tile rows at a time, T tile, C tiles per row, D head_dim.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Pass, Plan
from asterism.kernels.merging import joined
from asterism.kernels.operands import Operands
from asterism.kernels.operator import Gradients, Rounded, TileKernel, Wanted, operator
from asterism.kernels.terms.philox import dropped

_CHUNK_ELEMENTS = 2**20
"""Scores computed at a time: what the caches of a core hold."""

_LONGEST_ROW = 1024
"""Keys of a tile row computed at a time; longer rows are split and merged."""


@dataclass(frozen=True)
class _Group:
    """Tile rows of one pass and head that keep equally many tiles: rows [R], columns [R, C], kinds [R, C]."""

    head: int | None
    query_index: Tensor | None
    key_index: Tensor | None
    n_queries: int
    n_keys: int
    rows: Tensor
    columns: Tensor
    kinds: Tensor | None


@dataclass(frozen=True)
class _Program:
    """A plan as tensors: groups of tile rows and, per kind of tile, its forbidden pairs, unread keys and bias."""

    tile: int
    groups: tuple[_Group, ...]
    forbidden: Tensor
    unread: Tensor
    bias: Tensor


@dataclass(frozen=True)
class _TileRows:
    """A few tile rows with their tokens: queries [R, T] to read and to write (n_queries: nowhere), keys [R, C * T]."""

    head: int | None
    read: Tensor
    write: Tensor
    keys: Tensor
    kinds: Tensor | None


def _program(plan: Plan, device: torch.device, dtype: torch.dtype) -> _Program:
    groups: list[_Group] = []
    for part in plan.passes:
        groups += _group(plan, part, device)
    forbidden = torch.tensor(~plan.tile_masks(np.arange(len(plan.masks_with_ends), dtype=np.int32)), device=device)
    return _Program(plan.tile, tuple(groups), forbidden, forbidden.all(dim=1), _bias(forbidden, dtype))


def _group(plan: Plan, part: Pass, device: torch.device) -> Iterator[_Group]:
    """Rows of equal tile counts; rows with masks apart from rows without, further pieces of long rows apart."""
    # A place is a row of tiles in a list. Of rows with 3 tiles and 1, `within` counts 0 1 2 0; with most = 2, the first
    # falls into pieces of 2 and 1. Pieces of equal length, with masks or without, become one group: a rectangle.
    tile_list, row = part.entries()
    place = tile_list * (part.row_offsets.shape[1] - 1) + row
    within = np.arange(len(row)) - part.row_offsets[:, :-1].ravel()[place]
    most = max(1, _LONGEST_ROW // plan.tile)
    _, piece, length = np.unique(place * (len(row) + 1) + within // most, return_inverse=True, return_counts=True)
    starts = np.cumsum(length) - length
    kinds = plan.kinds_with_ends(part)
    masked = np.logical_or.reduceat(kinds != 0, starts) if len(starts) else np.zeros(0, bool)
    key = np.stack([tile_list[starts], within[starts] // most, length, masked], axis=1)
    query_index, key_index = (
        None if index is None else torch.tensor(index, dtype=torch.int64, device=device)
        for index in (part.query_index, part.key_index)
    )
    for which, _, count, has_mask in np.unique(key, axis=0):
        chosen = np.flatnonzero((key == [which, _, count, has_mask]).all(axis=1))
        entries = starts[chosen][:, None] + np.arange(count)
        heads = part.heads if plan.heads > 1 else (None,)
        for head in heads if part.lists == 1 else (heads[which],):
            yield _Group(
                head,
                query_index,
                key_index,
                part.n_queries,
                part.n_keys,
                torch.tensor(row[starts[chosen]], device=device),
                torch.tensor(part.columns[entries], dtype=torch.int64, device=device),
                torch.tensor(kinds[entries], dtype=torch.int64, device=device) if has_mask else None,
            )


def _blocks(program: _Program, heads: int, n_queries: int, distances: int) -> Iterator[_TileRows]:
    """The program cut into blocks of about _CHUNK_ELEMENTS scores for `heads` heads (times batch).

    `distances` is how many scores by relative position each query has besides.
    """
    within = torch.arange(program.tile, device=program.bias.device)
    for group in program.groups:
        keys_of_row = group.columns.shape[1] * program.tile
        per_row = max(keys_of_row, distances) * program.tile * (heads if group.head is None else 1)
        step = max(1, _CHUNK_ELEMENTS // max(per_row, 1))
        for start in range(0, len(group.rows), step):
            rows, columns = group.rows[start : start + step], group.columns[start : start + step]
            place = rows[:, None] * program.tile + within
            keys = (columns[..., None] * program.tile + within).flatten(1).clamp_(max=group.n_keys - 1)
            read = place.clamp(max=group.n_queries - 1)
            if group.query_index is not None:
                read = group.query_index[read]
            if group.key_index is not None:
                keys = group.key_index[keys]
            write = torch.where(place < group.n_queries, read, n_queries)
            yield _TileRows(
                group.head, read, write, keys, None if group.kinds is None else group.kinds[start : start + step]
            )


class _Workspace:
    """Buffers that the blocks of one call use in turn: fresh memory is dearer than arithmetic."""

    def __init__(self, device: torch.device):
        self.device = device
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor in the buffer of that name, which any earlier tensor of the name loses."""
        size = math.prod(shape)
        buffer = self.buffers.get((name, dtype))
        if buffer is None or len(buffer) < size:
            buffer = self.buffers[name, dtype] = torch.empty(size, dtype=dtype, device=self.device)
        return buffer[:size].view(shape)

    def product(self, name: str, left: Tensor, right: Tensor, wide: torch.dtype) -> Tensor:
        """left @ right in the wide dtype."""
        shape = (*left.shape[:-1], right.shape[-1])
        product = torch.matmul(left, right, out=self.empty(name, shape, left.dtype))
        return self.cast(name, product, wide)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x itself, or a copy in another dtype."""
        return x if x.dtype == dtype else self.empty(name, tuple(x.shape), dtype).copy_(x)


class _Tokens(NamedTuple):
    """What a block computes of: q [B, K, R, G * T, D], k and v [B, K, R, C * T, D], which pairs it may not (0 or -inf,
    [B or 1, 1, R, 1, T, C * T]), and where terms ask for it, the distance of each pair [R, T, C * T] and the terms'
    bias [K or 1, R, G or 1, T, C * T].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    distances: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True)
class _Work:
    """Operands with their heads folded into key heads and groups: q [B, K, G, Nq, D], k and v [B, K, Nk, D].

    `bias` is that of the terms, [K, G, L] or [1, 1, L]; `cuts` says whether it keeps some keys from being read, and
    `is_finite` whether all numbers in the tables of the terms are: where nobody reads them, others change nothing.
    """

    q: Tensor
    operands: Operands
    program: _Program
    workspace: _Workspace
    bias: Tensor | None
    cuts: bool
    is_finite: bool

    @property
    def wide(self) -> torch.dtype:
        return self.operands.wide

    @property
    def shares_bias(self) -> bool:
        """Whether all heads have the same bias."""
        return self.bias is not None and self.bias.shape[:2] == (1, 1)

    def blocks(self) -> Iterator[_TileRows]:
        batch, kv_heads, group, n_queries, _ = self.q.shape
        relative = self.operands.relative
        return _blocks(self.program, batch * kv_heads * group, n_queries, 0 if relative is None else len(relative))

    def heads(self, head: int | None) -> tuple[slice, slice]:
        """Which key heads and which of their query heads a block is for."""
        if head is None:
            return slice(None), slice(None)
        kv_head, member = divmod(head, self.q.shape[2])
        return slice(kv_head, kv_head + 1), slice(member, member + 1)

    def gather(self, block: _TileRows) -> _Tokens:
        own, members = self.heads(block.head)
        k, v = (_take(x[:, own], 2, block.keys) for x in (self.operands.k, self.operands.v))
        distances, bias = None, None
        if self.bias is not None or self.operands.relative is not None:
            distances = block.read[:, :, None] + self.operands.plan.query_offset - block.keys[:, None, :]
        if self.bias is not None and distances is not None:
            heads = self.bias if self.shares_bias else self.bias[own, members]
            bias = heads[..., distances - self.operands.first_distance].transpose(1, 2)
        mask, unread = self._masks(block, bias if self.cuts else None)
        if unread is not None:
            k.masked_fill_(unread[..., None], 0)
            v.masked_fill_(unread[..., None], 0)
        return _Tokens(_fold(_take(self.q[:, own, members], 3, block.read)), k, v, mask, distances, bias)

    def _masks(self, block: _TileRows, cut: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """0 or -inf for pairs [B or 1, 1, R, 1, T, C * T], and keys that no query of the tile reads
        [B or 1, K or 1, R, C * T], also because `cut`, the terms' bias, is -inf there.
        """
        batch_masks = list(self._batch_masks(block))
        if block.kinds is None and not batch_masks:
            return None, None if cut is None else cut.isneginf().all(dim=3).all(dim=2)[None]
        if not batch_masks and cut is None and block.kinds is not None:
            bias = self.program.bias[block.kinds].transpose(1, 2).flatten(2)[None, None, :, None]
            return bias, self.program.unread[block.kinds].flatten(1)[None, None]
        if block.kinds is not None:
            tiles = self.program.forbidden[block.kinds].transpose(1, 2).flatten(2)
            batch_masks.append(tiles[None, None, :, None])
        forbidden = reduce(torch.logical_or, batch_masks)
        unread = forbidden if cut is None else forbidden | cut.isneginf()
        return _bias(forbidden, self.wide), unread.all(dim=-2).all(dim=3)

    def _batch_masks(self, block: _TileRows) -> Iterator[Tensor]:
        """Pairs that the batch forbids, [B, 1, R, 1, T or 1, C * T]."""
        key_mask, segments = self.operands.key_mask, self.operands.segments
        if key_mask is not None:
            yield ~key_mask[:, block.keys][:, None, :, None, None, :]
        if segments is not None:
            asked = segments[:, block.read + self.operands.plan.query_offset]
            yield (asked[..., :, None] != segments[:, block.keys][..., None, :])[:, None, :, None]

    def scores(self, tokens: _Tokens) -> tuple[Tensor, Tensor | None]:
        """Scores [B, K, R, G * T, C * T], -inf where forbidden, and the derivative of the soft cap, None for 1."""
        slope, cap = None, self.operands.softcap
        scores = self.workspace.product("scores", tokens.q, tokens.k.transpose(-1, -2), self.wide)
        if self.operands.relative is not None and tokens.distances is not None:
            by_distance = self.workspace.product("by_distance", tokens.q, self.operands.relative.T, self.wide)
            scores += by_distance.gather(-1, self._places(tokens, scores))
        bias = tokens.bias
        if not self.is_finite and tokens.mask is not None:
            forbidden = tokens.mask == -math.inf
            scores.unflatten(3, (-1, self.program.tile)).masked_fill_(forbidden, 0)
            bias = None if bias is None else torch.where(forbidden, 0, bias)
        scores.mul_(self.operands.scale)
        if cap:
            scores.div_(cap).tanh_()
            slope = 1 - scores * scores
            scores.mul_(cap)
        for term in (tokens.mask, bias):
            if term is not None:
                scores.unflatten(3, (-1, self.program.tile)).add_(term)
        return scores, slope

    def _places(self, tokens: _Tokens, scores: Tensor) -> Tensor:
        """The row of the table of relative positions for each score; any for what the pattern forbids."""
        assert tokens.distances is not None and self.operands.relative is not None
        places = tokens.distances.clamp(0, len(self.operands.relative) - 1)[:, None]
        return places.expand(*scores.shape[:3], scores.shape[3] // self.program.tile, -1, -1).flatten(3, 4)

    def by_distance(self, tokens: _Tokens, grad_scores: Tensor) -> Tensor | None:
        """Each query's gradients of scores by relative position, [B, K, R, G * T, distances]; None without these."""
        if self.operands.relative is None:
            return None
        shape = (*grad_scores.shape[:-1], len(self.operands.relative))
        total = self.workspace.empty("by_distance", shape, grad_scores.dtype).zero_()
        return total.scatter_add_(-1, self._places(tokens, grad_scores), grad_scores)

    def drop(self, block: _TileRows, weights: Tensor) -> Tensor:
        """The weights [B, K, R, G * T, C * T], in place, as dropout leaves them."""
        rate = self.operands.dropout
        if not rate:
            return weights
        batch, kv_heads, group, *_ = self.q.shape
        own, members = self.heads(block.head)
        device = weights.device
        heads = torch.arange(kv_heads * group, device=device).view(1, kv_heads, 1, group, 1, 1)[:, own, :, members]
        rows = torch.arange(batch, device=device).view(-1, 1, 1, 1, 1, 1)
        queries = (block.read + self.operands.plan.query_offset)[:, None, :, None]
        drop = dropped(queries, block.keys[:, None, None, :], heads, rows, (rate, self.operands.seed))
        return weights.masked_fill_(drop.flatten(3, 4), 0).div_(1 - rate)

    def add_to_bias(self, total: Tensor, block: _TileRows, tokens: _Tokens, grad_scores: Tensor) -> None:
        """The gradient of the bias [H or 1, L] from that of the scores of a block."""
        assert tokens.distances is not None and self.bias is not None
        place = (tokens.distances - self.operands.first_distance)[:, None]
        grads = grad_scores.sum(dim=0).unflatten(2, (-1, self.program.tile))
        if self.shares_bias:
            place, grads = place[:, 0], grads.sum(dim=(0, 2))
        else:
            own, members = self.heads(block.head)
            heads = torch.arange(len(total), device=total.device).view(self.bias.shape[:2])[own, members]
            place = place + heads[:, None, :, None, None] * total.shape[1]
        total.view(-1).index_add_(0, place.flatten(), grads.flatten())


def _bias(forbidden: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a pair is allowed and -inf where it is forbidden."""
    return torch.zeros(forbidden.shape, dtype=dtype, device=forbidden.device).masked_fill_(forbidden, -math.inf)


def _take(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x at index [R, n] along `dim`, which becomes two dimensions."""
    return x.index_select(dim, index.flatten()).unflatten(dim, index.shape)


def _fold(x: Tensor) -> Tensor:
    """[B, K, G, R, T, ...] -> [B, K, R, G * T, ...]."""
    return x.transpose(2, 3).flatten(3, 4)


def _unfold(x: Tensor, tile: int) -> Tensor:
    """[B, K, R, G * T, ...] -> [B, K, G, R * T, ...]."""
    return x.unflatten(3, (-1, tile)).transpose(2, 3).flatten(3, 4)


def _attend(work: _Work) -> tuple[Tensor, Tensor]:
    """Output [B, K, G, Nq, Dv] and log-sum-exp [B, K, G, Nq], both wide; a spare last query takes what is padding."""
    q, v, tile = work.q, work.operands.v, work.program.tile
    out = torch.zeros((*q.shape[:3], q.shape[3] + 1, v.shape[-1]), dtype=work.wide, device=q.device)
    lse = torch.full(out.shape[:-1], -math.inf, dtype=work.wide, device=q.device)
    for block in work.blocks():
        tokens = work.gather(block)
        scores, _ = work.scores(tokens)
        highest = scores.amax(dim=-1, keepdim=True)
        highest = highest.masked_fill(highest == -math.inf, 0)
        weights = scores.sub_(highest).exp_()
        total = weights.sum(dim=-1, keepdim=True)
        part = (work.drop(block, weights) @ tokens.v.to(work.wide)) / total.masked_fill(total == 0, 1)
        part_lse = (highest + total.log())[..., 0]
        own, members = work.heads(block.head)
        write = block.write.flatten()
        _merge(out[:, own, members], lse[:, own, members], write, _unfold(part, tile), _unfold(part_lse, tile))
    return out[..., :-1, :], lse[..., :-1]


def _merge(out: Tensor, lse: Tensor, write: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a partial softmax over further keys into out and lse, in place at the queries `write`."""
    old_lse = lse.index_select(3, write)
    new_lse, (old, more) = joined((old_lse, part_lse))
    out.index_copy_(3, write, out.index_select(3, write) * old[..., None] + part * more[..., None])
    lse.index_copy_(3, write, new_lse)


def _with_nowhere(lse: Tensor) -> Tensor:
    """The log-sum-exp [B, K, G, Nq + 1] by which all weights of a query are 0 that reads nothing, or is padding."""
    nowhere = lse.new_full((*lse.shape[:-1], 1), math.inf)
    return torch.cat([lse.masked_fill(lse == -math.inf, math.inf), nowhere], dim=-1)


def _weights(work: _Work, block: _TileRows, scores: Tensor, lse: Tensor) -> Tensor:
    """The weights [B, K, R, G * T, C * T], in place of the scores of a block, by `_with_nowhere`."""
    own, members = work.heads(block.head)
    block_lse = _fold(_take(lse[:, own, members], 3, block.write))
    return scores.sub_(block_lse[..., None]).exp_()


def _attend_backward(work: _Work, grad_out: Tensor, delta: Tensor, lse: Tensor, wanted: Wanted) -> Gradients:
    """Gradients of q, k, v, bias and relative in the wide dtype; delta [B, K, G, Nq] is that of `Rounded`."""
    q, tile, wide, workspace = work.q, work.program.tile, work.wide, work.workspace
    operands = (q, work.operands.k, work.operands.v, work.operands.bias, work.operands.relative)
    grad_q, grad_k, grad_v, grad_bias, grad_relative = gradients = tuple(
        torch.zeros(x.shape, dtype=wide, device=x.device) if x is not None and is_wanted else None
        for x, is_wanted in zip(operands, wanted, strict=True)
    )
    lse = _with_nowhere(lse)
    for block in work.blocks():
        own, members = work.heads(block.head)
        tokens = work.gather(block)
        scores, slope = work.scores(tokens)
        weights = _weights(work, block, scores, lse)
        block_grad = _fold(_take(grad_out[:, own, members], 3, block.read))
        read, keys = block.read.flatten(), block.keys.flatten()
        if grad_v is not None:
            kept = work.drop(block, weights.clone()) if work.operands.dropout else weights
            narrow = workspace.cast("narrow_weights", kept, q.dtype)
            part = (narrow.transpose(-1, -2) @ block_grad).to(wide).flatten(2, 3)
            grad_v[:, own].index_add_(2, keys, part)
        if all(x is None for x in (grad_q, grad_k, grad_bias, grad_relative)):
            continue
        block_delta = _fold(_take(delta[:, own, members], 3, block.read))
        values = tokens.v.to(wide).transpose(-1, -2)
        grad_scores = work.drop(block, workspace.product("grad_scores", block_grad.to(wide), values, wide))
        grad_scores = grad_scores.sub_(block_delta[..., None]).mul_(weights)
        if grad_bias is not None:
            work.add_to_bias(grad_bias, block, tokens, grad_scores)
        if slope is not None:
            grad_scores.mul_(slope)
        grad_scores = workspace.cast("grad_scores", grad_scores.mul_(work.operands.scale), q.dtype)
        if grad_k is not None:
            part = (grad_scores.transpose(-1, -2) @ tokens.q).to(wide).flatten(2, 3)
            grad_k[:, own].index_add_(2, keys, part)
        by_distance = work.by_distance(tokens, grad_scores)
        if grad_relative is not None and by_distance is not None:
            grad_relative += (by_distance.flatten(0, 3).T @ tokens.q.flatten(0, 3)).to(wide)
        if grad_q is not None:
            part = (grad_scores @ tokens.k).to(wide)
            if by_distance is not None and work.operands.relative is not None:
                part += (by_distance @ work.operands.relative).to(wide)
            grad_q[:, own, members].index_add_(3, read, _unfold(part, tile))
    return gradients


class TileWeights(NamedTuple):
    """Softmax weights of a few tile rows, [B, K', R, G', T, C * T], wide, for some key heads and some of their query
    heads, with the tokens: queries [R, T] and keys [R, C * T], int64. They are 0 where there is no token, or no pair.
    """

    heads: tuple[slice, slice]
    queries: Tensor
    keys: Tensor
    weights: Tensor


def weights_of_tiles(operands: Operands, lse: Tensor) -> Iterator[TileWeights]:
    """The weights of all pairs, a few tile rows at a time, from the log-sum-exp [B, H, Nq], wide; inf there leaves a
    query out. The operands are as a kernel gets them, without sinks and dropout; their values are not read.

    A tensor is valid until the next one is made.
    """
    work = _work(operands)
    lse = _with_nowhere(lse.unflatten(1, (-1, operands.group)))
    for block in work.blocks():
        heads = work.heads(block.head)
        scores, _ = work.scores(work.gather(block))
        weights = _weights(work, block, scores, lse)
        yield TileWeights(heads, block.read, block.keys, weights.unflatten(3, (-1, work.program.tile)))


# --- the operator ----------------------------------------------------------------------------------------------------


def _work(operands: Operands) -> _Work:
    folded = operands.q.unflatten(1, (-1, operands.group))
    program = operands.plan.derived(_program, operands.q.device, operands.wide)
    bias, cuts = operands.bias, False
    is_finite = all(x is None or bool(x.isfinite().all()) for x in (bias, operands.relative))
    if bias is not None:
        cuts = bool(bias.isneginf().any())
        bias = bias.unflatten(0, (-1, operands.group) if len(bias) > 1 else (1, 1))
    return _Work(folded, operands, program, _Workspace(operands.q.device), bias, cuts, is_finite)


def _forward(operands: Operands) -> Rounded:
    out, lse = _attend(_work(operands))
    return Rounded.rounded(out.flatten(1, 2), lse.flatten(1, 2), operands.q.dtype)


def _backward(operands: Operands, attended: Rounded, grad_out: Tensor, grad_lse: Tensor, wanted: Wanted) -> Gradients:
    delta = attended.delta(grad_out, grad_lse)
    grad_out, delta, lse = (x.unflatten(1, (-1, operands.group)) for x in (grad_out, delta, attended.lse))
    grad_q, *others = _attend_backward(_work(operands), grad_out, delta, lse, wanted)
    found = (None if grad_q is None else grad_q.flatten(1, 2), *others)
    dtypes = (*[operands.q.dtype] * 3, operands.wide, operands.q.dtype)
    return tuple(None if x is None else x.to(dtype) for x, dtype in zip(found, dtypes, strict=True))


_TERMS = ("bias", "relative", "softcap", "dropout")
EAGER = TileKernel("eager", operator("eager", _forward, _backward), lambda operands: None, _TERMS)
"""Attention over tiles in plain PyTorch (kernels/operator.py); refuses nothing."""
