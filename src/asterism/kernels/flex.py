"""The plan as PyTorch's FlexAttention: for comparison, and where its compiler serves a device better.

The block lists of a `BlockMask` are filled from the plan's tiles, never from an n x n mask, and the mask function looks
the bits of mixed tiles up in the plan's mask words. Passes with one query order become one call, their keys side by
side; calls with different query orders merge by log-sum-exp. Queries and keys of passes with index maps are copied in
that order, as are keys and values that nobody may read, because FlexAttention multiplies what it masks. FlexAttention
wants block lists of full width, so memory grows with (tokens / tile)^2 integers, here and there.

On CPUs FlexAttention has neither a backward pass nor the log-sum-exp; what needs them is refused.

Letters: B batch, H heads, L tile lists (1 or one per head), R and C tile rows and columns, T tile.
"""

import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from asterism.compiler import Pass, Plan
from asterism.errors import KernelError
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.transforms import is_transformed
from asterism.memo import remembering

_CPU_TILE, _GPU_TILE = 64, 128
"""On CPUs 64 is faster than 128; on GPUs 128 is FlexAttention's own, and smaller ones may not fit its kernels."""

_CHUNK_PAIRS = 2**22
"""Pairs looked at at a time to find the keys that nobody reads."""

_RECOMPILES = 2**12
"""FlexAttention is compiled anew for every shape; beyond PyTorch's limit of 8 it would be refused."""

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Call:
    """One call of FlexAttention: the passes of some heads that share a query order, their keys side by side.

    `heads` is None for all. `query_index` [queries] and `key_index` [places] (int64, None: natural order) name the
    tokens; `exists` [places] is False where the last tile of a pass is padded. `kinds` [L * R * C] (int32) is the kind
    of every tile, `words` [kinds, T, T / 64 or 1] (int64) their bits, all ones for kind 0. `read` [L, places]: keys
    that some query reads. `blocks` lists full tiles apart, `all_blocks` has them all looked up.
    """

    heads: tuple[int, ...] | None
    tile: int
    lists: int
    query_index: Tensor | None
    key_index: Tensor | None
    exists: Tensor | None
    kinds: Tensor
    words: Tensor
    read: Tensor
    blocks: BlockMask
    all_blocks: BlockMask


@torch.compiler.disable(reason="FlexAttention compiles itself")  # type: ignore[untyped-decorator]
def flex(operands: Operands) -> Attended:
    """Attention over the operands' plan, the log-sum-exp in float32.

    float32, bfloat16 and float16. Raises KernelError for what FlexAttention cannot do on the device of q.
    """
    if reason := refusal(operands):
        raise KernelError(reason)
    operands.check_distances()
    equal = operands.with_equal_rows()
    if equal is operands:
        return _attend(operands)
    out, lse = _attend(equal)
    rows = operands.q.shape[:2]
    return Attended(out.unflatten(1, rows)[0], None if lse is None else lse.unflatten(1, rows)[0])


def _attend(operands: Operands) -> Attended:
    """Attention where all rows of the batch follow one plan."""
    q, k, v = operands.q, operands.k, operands.v
    on_cpu = q.device.type == "cpu"
    plan = operands.plan_of(_CPU_TILE if on_cpu else _GPU_TILE)
    calls = _calls(plan, q.device) if q.numel() and k.shape[2] else ()
    several = len(calls) > len({call.heads for call in calls})
    if several and on_cpu:
        _refuse_several()
    out, lse = _nothing_read(q, k, v)
    for heads in dict.fromkeys(call.heads for call in calls):
        own = [call for call in calls if call.heads == heads]
        parts = [_run(call, operands, operands.with_lse or several) for call in own]
        part, part_lse = _merge(parts) if len(parts) > 1 else parts[0]
        if heads is None:
            return Attended(part.contiguous(), part_lse if operands.with_lse else None)
        index = torch.tensor(heads, device=q.device)
        out = out.index_copy(1, index, part)
        if part_lse is not None:
            lse = lse.index_copy(1, index, part_lse)
    return Attended(out, lse if operands.with_lse else None)


