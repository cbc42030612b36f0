"""Indices of tokens in a tensor, as numbers and as index tensors on each device.

Tensors keep the dtype in which they are given; indices are int64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.memo import cached_property
from asterism.patterns.intervals import Integers


@dataclass(frozen=True, eq=False)
class TokenIndices:
    """Numbers of tokens, in the order in which they are taken."""

    numbers: Integers
    _on: dict[torch.device, Tensor] = field(default_factory=dict)

    @classmethod
    def first(cls, count: int) -> "TokenIndices":
        """Those of the first tokens."""
        return cls(np.arange(count))

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def run(self) -> slice | None:
        """The same as a slice, where they are neighbours."""
        if not len(self):
            return slice(0, 0)
        first = int(self.numbers[0])
        return slice(first, first + len(self)) if bool((np.diff(self.numbers) == 1).all()) else None

    def on(self, device: torch.device) -> Tensor:
        """The numbers as int64 [indices] on a device; made once for each."""
        if device not in self._on:
            with torch.inference_mode(False):
                self._on[device] = torch.from_numpy(self.numbers).to(device)
        return self._on[device]

    def take(self, x: Tensor) -> Tensor:
        """Tokens of x [B, heads, tokens, ...]: [B, heads, indices, ...]."""
        run = self.run
        if run is None:
            return x.index_select(2, self.on(x.device))
        return x if len(self) == x.shape[2] else x[:, :, run]

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """x with other values [B, heads, indices, ...] at these indices, which are ascending."""
        if (run := self.run) is None:
            return x.index_copy(2, self.on(x.device), values)
        return torch.cat([x[:, :, : run.start], values, x[:, :, run.stop :]], dim=2)

    def among(self, others: Integers) -> "TokenIndices":
        """Where these stand among others, int64 [others], which are ascending."""
        return TokenIndices(np.searchsorted(others, self.numbers))

    def split(self, counts: Sequence[int]) -> "tuple[TokenIndices, ...]":
        """So many of them each, one after another."""
        return tuple(TokenIndices(numbers) for numbers in np.split(self.numbers, np.cumsum(counts)[:-1]))

    def take_into(self, found: Tensor, x: Tensor) -> None:
        """What `take` gives of x [B, heads, tokens, ...], written where `found` [B, heads, indices, ...] lies."""
        if (run := self.run) is None:
            torch.index_select(x, 2, self.on(x.device), out=found)
        else:
            found.copy_(x[:, :, run])

    def add_to(self, x: Tensor, values: Tensor) -> None:
        """Adds values [B, heads, indices, ...] to x where it lies."""
        if (run := self.run) is None:
            x.index_add_(2, self.on(x.device), values)
        else:
            x[:, :, run] += values

    def write_to(self, x: Tensor, values: Tensor) -> None:
        """Writes values [B, heads, indices, ...] over those of x."""
        if (run := self.run) is None:
            x.index_copy_(2, self.on(x.device), values)
        else:
            x[:, :, run] = values

    def share(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, heads, tokens, ...], which one attention alone reads, and what `take` gives of it.

        Backward, the gradients of the tokens taken are added to that of x where it lies: autograd would add up two
        tensors as large as x, one of them nearly all zeros.
        """
        all_of_it, some = _Shared.apply(x, self)  # type: ignore[no-untyped-call]
        return all_of_it, some

    def part_from(self, x: Tensor, others: "TokenIndices") -> tuple[Tensor, Tensor]:
        """What these and `others` take of x [B, heads, tokens, ...], all of whose tokens are either's; backward,
        nothing is added up."""
        own, theirs = _Parted.apply(x, self, others)  # type: ignore[no-untyped-call]
        return own, theirs


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, indices: TokenIndices) -> tuple[Tensor, Tensor]:
        context.indices = indices
        return x.view_as(x), indices.take(x).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, of_some: Tensor) -> tuple[Tensor, None]:
        gradient = owned(gradient)
        context.indices.add_to(gradient, of_some)
        return gradient, None


class _Parted(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, *indices: TokenIndices) -> tuple[Tensor, ...]:
        context.indices, context.shape = indices, x.shape
        return tuple(one.take(x) for one in indices)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        for gradient in gradients:
            if gradient.shape == context.shape:
                return gradient, None, None
        whole = gradients[0].new_empty(context.shape)
        for indices, gradient in zip(context.indices, gradients, strict=True):
            indices.write_to(whole, gradient)
        return whole, None, None


def owned(gradient: Tensor) -> Tensor:
    """A gradient [...] with a memory of its own, which can be added to."""
    shares = 0 in gradient.stride() and gradient.numel()
    return gradient.clone(memory_format=torch.contiguous_format) if shares else gradient
