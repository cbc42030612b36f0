"""Fused block-sparse attention for GPUs, in Triton: forward and backward over a plan, and attention against a cache.

This is the host's half: it chooses block sizes and launches the functions of device.py and backward.py
over the tables of tables.py and distances.py. The device files, terms.py too, are imported at
first use: without Triton the library loads.

Every pass is one launch, ordered after the pass before it. A pass writes the output of its queries, or merges into
what earlier passes wrote; in half precision the output carries what its rounding took (`Rounded.residual`), so merging
needs no wider copy. Pieces of long rows and columns are put together by a launch of their own, in a fixed order.
Nothing is added atomically: equal inputs give equal bits.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.cost import Setting
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.operator import Gradients, Rounded, TileKernel, Wanted, operator
from asterism.kernels.transforms import is_transformed
from asterism.kernels.triton.distances import add_by_distance, tabulate_by_distance
from asterism.kernels.triton.launch import launch
from asterism.kernels.triton.tables import Lists, TiledPass, tabulate
from asterism.memo import remembering_few

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What q, k and v may be."""

WIDEST = 256
"""The largest head_dim."""

_INSTALLED = find_spec("triton") is not None

_DECODED_KEYS = 512
"""Keys of a cache that one program of the decoding kernel reads."""

_SCRATCH = 2**26
"""Numbers that the gradient of a bias keeps before they are summed by distance: 256 MiB."""


def refusal(operands: Operands) -> str | None:
    """Why these tensors cannot be attended to in Triton, and what to do; None if they can."""
    q, v = operands.q, operands.v
    if not _INSTALLED:
        return 'implementation="triton" needs the package triton, which is not installed: install it, or use "eager"'
    if q.dtype not in DTYPES:
        return f'implementation="triton" computes in float32, bfloat16 or float16, got {q.dtype}: use "eager"'
    widest = max(q.shape[-1], v.shape[-1])
    if widest > WIDEST:
        return f'implementation="triton" has head_dim up to {WIDEST}, got {widest}: use "eager"'
    if q.device.type != "cuda" and not _device().INTERPRETED.value:
        return (
            f'implementation="triton" needs tensors on a GPU, got {q.device}: move them, use "eager", or set'
            " TRITON_INTERPRET=1 before the first use for Triton's interpreter (slow, for tests)"
        )
    return None


def _device() -> Any:
    from asterism.kernels.triton import device

    return device


def _backward_device() -> Any:
    from asterism.kernels.triton import backward

    return backward


# --- block sizes -----------------------------------------------------------------------------------------------------


class _Blocks(NamedTuple):
    """Queries and keys that a program has in hand at a time, and how Triton compiles it."""

    queries: int
    keys: int
    warps: int
    stages: int


_BLOCKS = {
    ("forward", 2, 64): _Blocks(128, 64, 8, 2),
    ("forward", 2, 128): _Blocks(128, 128, 8, 2),
    ("forward", 2, 256): _Blocks(64, 32, 4, 2),
    ("forward", 4, 64): _Blocks(64, 32, 8, 2),
    ("forward", 4, 128): _Blocks(32, 32, 8, 2),
    ("forward", 4, 256): _Blocks(16, 32, 4, 1),
    ("grad_q", 2, 64): _Blocks(64, 128, 4, 2),
    ("grad_q", 2, 128): _Blocks(128, 128, 8, 2),
    ("grad_q", 2, 256): _Blocks(64, 32, 8, 1),
    ("grad_q", 4, 64): _Blocks(32, 32, 8, 1),
    ("grad_q", 4, 128): _Blocks(32, 32, 8, 1),
    ("grad_q", 4, 256): _Blocks(16, 16, 8, 1),
    ("grad_kv", 2, 64): _Blocks(64, 64, 4, 2),
    ("grad_kv", 2, 128): _Blocks(64, 64, 4, 2),
    ("grad_kv", 2, 256): _Blocks(32, 64, 8, 1),
    ("grad_kv", 4, 64): _Blocks(32, 32, 8, 1),
    ("grad_kv", 4, 128): _Blocks(32, 32, 8, 1),
    ("grad_kv", 4, 256): _Blocks(16, 16, 8, 1),
}
"""By kernel, bytes of an element and padded head_dim; never more than the plan's tile."""

