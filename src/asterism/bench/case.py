"""One case of a benchmark: a pattern, a length, a dtype, a shape and a device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.compiler import compile_pattern
from asterism.patterns import Pattern, parse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes that can be measured, by name."""


@dataclass(frozen=True)
class Case:
    """Self-attention of `length` tokens: q, k and v are [batch, heads, length, head_dim]."""

    pattern: str
    length: int
    dtype: str
    batch: int
    heads: int
    head_dim: int
    device: str

    @property
    def rule(self) -> Pattern:
        return parse(self.pattern)

    @property
    def lanes(self) -> int:
        """Heads of all sequences together: batch times heads."""
        return self.batch * self.heads

    @property
    def square(self) -> int:
        """Pairs that dense attention computes, over all lanes."""
        return self.lanes * self.length**2

    @property
    def bytes(self) -> int:
        """Bytes of q; k, v and the output have the same size."""
        return self.lanes * self.length * self.head_dim * DTYPES[self.dtype].itemsize

    def pairs(self, pattern: str) -> int:
        """Pairs that `pattern` allows at this length, over all lanes."""
        plan = compile_pattern(pattern, self.length)
        return plan.pairs * self.lanes // plan.heads

    def flops(self, pairs: int, backward: bool) -> float:
        """Useful FLOPs: 4 for each pair and feature forward, and 3.5 times as many for forward and backward
        together.
        """
        return 4.0 * pairs * self.head_dim * (3.5 if backward else 1)

    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the gradient of the output, each [batch, heads, length, head_dim], the same on every call."""
        generator = torch.Generator(self.device).manual_seed(0)
        shape = (self.batch, self.heads, self.length, self.head_dim)

        def drawn() -> Tensor:
            return torch.randn(shape, generator=generator, device=self.device).to(DTYPES[self.dtype])

        return drawn(), drawn(), drawn(), drawn()
