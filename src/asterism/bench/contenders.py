"""The contenders that are timed: the implementations of this library, and dense attention."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.bench.case import Case
from asterism.kernels import IMPLEMENTATIONS, attend
from asterism.patterns import parse

CHECKED_LENGTH = 512
"""Tokens at which results are checked before anything is timed."""

_MOST_SECONDS = 4.0
"""Estimated seconds of one dense forward pass above which only a share of it is computed."""

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Prepared:
    """A contender ready for one case.

    `compute` takes q, k and v, and returns the output. `pairs` counts the pairs that it may read, over all lanes.
    `computes` names its pattern, and `mask` returns that pattern as bool [heads or 1, tokens, tokens]. `plan_seconds`
    is the time of preparation, if it is not that of the plan. If `share` is below 1, `select` cuts the operands, and
    times are divided by the share.
    """

    compute: Compute
    pairs: int
    computes: str
    mask: Callable[[], Tensor]
    plan_seconds: float | None = None
    share: float = 1.0
    select: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    note: str = ""


class Contender(ABC):
    """Something that computes attention.

    `loose` multiplies the error that our kernels are allowed. `compiles` says whether it compiles anew for every
    length.
    """

    name: str
    kind: ClassVar[str]
    loose: ClassVar[float] = 1.0
    compiles: bool = False

    @abstractmethod
    def reason_against(self, case: Case) -> str | None:
        """The reason why it cannot be compared in this case, or None."""

    @abstractmethod
    def prepare(self, case: Case) -> Prepared:
        """Prepare it for a case. Raises whatever the contender raises for cases that it does not support."""

    def checked_length(self, case: Case) -> int:
        """The number of tokens at which its result is checked."""
        return min(case.length, CHECKED_LENGTH)


def pattern_mask(case: Case, pattern: str) -> Tensor:
    """The pattern as bool [heads or 1, tokens, tokens]; for short lengths."""
    return torch.from_numpy(parse(pattern).dense(case.length))


class Implementation(Contender):
    """`attend` with an implementation of this library."""

    kind = "asterism"

    def __init__(self, implementation: str) -> None:
        self.name = implementation

    def reason_against(self, case: Case) -> str | None:
        if self.name == "reference" and case.square > 2**30:
            return "the reference computes all n x n scores: too many here"
        return None

    def prepare(self, case: Case) -> Prepared:
        compute = partial(attend, pattern=case.pattern, implementation=self.name)
        return Prepared(compute, case.pairs(case.pattern), case.pattern, partial(pattern_mask, case, case.pattern))


class DenseContender(Contender):
    """PyTorch's scaled_dot_product_attention: all n^2 pairs, or with `is_causal` those of the past.

    If one call would take long, only some lanes are computed, and for a full square only some queries. The time is
    scaled, and the note says so.
    """

    kind = "dense"

    def __init__(self, is_causal: bool) -> None:
        self.is_causal = is_causal
        self.name = "sdpa causal" if is_causal else "sdpa"
        self.rate: float | None = None

    def reason_against(self, case: Case) -> str | None:
        if self.is_causal and not case.rule.is_causal:
            return "the pattern reads the future"
        if self.is_causal and (seconds := self._seconds(case) / case.lanes) > 10 * _MOST_SECONDS:
            return f"one head alone would take about {seconds:,.0f} seconds"
        return None

    def prepare(self, case: Case) -> Prepared:
        pattern = "causal()" if self.is_causal else "dense()"
        lanes, queries = self._affordable(case)
        share = lanes / case.lanes * queries / case.length
        prepared = Prepared(
            partial(F.scaled_dot_product_attention, is_causal=self.is_causal),
            case.lanes * (case.length * (case.length + 1) // 2) if self.is_causal else case.square,
            pattern,
            partial(pattern_mask, case, pattern),
        )
        if share == 1:
            return prepared

        def select(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            cut = [x.flatten(0, 1)[None, :lanes] for x in (q, k, v)]
            return cut[0][:, :, :queries], cut[1], cut[2]

        parts = [f"{lanes} of {case.lanes} heads"] if lanes < case.lanes else []
        parts += [f"{queries:,} of {case.length:,} queries"] if queries < case.length else []
        return Prepared(
            prepared.compute,
            prepared.pairs,
            pattern,
            prepared.mask,
            share=share,
            select=select,
            note=f"{', '.join(parts)}, scaled",
        )

    def _seconds(self, case: Case) -> float:
        """Estimated seconds of a forward pass; 0 if no rate is known."""
        if self.rate is None:
            return 0.0
        return case.flops(case.square, backward=False) / self.rate / (2 if self.is_causal else 1)

    def _affordable(self, case: Case) -> tuple[int, int]:
        """The numbers of lanes and queries to compute: all, unless that would take long."""
        seconds = self._seconds(case)
        if seconds <= _MOST_SECONDS:
            return case.lanes, case.length
        lanes = max(1, int(case.lanes * _MOST_SECONDS / seconds))
        left = seconds * lanes / case.lanes
        halvings = 0
        while not self.is_causal and left > 2 * _MOST_SECONDS:
            left /= 2
            halvings += 1
        return lanes, case.length >> halvings


OURS = tuple(name for name in IMPLEMENTATIONS if name not in ("reference", "dense"))
"""Implementations timed by default. Dense attention is always timed, and the reference is not a kernel."""
