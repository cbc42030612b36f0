"""Attention under a pattern with selected(...): what is read whatever is chosen, and what the choice adds.

The first is a pattern as any other, for any kernel. The second is computed block of keys by block of keys, for those
queries that chose it (`cpu.py`), on a GPU query by query (`triton.py`), or in plain PyTorch (`eager.py`). No pair is in
both.
"""

from dataclasses import replace

import torch
from torch import Tensor

from asterism.errors import KernelError, shown
from asterism.kernels.choice.choice import choose
from asterism.kernels.merging import Result, merged
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.reference import PairTerms, reference
from asterism.kernels.selection import cpu, eager, triton
from asterism.kernels.selection.asked import Choice, count_shares, shares_of
from asterism.kernels.selection.select import bounds_missing, require_numbers, select
from asterism.kernels.transforms import is_transformed, outside_graphs
from asterism.kernels.triton.kernel import refusal
from asterism.patterns.by_text import remember
from asterism.patterns.selected import Bounds, bounds_of

_IMPLEMENTATIONS = ("auto", "cpu", "triton", "eager", "reference")


@outside_graphs
def attend_selected(operands: Operands, choice: Choice | None, implementation: str) -> Attended:
    """Attention of operands whose pattern has selected(...), or for which a choice is given; with gradients.

    Without a choice, blocks are chosen by `select` of q and k. Raises KernelError for what a choice cannot be used
    with, and for one that does not fit; PatternError as `bounds_of` does.
    """
    o = operands
    _check(o, implementation)
    if not o.pattern.chooses:
        bounds_missing(o.pattern)
    bounds = bounds_of(o.pattern)
    if choice is None:
        choice = select(o.q, o.k, o.pattern, key_mask=o.key_mask, query_offset=o.query_offset)
    indices = checked_indices(choice, o, bounds)
    if implementation == "reference":
        return _by_reference(o, bounds, indices)
    if implementation == "cpu" or implementation == "auto" and cpu.refusal(o) is None:
        if reason := cpu.refusal(o):
            raise KernelError("selected-cpu", reason)
        return cpu.attend(o, bounds, indices)
    always = replace(o, text=remember(bounds.always), with_lse=True)
    before = choose(always, implementation).run(always)
    assert before.lse is not None, "it was asked for"
    on_gpu = implementation == "triton" or implementation == "auto" and o.q.is_cuda and refusal(o) is None
    more = (triton if on_gpu else eager).attend(o, bounds, indices)
    return Attended(*merged((Result(before.out, before.lse), more)))


def _check(o: Operands, implementation: str) -> None:
    """Raises KernelError for what a pattern with selected(...) is not computed with."""
    if is_transformed():
        raise KernelError(
            "selected-in-transform", "a pattern with selected(...) is not for torch.func: call it outside"
        )
    require_numbers(o.q)
    if implementation not in _IMPLEMENTATIONS:
        raise KernelError(
            "selected-implementation",
            f"a pattern with selected(...) is computed by {', '.join(_IMPLEMENTATIONS)}, got {shown(implementation)}",
        )
    if o.segments is not None:
        raise KernelError(
            "selected-segments", "a pattern with selected(...) takes no segments: give each document a row of its own"
        )
    if terms := [name for name in o.terms if name != "sinks"]:
        raise KernelError(
            "selected-terms", f"a pattern with selected(...) takes no {', '.join(terms)} of terms: leave them out"
        )


def checked_indices(choice: object, o: Operands, bounds: Bounds) -> Tensor:
    """The indices of a choice, int32 [B, heads, G, K], contiguous, ascending without repetition, then -1.

    Raises KernelError for a choice that does not fit operands q [B, H, Nq, D] and k [B, Hkv, Nk, D].
    """
    if not isinstance(choice, Choice):
        raise KernelError("not-a-choice", f"choice must be what asterism.select gives, got a {type(choice).__name__}")
    chosen = bounds.chosen
    if (choice.block, choice.query_block) != (chosen.block, chosen.query_block):
        raise KernelError(
            "choice-blocks",
            f"the choice has blocks of {choice.block} keys and {choice.query_block} queries, the pattern {chosen}",
        )
    indices, (batch, heads, n_queries), kv_heads = choice.indices, o.q.shape[:3], o.k.shape[1]
    n_blocks = -(-o.k.shape[2] // chosen.block)
    rows = count_shares(n_queries, o.query_offset, chosen.query_block)
    fits = isinstance(indices, Tensor) and indices.layout == torch.strided and indices.dtype == torch.int32
    fits = fits and indices.ndim == 4
    fits = fits and indices.shape[::2] == (batch, rows) and indices.shape[1] in (1, kv_heads, heads)
    if not fits:
        seen = f"{list(indices.shape)} of {indices.dtype}" if isinstance(indices, Tensor) else type(indices).__name__
        raise KernelError(
            "choice-shape",
            f"choice.indices must be int32 [{batch}, 1, {kv_heads} or {heads} heads, {rows} blocks of queries, any],"
            f" got {seen}",
        )
    if indices.device != o.q.device:
        raise KernelError("choice-device", f"choice.indices must be on {o.q.device}, got {indices.device}")
    least, most = (int(end) for end in indices.aminmax()) if indices.numel() else (-1, -1)
    if not -1 <= least <= most < n_blocks:
        raise KernelError(
            "choice-beyond-blocks",
            f"choice.indices must be -1 or blocks 0 to {n_blocks - 1}, got {least} to {most}",
        )
    with torch.inference_mode(False):  # a copy, which nobody else changes before the backward pass
        return _ascending(indices).clone(memory_format=torch.contiguous_format)


def _ascending(indices: Tensor) -> Tensor:
    """The same blocks, ascending without repetition, then -1."""
    before, after = indices[..., :-1], indices[..., 1:]
    if bool(((after > before) & (before >= 0) | (after == -1)).all()):
        return indices
    beyond = torch.iinfo(torch.int32).max
    found = indices.masked_fill(indices < 0, beyond).sort(dim=-1).values
    again = torch.zeros_like(found, dtype=torch.bool)
    again[..., 1:] = found[..., 1:] == found[..., :-1]
    found = found.masked_fill(again, beyond).sort(dim=-1).values
    return found.masked_fill(found == beyond, -1)


def _by_reference(o: Operands, bounds: Bounds, indices: Tensor) -> Attended:
    n_queries, n_keys = o.q.shape[2], o.k.shape[2]
    place = n_queries, n_keys, o.query_offset
    always, most = (torch.from_numpy(rule.dense(*place)[0]).to(o.q.device) for rule in (bounds.always, bounds.most))
    blocks = -(-n_keys // bounds.chosen.block)
    sets = indices.new_zeros((*indices.shape[:3], blocks + 1), dtype=torch.bool)
    sets.scatter_(-1, indices.long().masked_fill(indices < 0, blocks), True)
    positions = torch.arange(n_queries, device=o.q.device) + o.query_offset
    share = shares_of(o.q, o.query_offset, bounds.chosen.query_block)
    block = torch.arange(n_keys, device=o.q.device) // bounds.chosen.block
    read = sets[:, :, share][..., block].repeat_interleave(o.q.shape[1] // indices.shape[1], dim=1)
    mask = always | most & read
    if o.key_mask is not None:
        mask = mask & o.key_mask[:, None, None]
    distances = positions[:, None] - torch.arange(n_keys, device=o.q.device)
    terms = None if o.sinks is None else PairTerms(distances, sinks=o.sinks)
    return Attended(*reference(o.q, o.k, o.v, mask, o.scale, terms))
