"""The protocol of all kernels: their operands, their results, and the limits that they declare."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from asterism.compiler import Plan, compile_pattern
from asterism.compiler.cost import Setting
from asterism.errors import KernelError, shown
from asterism.memo import cached_property
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text


class SlotTerms(NamedTuple):
    """Terms of the score where each pair of a query and a slot has a distance of its own; None or 0 for none.

    before  [B, H, M, L], wide, added to q . k before it is scaled
    bias    [B or 1, H or 1, M, L], wide, added to the scores; finite where a slot is allowed
    sinks   [H], wide; and `softcap`, as in Terms
    """

    before: Tensor | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    softcap: float = 0.0


@dataclass(frozen=True, eq=False)
class Operands:
    """What attention is computed of.

    q [B, H, Nq, D], k [B, Hkv, Nk, D], v [B, Hkv, Nk, Dv], key_mask bool [B, Nk], segments integers [B, Nk].
    `text` is the pattern's, of 1 or H heads; its queries stand from `query_offset` on. `allowed` bool
    [B, 1 or H, Nq, Nk] stands in its place where the keys are those of a cache, and comes without key_mask and
    segments. `with_lse` says whether the log-sum-exp is asked for.

    Terms of the score (kernels/terms/terms.py), None or 0 for none: `bias` [H or 1, L], wide, for the distances from
    `first_distance` on, which kernels get for all of them (`with_whole_bias`); `relative` [R, D] in the dtype of q;
    `sinks` [H], wide, which kernels never see, because the operator joins them; `softcap`; `dropout`, the rate, and its
    `seed` as a signed 64-bit number. With `allowed`, `slots` stands in their place.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    segments: Tensor | None
    allowed: Tensor | None
    text: str
    query_offset: int
    scale: float
    with_lse: bool = True
    bias: Tensor | None = None
    relative: Tensor | None = None
    sinks: Tensor | None = None
    first_distance: int = 0
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    slots: SlotTerms | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms that the scores have."""
        given = {"bias": self.bias is not None, "relative": self.relative is not None, "softcap": self.softcap > 0}
        given |= {"sinks": self.sinks is not None, "dropout": self.dropout > 0}
        return tuple(name for name, is_given in given.items() if is_given)

    def refusal_of_terms(self, implementation: str, computed: Collection[str], instead: str) -> str | None:
        """The line with which an implementation refuses terms that it does not compute; None if it computes all."""
        missing = [name for name in self.terms if name not in computed]
        if not missing:
            return None
        return f'implementation="{implementation}" cannot compute {", ".join(missing)} of terms: use {instead}'

    @property
    def pattern(self) -> Pattern:
        """Who may attend to whom."""
        return by_text(self.text)

    @cached_property
    def plan(self) -> Plan:
        """The plan for these lengths, whose heads are 1 or H; it lives as long as the operands do."""
        self.pattern.check_heads(self.q.shape[1])
        n_queries, n_keys = self.q.shape[2], self.k.shape[2]
        return compile_pattern(self.pattern, n_queries, n_keys, query_offset=self.query_offset)

    @property
    def wide(self) -> torch.dtype:
        """What sums are kept in: float64 for float64, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def masked(self) -> bool:
        """Whether the batch forbids pairs."""
        return self.key_mask is not None or self.segments is not None

    @property
    def differentiated(self) -> bool:
        """Whether a gradient may be asked for."""
        tensors = (self.q, self.k, self.v, self.bias, self.relative, self.sinks, *(self.slots or ())[:3])
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)

    @property
    def in_training(self) -> bool:
        """Whether a gradient of this call may ever be asked for, by which kernels are chosen: the same for a call that
        is made twice, without gradients and with them, as checkpoints do (`use_reentrant=True`).

        Their first pass is the forward pass of an autograd function, where PyTorch switches off forward-mode
        derivatives too, which `no_grad` leaves on. In a graph only the operands count.
        """
        if any(x.requires_grad for x in (self.q, self.k, self.v)):
            return True
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return False
        return not torch._C._is_fwd_grad_enabled()

    @property
    def distances(self) -> tuple[int, int]:
        """The distances (first, past) from query to key between these lengths."""
        first = self.query_offset - self.k.shape[2] + 1
        return first, max(first, self.query_offset + self.q.shape[2])

    @property
    def known_distances(self) -> tuple[int, int]:
        """Those of the distances for which the terms have what they need."""
        first, past = self.distances
        if self.bias is not None:
            first, past = max(first, self.first_distance), min(past, self.first_distance + self.bias.shape[1])
        if self.relative is not None:
            first, past = max(first, 0), min(past, self.relative.shape[0])
        return first, past

    def check_distances(self) -> None:
        """Raises KernelError where the pattern reads a distance that the terms do not know."""
        (first, past), (least, beyond) = self.known_distances, self.distances
        if (first, past) == (least, beyond):
            return
        of_the_past = past == beyond and first <= 0 and self.plan.is_causal
        if of_the_past or (read := self.plan.distances) is None:
            return
        refuse_distances(read, (first, past), self.text)

    def with_whole_bias(self) -> "Operands":
        """The same, whose bias has all distances; those that it did not know, and the pattern does not read, are 0."""
        first, past = self.distances
        if self.bias is None or (first, past - first) == (self.first_distance, self.bias.shape[1]):
            return self
        ends = (self.first_distance - first, past - self.first_distance - self.bias.shape[1])
        return replace(self, bias=torch.nn.functional.pad(self.bias, ends), first_distance=first)


def refuse_distances(read: tuple[int, int], known: tuple[int, int], text: str) -> None:
    """Raises KernelError where the least or the greatest distance that is read is not among those known."""
    first, past = known
    if first <= read[0] and read[1] < past:
        return
    if read[0] < first:
        distance, remedy = read[0], "write (pattern) & causal()" if first == 0 else "begin the table earlier"
    else:
        distance, remedy = read[1], f"give a longer table, or write (pattern) & window(left={max(past - 1, 0)})"
    raise KernelError(
        "distances-beyond-table",
        f"the terms have a table for distances {first} to {past - 1}, but the pattern reads a key at distance"
        f" {distance}: {remedy}; the pattern is {shown(text)}",
    )


class Attended(NamedTuple):
    """Output [B, H, Nq, Dv] in the dtype of q, and log-sum-exp [B, H, Nq], wide, where it was asked for."""

    out: Tensor
    lse: Tensor | None


class Kernel(Protocol):
    """A way to compute attention."""

    def refusal(self, operands: Operands) -> str | None:
        """Why it cannot take the operands and what would work, in one line; None if it can."""

    def run(self, operands: Operands) -> Attended:
        """Attention. Raises KernelError for what only the plan shows to be impossible."""

    def costs(self, plan: Plan, setting: Setting) -> float:
        """Estimated nanoseconds; infinite for what is never taken for its speed."""


def default_scale(q: Tensor) -> float:
    """1 / sqrt(D) for q [B, H, Nq, D] of any dtype."""
    return 1 / math.sqrt(q.shape[3])