def refusal(operands: Operands) -> str | None:
    """What FlexAttention cannot do, whatever the plan."""
    if is_transformed():
        return (
            'implementation="flex" is compiled, and knows no transforms (torch.func, forward-mode derivatives):'
            ' use implementation="reference"'
        )
    if reason := _refusal_of_terms(operands):
        return reason
    if operands.q.dtype == torch.float64:
        return 'implementation="flex" takes float32, bfloat16 or float16, got float64: use "eager"'
    if operands.q.device.type != "cpu":
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    if sys.platform != "linux" or capability not in ("AVX2", "AVX512", "AVX512_BF16"):
        return f'implementation="flex" needs Linux and AVX2 on CPUs, got {sys.platform} with {capability}: use "eager"'
    if operands.differentiated:
        return 'implementation="flex" has no backward on CPU: use "eager" or "auto", or torch.no_grad()'
    if operands.with_lse:
        return 'implementation="flex" cannot return the log-sum-exp on CPU: use "eager" or "reference"'
    return None


def _refusal_of_terms(operands: Operands) -> str | None:
    """A score function has no query to multiply with relative positions, and no weight to drop."""
    if reason := operands.refusal_of_terms("flex", ("bias", "softcap"), instead='"auto" or "eager"'):
        return reason
    bias = operands.bias
    if bias is None:
        return None
    if bias.requires_grad and torch.is_grad_enabled():
        return 'implementation="flex" has no gradient of a bias: use "auto" or "eager", or torch.no_grad()'
    if bool(bias.isneginf().any()):
        return 'implementation="flex" reads keys whose bias is -inf (SoftSpan): use "auto" or "eager"'
    return None


def _refuse_several() -> None:
    raise KernelError(
        'implementation="flex" cannot merge the passes of this pattern on CPU, where FlexAttention gives no'
        ' log-sum-exp: use "eager" or "auto"'
    )


