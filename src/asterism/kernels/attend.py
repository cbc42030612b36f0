"""The entry to attention: checks the tensors, chooses a kernel, and calls it.

Every implementation computes the same numbers; choosing one never changes the meaning. `attend` takes the queries of
one stretch of a sequence and all its keys, `decode` a few queries and the keys of a cache, `decode_slots` the same with
the caller's mask of readable slots.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from asterism.errors import PatternError
from asterism.kernels.checks import (
    as_they_are,
    autocast,
    check_allowed,
    check_offset,
    check_positions,
    check_scale,
    check_segments,
    check_tensors,
    check_types,
    crossing,
)
from asterism.kernels.choice.choice import choose, choose_for_cache
from asterism.kernels.masks import readable
from asterism.kernels.operands import Attended, Operands, default_scale
from asterism.kernels.operator import PartOf, Rounded, TileKernel
from asterism.kernels.packed import pattern_of_documents
from asterism.kernels.selection.asked import Choice
from asterism.kernels.selection.attend import attend_selected
from asterism.kernels.slots import Positions, of_slots
from asterism.kernels.terms.terms import Terms, check_by_distance, expanded
from asterism.kernels.transforms import is_transformed
from asterism.kernels.watching import show
from asterism.patterns import Pattern, require_prefix_stable
from asterism.patterns.by_text import by_text, remember

_DECODED_AT_A_TIME = 256
"""Queries that attend to a cache at a time."""


class _Options(TypedDict, total=False):
    scale: float | None
    implementation: str
    terms: Terms | None


class _SlotOptions(_Options, total=False):
    positions: Positions | None


class _AttendOptions(_Options, total=False):
    key_mask: Tensor | None
    segments: Tensor | None
    query_offset: int | None
    cu_seqlens: Tensor | Sequence[int] | None
    choice: Choice | None


@overload
def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern | str, *, return_lse: Literal[False] = False,
           **options: Unpack[_AttendOptions]) -> Tensor: ...  # fmt: skip
@overload
def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern | str, *, return_lse: Literal[True],
           **options: Unpack[_AttendOptions]) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: str = "auto",
    query_offset: int | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    terms: Terms | None = None,
    choice: Choice | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute exact, differentiable attention over the pairs that a pattern allows.

    q is [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv]; H is a multiple of Hkv, and query head h reads key
    head h // (H // Hkv). Their dtype is float64, float32, bfloat16 or float16. `pattern` is a Pattern or its text, of 1
    or H heads. The queries stand at positions query_offset, query_offset + 1, ... of the keys' sequence, by default at
    its end. Cross attention has any number of queries, of another sequence. With "across(pattern, step=s)" they stand
    at positions query_offset, query_offset + 1, ... of that sequence (by default from 0), and query i reads as one at
    token floor(i * s) of the keys' sequence. With "dense()" and other patterns that depend on the key alone, all
    queries read the same keys.

    `key_mask` (bool [B, Nk]): the keys that may be read at all. `segments` (integers [B, Nk]): a query reads only keys
    of its own segment; not in cross attention. `cu_seqlens` (int32 or int64 [documents + 1], or a list): the borders of
    packed documents, equal in every row. Document i has the tokens cu_seqlens[i] to cu_seqlens[i + 1] - 1 and follows
    the pattern at its own length from its own position 0. A tensor on a GPU is read once; inside torch.compile it must
    be a list.

    `scale` defaults to 1/sqrt(D). Returns out [B, H, Nq, Dv] in the dtype of q and, with `return_lse`, the log-sum-exp
    [B, H, Nq] (natural logarithm; float32, or float64 for float64), differentiable too. A query that may attend to
    nothing gets out 0, log-sum-exp -inf and gradient 0. The values of unread keys change nothing. `terms` (`Terms`) are
    added to the scores, and hold dropout, which counts positions in the row; implementations that cannot compute them
    raise KernelError. With across(step != 1), no term may depend on distance.

    Under torch.autocast q, k and v are cast to its dtype first, except float64, as in scaled_dot_product_attention.
    torch.func.vmap, grad and vjp work with every implementation. Forward-mode derivatives need "reference" or "dense",
    second derivatives need "reference"; the others raise KernelError.

    Of a pattern with selected(...) blocks of keys are chosen first, by `select`, or `choice` says which they are. No
    gradient goes through a choice. It is computed by "cpu", "eager" or "reference", without segments, cu_seqlens and
    terms but sinks, and not inside torch.func; torch.compile breaks its graph there.

    `implementation`: "cpu" (fused tiles in C++: float32 and bfloat16), "triton" (fused tiles on a GPU: these and
    float16), "eager" (tiles in plain PyTorch), "dense" (scaled_dot_product_attention; with a mask for short sequences),
    "reference" (the oracle, O(n^2) memory), or "auto". "auto" chooses the fastest tiled implementation for the
    operands, or "dense" if that is cheaper by the figures for this machine, from `asterism bench --calibrate` or from
    the library. If neither has figures for the processor and number of threads, the first long call whose choice is
    undecided triggers one measurement of two seconds (never with ASTERISM_CALIBRATE=0). Within a process equal calls
    use the same implementation, whatever the load, the thread or the grad mode. Raises KernelError for tensors that do
    not fit each other or the implementation, and PatternError for a pattern that cannot be used.
    """
    marks = key_mask, segments
    operands = operands_of(q, k, v, pattern, marks, query_offset, cu_seqlens, (scale, terms), return_lse)
    if choice is not None or crossing(operands.text).chooses:
        return _results(attend_selected(operands, choice, implementation), return_lse)
    if not torch.compiler.is_compiling():
        show(operands)
    return _results(choose(operands, implementation).run(operands), return_lse)


