"""Places of tokens among others: kept as numbers, and as what a tensor is indexed by on each device."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.patterns.intervals import Integers


@dataclass(frozen=True, eq=False)
class Places:
    """Numbers of tokens, in the order in which they are taken."""

    numbers: Integers
    _on: dict[torch.device, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def run(self) -> slice | None:
        """The same as a slice, where they are neighbours."""
        if not len(self):
            return slice(0, 0)
        first = int(self.numbers[0])
        return slice(first, first + len(self)) if bool((np.diff(self.numbers) == 1).all()) else None

    def on(self, device: torch.device) -> Tensor:
        if device not in self._on:
            with torch.inference_mode(False):
                self._on[device] = torch.from_numpy(self.numbers).to(device)
        return self._on[device]

    def take(self, x: Tensor) -> Tensor:
        """Tokens of x [B, heads, tokens, ...]: [B, heads, places, ...]."""
        run = self.run
        if run is None:
            return x.index_select(2, self.on(x.device))
        return x if len(self) == x.shape[2] else x[:, :, run]

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """x with other values [B, heads, places, ...] at these places, which are ascending."""
        if (run := self.run) is None:
            return x.index_copy(2, self.on(x.device), values)
        return torch.cat([x[:, :, : run.start], values, x[:, :, run.stop :]], dim=2)

    def share(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x, which one attention alone reads, and what `take` gives of it.

        Backward, the gradients of the tokens taken are added to that of x where it lies: autograd would add up two
        tensors as large as x, one of them nearly all zeros.
        """
        all_of_it, some = _Shared.apply(x, self)  # type: ignore[no-untyped-call]
        return all_of_it, some


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        context.places = places
        return x.view_as(x), places.take(x).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, of_some: Tensor) -> tuple[Tensor, None]:
        if 0 in gradient.stride() and gradient.numel():  # no memory of its own
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        if (run := context.places.run) is not None:
            gradient[:, :, run] += of_some
        else:
            gradient.index_add_(2, context.places.on(gradient.device), of_some)
        return gradient, None
