"""Decoding in plain PyTorch, and terms of the score with a distance for each pair of query and slot.

`of_slots` lays them out pair by pair, for all that decode. `SLOTS` computes what no kernel does: gradients, float64 and
float16, on every device.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.cost import Setting
from asterism.errors import KernelError
from asterism.kernels.checks import check_positions, check_types
from asterism.kernels.merging import share
from asterism.kernels.operands import Attended, Operands, SlotTerms, refuse_distances
from asterism.kernels.terms.terms import DistanceTable, Terms, expanded

_AT_ONCE = 2**14
"""Distances of which a bias is asked in one go: between those of the first tokens and of the last are a million."""

Positions = tuple[Tensor, Tensor]
"""Where queries stand, int64 [B or 1, M], and where the keys in slots do, int64 [B or 1, L]; -1 for an empty slot."""


def of_slots(
    terms: Terms, q: Tensor, k: Tensor, allowed: Tensor, positions: Positions | None
) -> tuple[SlotTerms, Tensor]:
    """The terms pair by pair for q [B, H, M, D] and k [B, Hkv, L, D], and `allowed` (bool [B or 1, 1 or H, M, L])
    without the slots whose bias is -inf.

    Raises KernelError for terms that do not fit q, for distances that their tables do not have, and for dropout.
    """
    if isinstance(terms, Terms) and terms.dropout is not None:
        raise KernelError("dropout-with-cache", "attention to a cache supports no dropout: leave dropout out of terms")
    # What does not go by distance is checked and cast as attend does it; tables follow from the distances read.
    plain = terms if not isinstance(terms, Terms) else Terms(None, terms.relative, terms.softcap, terms.sinks)
    rows = 0 if not isinstance(terms, Terms) or terms.relative is None else len(terms.relative)
    given = expanded(plain, q, k, rows)  # an offset at which no row of the table is left out
    before = bias = None
    if terms.bias is not None or given.relative is not None:
        distances = _distances(positions, q, k)
        read = _read(distances, allowed)
        if given.relative is not None:
            refuse_distances(read or (0, 0), (0, max(1, len(given.relative))), "the slots that are allowed")
            before = _products(q, given.relative, distances)
        if terms.bias is not None and read is not None:
            bias = _bias(terms, q, distances, allowed, read)
            allowed = allowed & (bias != -math.inf)
    return SlotTerms(before, bias, given.sinks, given.softcap), allowed


def _distances(positions: Positions | None, q: Tensor, k: Tensor) -> Tensor:
    """int64 [B or 1, 1, M, L]."""
    if torch.compiler.is_compiling():
        raise KernelError(
            "terms-by-distance-in-compile",
            "terms that depend on distance cannot be compiled for the slots of a cache: leave them out",
        )
    if positions is None:
        raise KernelError(
            "terms-need-positions",
            "a bias and relative positions depend on distance: give positions=(query_positions, key_positions)",
        )
    asked, kept = positions
    check_types(query_positions=asked, key_positions=kept)
    check_positions("query_positions", asked, q)
    check_positions("key_positions", kept, k)
    return (asked[:, None, :, None] - kept[:, None, None, :]).to(q.device)


def _read(distances: Tensor, allowed: Tensor) -> tuple[int, int] | None:
    """The least and the greatest distance of what is allowed."""
    shape = torch.broadcast_shapes(distances.shape, allowed.shape)
    found = distances.expand(shape)[allowed.expand(shape)]
    return (int(found.min()), int(found.max())) if found.numel() else None


def _bias(terms: Terms, q: Tensor, distances: Tensor, allowed: Tensor, read: tuple[int, int]) -> Tensor:
    """[B or 1, H or 1, M, L], wide."""
    bias, (first, past) = terms.bias, (read[0], read[1] + 1)
    assert bias is not None
    if isinstance(bias, DistanceTable):
        refuse_distances(read, (bias.first, bias.first + bias.values.shape[1]), "the slots that are allowed")
    runs = [(first, past)] if past - first <= _AT_ONCE else _runs(distances, allowed)
    # As attend expands it: `past - first` queries against one key have just these distances.
    given = [
        expanded(Terms(bias), q[:, :, :1].expand(-1, -1, past - first, -1), q[:, :, :1], first).bias
        for first, past in runs
    ]
    table = torch.cat([part for part in given if part is not None], dim=1)
    return table[:, _places(distances, runs)[:, 0]].transpose(0, 1)


def _places(distances: Tensor, runs: list[tuple[int, int]]) -> Tensor:
    """Where distances stand in a table of all runs one after another; any place for those in no run."""
    if len(runs) == 1:
        ((first, past),) = runs
        return (distances - first).clamp(0, past - first - 1)
    starts = torch.tensor([first for first, _ in runs], device=distances.device)
    lengths = torch.tensor([past - first for first, past in runs], device=distances.device)
    run = (torch.searchsorted(starts, distances, right=True) - 1).clamp(min=0)
    return (distances - starts[run]).clamp(min=0).minimum(lengths[run] - 1) + (lengths.cumsum(0) - lengths)[run]


def _runs(distances: Tensor, allowed: Tensor) -> list[tuple[int, int]]:
    """The distances of what is allowed, as (first, past) of stretches with not too much between two of them."""
    shape = torch.broadcast_shapes(distances.shape, allowed.shape)
    found = distances.expand(shape)[allowed.expand(shape)].unique()
    is_last = found.diff() > _AT_ONCE // 64
    firsts, lasts = torch.cat([found[:1], found[1:][is_last]]), torch.cat([found[:-1][is_last], found[-1:]])
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _products(q: Tensor, relative: Tensor, distances: Tensor) -> Tensor:
    """q . p(distance), [B, H, M, L], wide."""
    wide = torch.promote_types(q.dtype, torch.float32)
    places = distances.clamp(0, max(0, len(relative) - 1))
    products = q.to(wide) @ relative.to(wide).T
    return products.gather(-1, places.expand(*q.shape[:3], -1))


@dataclass(frozen=True)
class InPyTorch:
    """The formula for all pairs at once, in float32 or wider; differentiable by autograd."""

    def refusal(self, operands: Operands) -> str | None:
        return None

    def run(self, operands: Operands) -> Attended:
        o, allowed, terms = operands, operands.allowed, operands.slots or SlotTerms()
        assert allowed is not None, "only chosen for the slots of a cache"
        unread = ~allowed.any(dim=2)[..., None]
        k, v = (x.repeat_interleave(o.group, dim=1).masked_fill(unread, 0).to(o.wide) for x in (o.k, o.v))
        scores = o.q.to(o.wide) @ k.transpose(-1, -2)
        if terms.before is not None:
            scores = scores + terms.before
        scores = scores * o.scale
        if terms.softcap:
            scores = terms.softcap * torch.tanh(scores / terms.softcap)
        if terms.bias is not None:
            scores = scores + terms.bias
        empty = ~allowed.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0)
        lse = scores.logsumexp(dim=-1, keepdim=True) if scores.shape[-1] else scores.sum(dim=-1, keepdim=True)
        lse = lse.masked_fill(empty, -math.inf)
        if terms.sinks is not None:
            lse = torch.logaddexp(lse, terms.sinks[:, None, None].expand_as(lse))
        weights = share(scores, lse).masked_fill(~allowed, 0)
        return Attended((weights @ v).to(o.q.dtype), lse[..., 0])

    def costs(self, plan: Plan, setting: Setting) -> float:
        return math.inf


SLOTS = InPyTorch()
"""Decoding in plain PyTorch, with terms or without."""