def _nothing_read(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """out 0 and lse -inf for queries that read nothing, with gradients of 0."""
    always = torch.ones((), dtype=torch.bool, device=q.device)
    zero = torch.stack([x.masked_fill(always, 0).sum() for x in (q, k, v)]).sum()
    return zero.expand((*q.shape[:3], v.shape[-1])), (zero.float() - math.inf).expand(q.shape[:3])


# --- running ---------------------------------------------------------------------------------------------------------


def _run(call: _Call, operands: Operands, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """out [B, heads of the call, Nq, Dv] and lse of one call, in the natural order of the queries."""
    q, k, v, heads = operands.q, operands.k, operands.v, call.heads
    n_queries = q.shape[2]
    blocks, read = _with_batch(call, operands)
    if heads is not None and heads != tuple(range(q.shape[1])):
        group = q.shape[1] // k.shape[1]
        chosen = torch.tensor(heads, device=q.device)
        q, k, v = q.index_select(1, chosen), k.index_select(1, chosen // group), v.index_select(1, chosen // group)
    if call.query_index is not None:
        q = q.index_select(2, call.query_index)
    if call.key_index is not None:
        k, v = k.index_select(2, call.key_index), v.index_select(2, call.key_index)
    if call.lists > 1:
        read = read.unflatten(1, (k.shape[1], -1)).any(dim=2)
    if not read.all():
        k, v = k.masked_fill(~read[..., None], 0), v.masked_fill(~read[..., None], 0)
    out, lse = _compiled(q, k, v, blocks, _score_function(call, operands), operands.scale, with_lse)
    if call.query_index is None:
        return out, lse
    whole = out.new_zeros((*out.shape[:2], n_queries, out.shape[3])).index_copy(2, call.query_index, out)
    if lse is None:
        return whole, None
    return whole, lse.new_full((*lse.shape[:2], n_queries), -math.inf).index_copy(2, call.query_index, lse)


def _compiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockMask,
    score: ScoreFunction | None,
    scale: float,
    with_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """FlexAttention, compiled; without compiling it would compute all n x n scores."""
    if q.device.type == "cpu":
        q, k, v = q.detach(), k.detach(), v.detach()  # it looks at requires_grad even where no gradient is asked for
    request = AuxRequest(lse=True) if with_lse else None
    grouped = q.shape[1] != k.shape[1]
    try:
        with torch._dynamo.config.patch(recompile_limit=_RECOMPILES, accumulated_recompile_limit=_RECOMPILES):
            result = _compiler()(
                q, k, v, score_mod=score, block_mask=blocks, scale=scale, enable_gqa=grouped, return_aux=request
            )
    except torch._dynamo.exc.BackendCompilerFailed as error:
        reason = " ".join(str(error).split("\n")[:2])
        raise KernelError(f'implementation="flex" could not be compiled: {reason}; use "eager" or "auto"') from error
    return (result[0], result[1].lse) if with_lse else (result, None)


@lru_cache(maxsize=1)
def _compiler() -> Callable[..., Any]:
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


def _score_function(call: _Call, operands: Operands) -> ScoreFunction | None:
    """What the terms make of a scaled score; None where they change none."""
    cap, whole = operands.softcap, operands.with_whole_bias()
    if not cap and whole.bias is None:
        return None
    device = operands.q.device
    queries = torch.arange(operands.q.shape[2], device=device) if call.query_index is None else call.query_index
    queries = queries + (operands.query_offset - whole.first_distance)
    keys = torch.arange(operands.k.shape[2], device=device) if call.key_index is None else call.key_index
    bias = whole.bias
    if bias is not None and len(bias) > 1 and call.heads is not None:
        bias = bias[list(call.heads)]
    shared = bias is not None and len(bias) == 1

    def changed(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[0 if shared else head, queries[query] - keys[key]]
        return score

    return changed


def _merge(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Results over disjoint sets of keys as one result; differentiable, also where a query reads nothing."""
    lses = [lse for _, lse in parts if lse is not None]
    shift = torch.stack(lses).amax(dim=0).detach()
    shift = shift.masked_fill(shift == -math.inf, 0)
    weights = [(lse - shift).exp() for lse in lses]
    total = torch.stack(weights).sum(dim=0)
    empty = total == 0
    total = total.masked_fill(empty, 1)
    weighted = [part * (weight / total)[..., None] for (part, _), weight in zip(parts, weights, strict=True)]
    lse = (shift + total.log()).masked_fill(empty, -math.inf)
    return torch.stack(weighted).sum(dim=0).to(parts[0][0].dtype), lse


# --- masks -----------------------------------------------------------------------------------------------------------


def _with_batch(call: _Call, operands: Operands) -> tuple[BlockMask, Tensor]:
    """The block mask with what the batch forbids, and which keys are read, [B or 1, L, places]."""
    key_mask, segments = operands.key_mask, operands.segments
    if not operands.masked:
        return call.blocks, call.read[None]
    readable, asked, placed = call.exists, None, None
    if key_mask is not None:
        readable = key_mask if call.key_index is None else key_mask[:, call.key_index]
        readable = readable if call.exists is None else readable & call.exists
    elif readable is not None:
        readable = readable[None]
    if segments is not None:
        asked = segments[:, operands.query_offset : operands.query_offset + operands.q.shape[2]]
        asked = asked if call.query_index is None else asked[:, call.query_index]
        placed = segments if call.key_index is None else segments[:, call.key_index]
    blocks = copy.copy(call.all_blocks)
    blocks.mask_mod = _mask_function(call, readable, asked, placed)
    read = call.read[None] if asked is None or placed is None else _read_in_segments(call, asked, placed)
    return blocks, read if readable is None else read & readable[:, None]


def _mask_function(call: _Call, readable: Tensor | None, asked: Tensor | None, placed: Tensor | None) -> MaskFunction:
    """The rule of a tile's pair: its bit, and, where given, whether the key may be read and the segments agree."""
    kinds, words, tile = call.kinds, call.words, call.tile
    columns = call.all_blocks.kv_indices.shape[-1]
    area = columns * call.all_blocks.kv_indices.shape[-2] if call.lists > 1 else 0
    by_batch = readable is not None and readable.shape[0] > 1

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        kind = kinds[head * area + query // tile * columns + key // tile]
        within = key % tile
        bit = (words[kind, query % tile, within // 64] >> (within % 64)) & 1
        result = bit == 1
        if readable is not None:
            result = result & readable[batch if by_batch else 0, key]
        if asked is not None and placed is not None:
            result = result & (asked[batch, query] == placed[batch, key])
        return result

    return allowed


def _read_in_segments(call: _Call, asked: Tensor, placed: Tensor) -> Tensor:
    """Which keys some query of their own segment reads, [B, L, places]; looks at the pairs of every tile."""
    tile, batch = call.tile, len(asked)
    rows, columns = call.all_blocks.kv_indices.shape[-2:]
    entries = (call.kinds >= 0).nonzero()[:, 0]
    bits = (call.words[..., None] >> torch.arange(min(tile, 64), device=asked.device)).bitwise_and(1).flatten(2).bool()
    read = torch.zeros((batch, call.lists * columns, tile), dtype=torch.bool, device=asked.device)
    asked, placed = (
        torch.nn.functional.pad(x.long(), (0, -len(x[0]) % tile), value=filler).unflatten(1, (-1, tile))
        for x, filler in ((asked, -1), (placed, -2))
    )
    for chunk in entries.split(max(1, _CHUNK_PAIRS // (batch * tile**2))):
        which, place = chunk // (rows * columns), chunk % (rows * columns)
        same = asked[:, place // columns, :, None] == placed[:, place % columns, None, :]
        found = (same & bits[call.kinds[chunk]]).any(dim=2)
        at = which * columns + place % columns
        read = read.index_put((torch.arange(batch, device=at.device)[:, None], at), found, accumulate=True)
    return read.unflatten(1, (call.lists, columns)).flatten(2)[..., : call.read.shape[1]]


# --- from plan to calls ----------------------------------------------------------------------------------------------


@remembering
def _calls(plan: Plan, device: torch.device) -> tuple[_Call, ...]:
    """The fewest calls that cover the plan: one per query order and set of heads that the same passes serve."""
    served: dict[tuple[int, ...], list[int]] = {}
    for head in range(plan.heads):
        passes = tuple(number for number, part in enumerate(plan.passes) if head in part.heads)
        served.setdefault(passes, []).append(head)
    return tuple(call for passes, heads in served.items() for call in _calls_of(plan, passes, heads, device))


def _calls_of(plan: Plan, passes: tuple[int, ...], heads: list[int], device: torch.device) -> Iterator[_Call]:
    orders: dict[bytes | None, list[Pass]] = {}
    for number in passes:
        part = plan.passes[number]
        orders.setdefault(None if part.query_index is None else part.query_index.tobytes(), []).append(part)
    for parts in orders.values():
        yield _joined(plan, parts, heads, device)


def _joined(plan: Plan, parts: list[Pass], heads: list[int], device: torch.device) -> _Call:
    """The call of passes with one query order: the key tiles of each pass follow those of the one before."""
    tile, n_queries = plan.tile, parts[0].n_queries
    lists = 1 if all(part.lists == 1 for part in parts) else len(heads)
    widths = [-(-part.n_keys // tile) for part in parts]
    kinds = np.full((lists, -(-n_queries // tile), sum(widths)), -1, np.int32)
    masked = np.zeros(kinds.shape, bool)
    bits = np.logical_or.reduce(plan.tile_masks(np.arange(len(plan.masks) + 1, dtype=np.int32)), axis=1)
    seen = np.zeros((lists, sum(widths), tile), bool)
    for number, part in enumerate(parts):
        first, last = sum(widths[:number]), sum(widths[: number + 1]) - 1
        for which in range(lists):
            row, column, kind = _entries(part, 0 if part.lists == 1 else part.heads.index(heads[which]))
            kinds[which, row, first + column] = kind
            np.logical_or.at(seen[which], first + column, bits[kind])
        padded = part.n_keys % tile != 0 and number < len(parts) - 1
        masked[:, :, last] |= padded
    key_index, exists = _places(parts, widths, tile)
    partial = (kinds > 0) | ((kinds == 0) & masked)
    read = np.logical_and(seen.reshape(lists, -1)[:, : len(exists)], exists)
    lengths = (n_queries, len(exists))
    words = np.concatenate([np.full((1, *plan.masks.shape[1:]), -1, np.int64), plan.masks.view(np.int64)])
    all_blocks = _block_mask(kinds >= 0, None, tile, lengths, device)
    call = _Call(
        heads=None if plan.heads == 1 else tuple(heads),
        tile=tile,
        lists=lists,
        query_index=_tensor(parts[0].query_index, device),
        key_index=_tensor(key_index, device),
        exists=None if exists.all() else torch.tensor(exists, device=device),
        kinds=torch.tensor(kinds.ravel(), device=device),
        words=torch.tensor(words, device=device),
        read=torch.tensor(read, device=device),
        blocks=_block_mask(partial, (kinds >= 0) & ~partial, tile, lengths, device),
        all_blocks=all_blocks,
    )
    call.blocks.mask_mod = _mask_function(call, None if call.exists is None else call.exists[None], None, None)
    return call


def _entries(part: Pass, which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and kind of every tile in one list of a pass."""
    offsets = part.row_offsets[which]
    kept = slice(offsets[0], offsets[-1])
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), part.columns[kept], part.kinds[kept]


def _places(parts: list[Pass], widths: list[int], tile: int) -> tuple[np.ndarray | None, np.ndarray]:
    """The key at every place (None: place i holds key i) and which places exist; the last pass is not padded."""
    if len(parts) == 1:
        return parts[0].key_index, np.ones(parts[0].n_keys, bool)
    keys = [np.arange(part.n_keys) if part.key_index is None else part.key_index for part in parts]
    ends = [width * tile - part.n_keys for part, width in zip(parts, widths, strict=True)]
    ends[-1] = 0
    exists = [np.repeat([True, False], (len(own), end)) for own, end in zip(keys, ends, strict=True)]
    padded = [np.pad(own, (0, end)) for own, end in zip(keys, ends, strict=True)]
    return np.concatenate(padded), np.concatenate(exists)


def _block_mask(
    partial: np.ndarray, full: np.ndarray | None, tile: int, lengths: tuple[int, int], device: torch.device
) -> BlockMask:
    """A BlockMask without a mask function of tiles [L, R, C]: those to look up, and those that need no look."""
    counts, columns = _ordered(partial, device)
    full_counts, full_columns = (None, None) if full is None else _ordered(full, device)
    return BlockMask.from_kv_blocks(counts, columns, full_counts, full_columns, BLOCK_SIZE=tile, seq_lengths=lengths)


def _ordered(chosen: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many tiles each row has [1, L, R], and their columns first, in ascending order [1, L, R, C]."""
    columns = np.argsort(~chosen, axis=-1, kind="stable")
    counts = chosen.sum(axis=-1)
    return _int32(counts, device), _int32(columns, device)


def _tensor(index: np.ndarray | None, device: torch.device) -> Tensor | None:
    return None if index is None else torch.tensor(index, dtype=torch.int64, device=device)


def _int32(x: np.ndarray, device: torch.device) -> Tensor:
    return torch.tensor(x[None].astype(np.int32), device=device)