def operands_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    marks: tuple[Tensor | None, Tensor | None],
    query_offset: int | None,
    cu_seqlens: Tensor | Sequence[int] | None,
    scores: tuple[float | None, Terms | None],
    return_lse: bool = True,
) -> Operands:
    """The arguments of `attend` as operands, checked: q [B, H, Nq, D], with dtypes and errors as there.

    `marks` are (key_mask, segments), `scores` are (scale, terms).
    """
    text, (key_mask, segments) = _text(pattern), marks
    check_types(q=q, k=k, v=v, key_mask=key_mask, segments=segments)
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, key_mask, segments)
    if cu_seqlens is not None:
        text = pattern_of_documents(text, cu_seqlens, (q.shape[2], k.shape[2]), q.device, query_offset)
    return _checked(q, k, v, text, marks, query_offset, *scores, return_lse=return_lse)


def attend_part(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, total: Rounded, **options: Unpack[_AttendOptions]
) -> tuple[Tensor, Tensor]:
    """The out [B, H, Nq, Dv] and log-sum-exp [B, H, Nq] of `total`, which `attend` gave of these keys together with
    others, as a function of these: for a backward pass that goes from keys to keys.

    Shapes, dtypes and options are those of `attend`, without cu_seqlens. Kernels of tiles compute nothing forward, the
    others their part. Raises as `attend` does.
    """
    marks = options.get("key_mask"), options.get("segments")
    others = options.get("query_offset"), options.get("scale"), options.get("terms")
    operands = _checked(q, k, v, _text(pattern), marks, *others, return_lse=True)
    chosen = choose(operands, options.get("implementation", "auto"))
    if isinstance(chosen, TileKernel):
        return _with_lse(chosen.part(operands, total))
    found: tuple[Tensor, Tensor] = PartOf.apply(*_with_lse(chosen.run(operands)), total)  # type: ignore[no-untyped-call]
    return found


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    text: str,
    marks: tuple[Tensor | None, Tensor | None],
    query_offset: int | None,
    scale: float | None,
    terms: Terms | None,
    *,
    return_lse: bool,
) -> Operands:
    key_mask, segments = marks
    offset = check_offset(query_offset, q, k, text)
    check_segments(segments, q, k, text, offset)
    check_by_distance(terms, text)
    scale = default_scale(q) if scale is None else check_scale(scale)
    of_scores = expanded(terms, q, k, offset)._asdict()
    return Operands(q, k, v, key_mask, segments, None, text, offset, scale, return_lse, **of_scores)


def check_options(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, implementation: str, terms: Terms | None
) -> None:
    """Raises what `attend` raises for these options, whatever pattern and tokens: nothing is computed.

    q [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv], of a dtype that `attend` takes.
    """
    q, k, v = (x[:, :, :0] for x in (q, k, v))
    scale = default_scale(q) if scale is None else check_scale(scale)
    of_scores = expanded(terms, q, k, 0)._asdict()
    choose(Operands(q, k, v, None, None, None, "causal()", 0, scale, True, **of_scores), implementation)


@overload
def decode(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern | str, query_positions: Tensor, key_positions: Tensor, *,
           return_lse: Literal[False] = False, **options: Unpack[_Options]) -> Tensor: ...  # fmt: skip
