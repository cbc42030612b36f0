"""The one protocol of all kernels: what they are asked, what they answer, and what they say about it beforehand."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from asterism.compiler import Plan, compile_mask, compile_pattern
from asterism.compiler.cost import Setting
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text


@dataclass(frozen=True, eq=False)
class Operands:
    """What attention is computed of.

    q [B, H, Nq, D], k [B, Hkv, Nk, D], v [B, Hkv, Nk, Dv], key_mask bool [B, Nk], segments integers [B, Nk].
    `text` is the pattern's, of 1 or H heads; its queries stand from `query_offset` on. `allowed` bool
    [B, 1 or H, Nq, Nk] stands in its place where the keys are those of a cache, and comes without key_mask and
    segments. `with_lse` says whether the log-sum-exp is asked for.
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

    @property
    def pattern(self) -> Pattern:
        """Who may attend to whom."""
        return by_text(self.text)

    @cached_property
    def plan(self) -> Plan:
        """The plan for these lengths, whose heads are 1 or H; it lives as long as the operands do."""
        return self.plan_of(None)

    def plan_of(self, tile: int | None) -> Plan:
        """The plan with tiles of that size; None leaves the choice to the compiler."""
        if self.allowed is not None:
            return compile_mask(self.allowed[0].cpu().numpy(), tile)
        self.pattern.check_heads(self.q.shape[1])
        n_queries, n_keys = self.q.shape[2], self.k.shape[2]
        return compile_pattern(self.pattern, n_queries, n_keys, query_offset=self.query_offset, tile=tile)

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
        return torch.is_grad_enabled() and (self.q.requires_grad or self.k.requires_grad or self.v.requires_grad)

    def with_equal_rows(self) -> "Operands":
        """The same, as a single row of a batch, where `allowed` is not the same for all: a plan knows no batch.

        The rows become heads, [1, B * H, ...], which a plan does know.
        """
        allowed = self.allowed
        if allowed is None or bool((allowed == allowed[:1]).all()):
            return self
        q, k, v = (as_heads(x) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v, allowed=as_heads(allowed.expand(-1, self.q.shape[1], -1, -1)))


def as_heads(x: Tensor) -> Tensor:
    """[B, H, ...] -> [1, B * H, ...]."""
    return x.flatten(0, 1)[None]


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
    """1 / sqrt(head_dim)."""
    return 1 / math.sqrt(q.shape[3])