_IN_SHORT_TILES = {
    ("forward", 2, 64): _Blocks(64, 64, 4, 3),
    ("forward", 2, 128): _Blocks(64, 64, 4, 3),
    ("grad_q", 2, 128): _Blocks(64, 64, 4, 2),
}
"""What replaces them in tiles of 64 and less. Four warps multiply 64 rows: on 64 rows, four more repeat their work."""

_WITH_SEGMENTS_OR_TERMS = {
    ("forward", 2, 128): _Blocks(128, 64, 8, 3),
    ("grad_q", 2, 64): _Blocks(128, 64, 8, 2),
    ("grad_q", 2, 128): _Blocks(128, 64, 8, 2),
}
"""What replaces them in larger tiles where each pair needs more registers."""


def padded(width: int) -> int:
    """The width that Triton's matrix products take."""
    return max(16, 1 << (width - 1).bit_length())


def _blocks(
    kernel: str,
    element_size: int,
    widths: tuple[int, int],
    tile: int,
    segmented: bool,
    memory: int,
    terms: bool = False,
) -> _Blocks:
    """Block sizes for padded widths of keys and values, with as many stages as `memory` bytes of a GPU's core hold.
    Where they hold none, blocks are halved.

    Terms of the score need registers for every pair: in the backward pass with them, half as many pairs are in hand.
    """
    key = kernel, element_size, max(64, *widths)
    special = _IN_SHORT_TILES if tile <= 64 else _WITH_SEGMENTS_OR_TERMS if segmented or terms else {}
    chosen = special.get(key, _BLOCKS[key])
    queries, keys = min(chosen.queries, tile), min(chosen.keys, tile)
    if terms and kernel == "grad_kv":
        queries = max(16, queries // 2)
    elif terms and kernel == "grad_q":
        keys = max(16, keys // 2)
    kept, streamed = (keys, queries) if kernel == "grad_kv" else (queries, keys)
    tokens = memory // (sum(widths) * element_size)
    while kept + streamed > tokens and max(kept, streamed) > 16:
        kept, streamed = (kept, streamed // 2) if streamed >= kept else (kept // 2, streamed)
    stages = max(1, min(chosen.stages, (tokens - kept) // streamed))
    queries, keys = (streamed, kept) if kernel == "grad_kv" else (kept, streamed)
    return _Blocks(queries, keys, chosen.warps if tile >= 64 else 4, stages)


@remembering_few(64)
def _memory(device: torch.device) -> int:
    """Bytes that the programs of one core of the GPU share; the interpreter has no limit.

    Kept, because the driver takes a millisecond to describe a GPU: ten times as long as a launch.
    """
    return int(_device().shared_memory(device.index)) if device.type == "cuda" else 2**30


# --- launching -------------------------------------------------------------------------------------------------------


class Call:
    """The operands of one call, and what all launches on them have in common."""

    def __init__(self, operands: Operands):
        self.q, self.k, self.v = operands.q, operands.k, operands.v
        self.key_mask = None if operands.key_mask is None else operands.key_mask.contiguous().view(torch.uint8)
        self.segments = None if operands.segments is None else operands.segments.contiguous()
        self.operands = operands
        self.batch, self.heads, self.n_queries, self.width = self.q.shape
        self.kv_heads, self.n_keys, self.value_width = self.v.shape[1:]
        self.program = operands.plan.derived(tabulate, self.q.device, self.heads, self.kv_heads)
        self.common = self._common()
        self._nothing = torch.empty(0, dtype=torch.float32, device=self.q.device)

    def _common(self) -> dict[str, Any]:
        """Arguments that forward, grad_q and grad_kv take alike."""
        tensors = {"q": self.q, "k": self.k, "v": self.v}
        axes = ("batch", "head", "token", "feature")
        strides = {
            f"{name}_{axis}": stride
            for name, tensor in tensors.items()
            for axis, stride in zip(axes, tensor.stride(), strict=True)
        }
        return {
            **tensors,
            **strides,
            "key_mask": self.key_mask,
            "segments": self.segments,
            "n_heads": self.heads,
            "n_queries": self.n_queries,
            "n_keys": self.n_keys,
            "query_offset": self.operands.plan.query_offset,
            "group": self.operands.group,
            "scale": self.operands.scale,
            **self._terms,
            "masks": self.program.masks,
            "WIDTH": self.width,
            "VALUE_WIDTH": self.value_width,
            "BLOCK_D": padded(self.width),
            "BLOCK_V": padded(self.value_width),
            "TILE": self.program.tile,
            "WORDS": self.program.masks.shape[3],
        }

    @property
    def _terms(self) -> dict[str, Any]:
        """The arguments for terms of the score; None for what is not there."""
        o = self.operands
        bias = None if o.bias is None else o.bias.contiguous()
        dropped = round(o.dropout * 2**32)  # so many of 2**32 words; a schema's and Triton's 32-bit numbers are signed
        drops = {
            "last_dropped": _signed(dropped - 1),
            "seed_low": _signed(o.seed),
            "seed_high": _signed(o.seed >> 32),
            "kept_factor": 1 / (1 - o.dropout),
        }
        return {
            "bias": bias,
            "bias_head": None if bias is None else bias.shape[1] if bias.shape[0] > 1 else 0,
            "softcap": o.softcap or None,
            **(drops if dropped else dict.fromkeys(drops)),
        }

    def of(self, part: TiledPass, lists: Lists) -> dict[str, Any]:
        """Arguments of a launch over the rows or columns of a pass."""
        return {
            **self.common,
            "heads": lists.heads,
            "pieces": lists.pieces,
            "entries": lists.entries,
            "query_index": part.query_index,
            "key_index": part.key_index,
            "n_pieces": lists.n_pieces,
            "shared": lists.shared,
            "slots": lists.slots,
            "n_rows": part.n_queries,
            "n_columns": part.n_keys,
        }

    def blocks(self, kernel: str) -> tuple[_Blocks, dict[str, int]]:
        """Block sizes, and the arguments that tell a kernel of them."""
        widths = padded(self.width), padded(self.value_width)
        segmented, memory = self.segments is not None, _memory(self.q.device)
        terms = bool(self.operands.terms)
        blocks = _blocks(kernel, self.q.element_size(), widths, self.program.tile, segmented, memory, terms)
        return blocks, {
            "BLOCK_M": blocks.queries,
            "BLOCK_N": blocks.keys,
            "num_warps": blocks.warps,
            "num_stages": blocks.stages,
        }

    def scratch(self, lists: Lists, *width: int) -> Tensor:
        """Partial results of pieces, float32 [batch * shared, slots, tile, *width]; without slots, an empty tensor."""
        if not lists.slots:
            return self._nothing
        shape = (self.batch * lists.shared, lists.slots, self.program.tile, *width)
        return torch.empty(shape, dtype=torch.float32, device=self.q.device)


def _signed(word: int) -> int:
    """The lower 32 bits as a number of that many bits."""
    return (word + 2**31) % 2**32 - 2**31


def _split_arguments(call: Call, lists: Lists, width: int) -> tuple[int, dict[str, Any]]:
    """Programs and arguments of a launch that puts pieces of rows of `width` features together."""
    block = min(call.program.tile, max(16, 4096 // padded(width)))
    return lists.split_programs(call.batch, call.program.tile, block), {
        "heads": lists.heads,
        "splits": lists.splits,
        "n_splits": lists.n_splits,
        "shared": lists.shared,
        "slots": lists.slots,
        "TILE": call.program.tile,
        "BLOCK_M": block,
    }


# --- forward ---------------------------------------------------------------------------------------------------------


def _forward(operands: Operands) -> Rounded:
    call = Call(operands)
    q, half = operands.q, operands.q.dtype != operands.wide
    shape = (*q.shape[:3], operands.v.shape[-1])
    out = torch.empty(shape, dtype=q.dtype, device=q.device)
    residual = torch.empty(shape if half else 0, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if not call.program.writes_queries:
        out.zero_()
        residual.zero_()
        lse.fill_(-torch.inf)
    with torch.cuda.device_of(q):
        for part in call.program.parts:
            _attend(call, part, out, residual if half else None, lse)
    return Rounded(out, lse, residual)


def _attend(call: Call, part: TiledPass, out: Tensor, residual: Tensor | None, lse: Tensor) -> None:
    """One pass, written or merged into out and lse."""
    lists = part.rows
    blocks, sizes = call.blocks("forward")
    results = {
        "out": out,
        "residual": residual,
        "lse": lse,
        "partial": call.scratch(lists, call.value_width),
        "partial_lse": call.scratch(lists),
        "MERGE": not lists.fresh,
    }
    # A smaller scale may be 0 in float32, and a pair that is not allowed would be -inf times 0.
    ascending = call.operands.scale >= torch.finfo(torch.float32).tiny
    own = {"reads": call.program.reads, "ASCENDING": ascending}
    arguments = {**call.of(part, lists), **results, **sizes, **own}
    launch(_device().forward, lists.programs(call.batch, call.program.tile, blocks.queries), arguments)
    if not lists.slots:
        return
    programs, pieces = _split_arguments(call, lists, call.value_width)
    counts = {"n_rows": part.n_queries, "n_heads": call.heads, "n_queries": call.n_queries}
    widths = {"VALUE_WIDTH": call.value_width, "BLOCK_V": padded(call.value_width)}
    arguments = {**results, **pieces, **counts, **widths, "query_index": part.query_index}
    launch(_device().merge_pieces, programs, arguments)


# --- backward --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gradient:
    """A gradient in the making: [B, heads, tokens, width], and what its rounding took, where passes add up."""

    value: Tensor
    rest: Tensor | None

    @classmethod
    def like(cls, x: Tensor, passes: int, written: bool) -> "_Gradient":
        value = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rest = torch.empty_like(value) if passes > 1 and x.dtype != torch.float32 else None
        if not written:
            for tensor in (value, rest):
                if tensor is not None:
                    tensor.zero_()
        return cls(value, rest)


def _backward(operands: Operands, attended: Rounded, grad_out: Tensor, grad_lse: Tensor, wanted: Wanted) -> Gradients:
    call = Call(operands)
    program = call.program
    passes = len(program.parts)
    wants_q, wants_k, wants_v = wanted[:3]
    grad_q = _Gradient.like(operands.q, passes, program.writes_queries) if wants_q else None
    # One launch gives the gradients of keys and values: where only one is wanted, the other is dropped.
    grad_k, grad_v = (
        _Gradient.like(x, passes, program.writes_keys) if wants_k or wants_v else None for x in (operands.k, operands.v)
    )
    with torch.cuda.device_of(operands.q):
        power, delta = _prepare(call, attended, grad_out, grad_lse)
        shared = {"grad_out": grad_out, "power": power, "delta": delta}
        for part in program.parts:
            if grad_q is not None:
                _differentiate_queries(call, part, shared, grad_q)
            if grad_k is not None and grad_v is not None:
                _differentiate_keys(call, part, shared, grad_k, grad_v)
        grad_bias = None if operands.bias is None or not wanted[3] else _differentiate_bias(call, shared, operands.bias)
    found = zip((grad_q, grad_k, grad_v), wanted[:3], strict=True)
    return (*(x.value if x is not None and is_wanted else None for x, is_wanted in found), grad_bias)


def _prepare(call: Call, attended: Rounded, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor, Tensor]:
    """lse to base 2 and delta (Rounded.delta) [B, H, Nq]."""
    power, delta = (torch.empty_like(attended.lse) for _ in range(2))
    width, rows = call.value_width, attended.lse.numel()
    block = max(16, 4096 // padded(width))
    arguments = {
        "out": attended.out,
        "residual": attended.residual if attended.residual.numel() else None,
        "lse": attended.lse,
        "grad_out": grad_out,
        "grad_lse": grad_lse,
        "power": power,
        "delta": delta,
        "n_rows": rows,
        "VALUE_WIDTH": width,
        "BLOCK_V": padded(width),
        "BLOCK_M": block,
    }
    launch(_backward_device().prepare, -(-rows // block), arguments)
    return power, delta


def _differentiate_queries(call: Call, part: TiledPass, shared: dict[str, Tensor], gradient: _Gradient) -> None:
    lists = part.rows
    blocks, sizes = call.blocks("grad_q")
    partial = call.scratch(lists, call.width)
    arguments = {
        **call.of(part, lists),
        **shared,
        **sizes,
        "reads": call.program.reads,
        "grad": gradient.value,
        "rest": gradient.rest,
        "partial": partial,
        "ADD": not lists.fresh,
    }
    launch(_backward_device().grad_q, lists.programs(call.batch, call.program.tile, blocks.queries), arguments)
    _add_pieces(call, lists, partial, gradient, part.query_index, part.n_queries)


def _differentiate_keys(
    call: Call, part: TiledPass, shared: dict[str, Tensor], grad_k: _Gradient, grad_v: _Gradient
) -> None:
    lists = part.columns
    blocks, sizes = call.blocks("grad_kv")
    partial_k, partial_v = call.scratch(lists, call.width), call.scratch(lists, call.value_width)
    arguments = {
        **call.of(part, lists),
        **shared,
        **sizes,
        "grad_of_k": grad_k.value,
        "rest_of_k": grad_k.rest,
        "partial_of_k": partial_k,
        "grad_of_v": grad_v.value,
        "rest_of_v": grad_v.rest,
        "partial_of_v": partial_v,
        "ADD": not lists.fresh,
        "MEMBERS": call.operands.group if call.operands.plan.heads == 1 else 1,
    }
    launch(_backward_device().grad_kv, lists.programs(call.batch, call.program.tile, blocks.keys), arguments)
    for partial, gradient in ((partial_k, grad_k), (partial_v, grad_v)):
        _add_pieces(call, lists, partial, gradient, part.key_index, part.n_keys)


def _add_pieces(
    call: Call, lists: Lists, partial: Tensor, gradient: _Gradient, index: Tensor | None, n_places: int
) -> None:
    """Sum the pieces of long tiles into the gradient."""
    if not lists.slots:
        return
    _, heads, tokens, width = gradient.value.shape
    programs, arguments = _split_arguments(call, lists, width)
    arguments |= {
        "partial": partial,
        "grad": gradient.value,
        "rest": gradient.rest,
        "index": index,
        "n_places": n_places,
        "n_heads": heads,
        "n_tokens": tokens,
        "ADD": not lists.fresh,
        "WIDTH": width,
        "BLOCK": padded(width),
    }
    launch(_backward_device().add_pieces, programs, arguments)


def _differentiate_bias(call: Call, shared: dict[str, Tensor], bias: Tensor) -> Tensor:
    """The gradient of the bias [H or 1, L], float32; sums of many pairs are kept in float64."""
    tile, device = call.program.tile, call.q.device
    blocks, sizes = call.blocks("grad_q")
    total = torch.zeros((call.heads, bias.shape[1]), dtype=torch.float64, device=device)
    tables = call.operands.plan.derived(tabulate_by_distance, device, call.heads)
    for part, lists in zip(call.program.parts, tables, strict=True):
        arguments = {**call.of(part, lists), **shared, **sizes, "reads": call.program.reads, "n_batch": call.batch}
        arguments["num_stages"] = 1  # queries too are loaded in every step, and more would not fit
        del arguments["slots"]
        for pieces in lists.pieces.split(max(1, _SCRATCH // (lists.shared * tile**2))):
            shape = lists.shared, len(pieces), tile, tile
            partial = torch.empty(shape, dtype=torch.float32, device=device)
            programs = lists.shared * len(pieces) * (tile // blocks.queries) * (tile // blocks.keys)
            arguments |= {"partial": partial, "pieces": pieces, "n_pieces": len(pieces)}
            launch(_backward_device().grad_bias, programs, arguments)
            add_by_distance(total, partial, part, lists, pieces)
    total = total if len(bias) > 1 else total.sum(dim=0, keepdim=True)
    return total.to(bias.dtype)


TRITON = TileKernel("triton", operator("triton", _forward, _backward), refusal, ("bias", "softcap", "dropout"))
"""Attention over tiles in Triton (kernels/operator.py).

It takes no relative positions: in a token order of a plan every pair of a tile may need another row of their table, and
what does not fit into a program would be n times as many numbers as the table has rows.
"""


# --- decoding --------------------------------------------------------------------------------------------------------


def triton_decode(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of a few queries against the keys of a cache, cut into chunks that programs read at the same time.

    q [B, H, M, D], k [B, Hkv, L, D], v [B, Hkv, L, Dv], allowed bool [B or 1, H or 1, M, L]: whether a query may read
    a slot. Returns out [B, H, M, Dv] and the log-sum-exp [B, H, M] in float32; 0 and -inf for a query that may read
    nothing. There is no gradient.
    """
    batch, heads, n_queries, width = q.shape
    kv_heads, n_keys, value_width = v.shape[1:]
    rows = heads // kv_heads * n_queries
    out = torch.zeros((batch, heads, n_queries, value_width), dtype=q.dtype, device=q.device)
    lse = torch.full((batch, heads, n_queries), float("-inf"), dtype=torch.float32, device=q.device)
    if not out.numel() or not n_keys:
        return out, lse
    block = min(64, padded(rows))
    n_blocks, n_chunks = -(-rows // block), -(-n_keys // _DECODED_KEYS)
    copies = batch * kv_heads
    shape = (copies, n_blocks * n_chunks, block)
    partial = torch.empty((*shape, value_width), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    flags = allowed.view(torch.uint8).expand(batch, heads, n_queries, n_keys)
    axes = {"q": ("batch", "head", "token", "feature"), "allowed": ("batch", "head", "query", "key")}
    tensors = {"q": q, "k": k, "v": v, "allowed": flags}
    strides = {
        f"{name}_{axis}": stride
        for name, tensor in tensors.items()
        for axis, stride in zip(axes.get(name, axes["q"]), tensor.stride(), strict=True)
    }
    counts = {"kv_heads": kv_heads, "group": heads // kv_heads, "n_queries": n_queries, "n_keys": n_keys}
    widths = {"VALUE_WIDTH": value_width, "BLOCK_V": padded(value_width)}
    arguments = {
        **tensors,
        **strides,
        **counts,
        **widths,
        "partial": partial,
        "partial_lse": partial_lse,
        "n_chunks": n_chunks,
        "scale": scale,
        "WIDTH": width,
        "BLOCK_D": padded(width),
        "BLOCK_M": block,
        "BLOCK_N": 32 if q.element_size() == 4 else 64,
        "CHUNK": _DECODED_KEYS,
    }
    with torch.cuda.device_of(q):
        launch(_device().decode, copies * n_blocks * n_chunks, arguments)
        merging = {
            **widths,
            "partial": partial,
            "partial_lse": partial_lse,
            "out": out,
            "residual": None,
            "lse": lse,
            "heads": torch.arange(kv_heads, dtype=torch.int32, device=q.device),
            "splits": _decoding_splits(n_blocks, n_chunks, q.device),
            "query_index": None,
            "n_splits": n_blocks,
            "shared": kv_heads,
            "slots": n_blocks * n_chunks,
            "n_rows": rows,
            "n_heads": kv_heads,
            "n_queries": rows,
            "MERGE": False,
            "TILE": block,
            "BLOCK_M": 16,
        }
        launch(_device().merge_pieces, copies * n_blocks * (block // 16), merging)
    return out, lse


@dataclass(frozen=True)
class TritonDecoding:
    """`triton_decode` as a kernel."""

    def refusal(self, operands: Operands) -> str | None:
        if operands.differentiated or is_transformed():
            return 'implementation="triton" has no gradient of decoding: use "auto", or torch.no_grad()'
        return refusal(operands) or operands.refusal_of_terms("triton", (), instead='"auto"')

    def run(self, operands: Operands) -> Attended:
        assert operands.allowed is not None, "only chosen for the keys of a cache"
        return Attended(*triton_decode(operands.q, operands.k, operands.v, operands.allowed, operands.scale))

    def costs(self, plan: Plan, setting: Setting) -> float:
        return plan.sparse_cost("triton", setting)


DECODING = TritonDecoding()
"""Attention of a few queries against the keys of a cache."""


def _decoding_splits(n_blocks: int, n_chunks: int, device: torch.device) -> Tensor:
    """The table `splits` of device.py: each block of rows has the slots of its chunks."""
    block = torch.arange(n_blocks, device=device)  # made there, as a copy would have to wait
    return torch.stack([torch.zeros_like(block), block, block * n_chunks, torch.full_like(block, n_chunks)], dim=1)