@overload
def decode(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern | str, query_positions: Tensor, key_positions: Tensor, *,
           return_lse: Literal[True], **options: Unpack[_Options]) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: str = "auto",
    terms: Terms | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of a few queries to the keys of a cache.

    q is [B, H, M, D], k [B, Hkv, L, D] and v [B, Hkv, L, Dv]. `query_positions` [B or 1, M] and `key_positions` [B or
    1, L] (int64) are the positions of each query and key in the sequence; a key at -1 is an empty slot. Returns out [B,
    H, M, Dv] and, with `return_lse`, the log-sum-exp [B, H, M], as `attend` does. `implementation` is as in `attend`:
    "auto" is a kernel for decoding ("cpu", "triton") if one exists for the dtype and no gradient is needed, else
    PyTorch's own attention with a mask; "eager" is plain PyTorch, with gradients. `terms` are those of `attend`,
    without dropout; "cpu" or plain PyTorch computes them. Raises KernelError for tensors or positions that do not fit
    each other or the implementation, and PatternError for a pattern that is not prefix-stable: its answer would depend
    on tokens still to come.
    """
    text = _text(pattern)
    check_types(q=q, k=k, v=v, query_positions=query_positions, key_positions=key_positions)
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, None, None)
    check_positions("query_positions", query_positions, q)
    check_positions("key_positions", key_positions, k)
    rule = by_text(text)
    rule.check_heads(q.shape[1])
    require_prefix_stable(rule)
    check_by_distance(terms, text)
    scale = default_scale(q) if scale is None else check_scale(scale)

    def compute(chunk: slice) -> Attended:
        asked = query_positions[:, chunk]
        allowed = readable(rule, asked, key_positions).to(q.device)
        operands = Operands(q[:, :, chunk], k, v, None, None, allowed, "", 0, scale, return_lse)
        return _decoded(operands, implementation, terms, (asked, key_positions))

    return _results(_in_chunks(q, compute), return_lse)


@overload
def decode_slots(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, return_lse: Literal[False] = False,
                 **options: Unpack[_SlotOptions]) -> Tensor: ...  # fmt: skip
@overload
def decode_slots(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, return_lse: Literal[True],
                 **options: Unpack[_SlotOptions]) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def decode_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: str = "auto",
    terms: Terms | None = None,
    positions: Positions | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention of a few queries to the slots of a cache, with a mask of the slots that each may read.

    q is [B, H, M, D], k [B, Hkv, L, D] and v [B, Hkv, L, Dv], with any strides: views of larger buffers are read
    without a copy. `allowed` (bool [B or 1, 1 or H, M, L], on the same device) says whether a query may read a slot.
    The contents of other slots change nothing, even NaN. Returns out [B, H, M, Dv] and, with `return_lse`, the
    log-sum-exp [B, H, M], as `attend` does. `implementation` and `terms` are as in `decode`; terms that depend on
    distance need `positions`, those of the queries and those of the keys in the slots, as in `decode`. Raises
    KernelError for tensors that do not fit each other or the implementation.
    """
    check_types(q=q, k=k, v=v, allowed=allowed)
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, None, None)
    check_allowed(allowed, q, k)
    scale = default_scale(q) if scale is None else check_scale(scale)

    if q.shape[2] <= _DECODED_AT_A_TIME:  # even a slice of all costs what a short cache takes to read
        operands = Operands(q, k, v, None, None, allowed, "", 0, scale, return_lse)
        return _results(_decoded(operands, implementation, terms, positions), return_lse)

    def compute(chunk: slice) -> Attended:
        operands = Operands(q[:, :, chunk], k, v, None, None, allowed[:, :, chunk], "", 0, scale, return_lse)
        places = None if positions is None else (positions[0][:, chunk], positions[1])
        return _decoded(operands, implementation, terms, places)

    return _results(_in_chunks(q, compute), return_lse)


def _in_chunks(q: Tensor, compute: Callable[[slice], Attended]) -> Attended:
    """What `compute` gives for a few queries at a time, put together."""
    starts = range(0, max(1, q.shape[2]), _DECODED_AT_A_TIME)
    parts = [compute(slice(start, start + _DECODED_AT_A_TIME)) for start in starts]
    if len(parts) == 1:
        return parts[0]
    lses = [part.lse for part in parts if part.lse is not None]
    return Attended(torch.cat([part.out for part in parts], dim=2), torch.cat(lses, dim=2) if lses else None)


def _decoded(operands: Operands, implementation: str, terms: Terms | None, positions: Positions | None) -> Attended:
    o = operands
    assert o.allowed is not None, "what decides in a cache"
    if is_transformed():  # vmap counts its own axis among the rows
        operands = replace(o, allowed=o.allowed.expand(o.q.shape[0], -1, -1, -1))
    if terms is None:
        return choose_for_cache(operands, implementation).run(operands)
    with as_they_are(o.q):  # what is added to scores is float32 or wider
        slots, allowed = of_slots(terms, o.q, o.k, o.allowed, positions)
        operands = replace(o, allowed=allowed, slots=slots)
        return choose_for_cache(operands, implementation).run(operands)


def _text(pattern: object) -> str:
    """The pattern's text, under which kernels find it."""
    if isinstance(pattern, str):
        return pattern
    if not isinstance(pattern, Pattern):
        raise PatternError("not-a-pattern", f"attention needs a Pattern or its text, got a {type(pattern).__name__}")
    # A compiled graph keeps the text, whose pattern is then parsed once; the compiler cannot trace weak references.
    return pattern.text if torch.compiler.is_compiling() else remember(pattern)


def _results(attended: Attended, with_lse: bool) -> Tensor | tuple[Tensor, Tensor]:
    return _with_lse(attended) if with_lse else attended.out


def _with_lse(attended: Attended) -> tuple[Tensor, Tensor]:
    assert attended.lse is not None, "a kernel that cannot give the log-sum-exp refuses to be asked for it"
    return attended.out, attended.lse
