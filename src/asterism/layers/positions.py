"""How a model knows where a token stands: learned, factorised, relative, or rotary positions.

Learned and factorised positions are added to the token embedding once, before the first block, and have a table that
ends; rotary positions turn queries and keys inside every attention layer and do not end; relative positions are added
to the keys by distance, up to a span. Positions are int64 and count from 0.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from asterism.errors import ConfigurationError


class FactorisedPositions(nn.Module):
    """The sum of one learned embedding per axis of the position (Child 2019, section 5.3).

    Position i is read as an index into an array of the given shape, last axis fastest: [rows, stride] for text,
    [height, width, 3] for the bytes of an image. Positions must be below `capacity`, the product of the axes.

    Raises ConfigurationError for an empty shape or an axis that is not positive.
    """

    def __init__(self, shape: Sequence[int], hidden_size: int) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise ConfigurationError(f"position_shape needs at least one axis, each at least 1, got {list(shape)}")
        self.shape = tuple(shape)
        self.capacity = math.prod(self.shape)
        self.weight = nn.Parameter(torch.empty(sum(self.shape), hidden_size))
        """The tables of all axes, one below the other."""
        self.initialise(gain=0.125)

    def initialise(self, gain: float, spread: float | None = None) -> None:
        """Draw from N(0, gain / sqrt(hidden_size * number of axes)), or from N(0, spread) when a spread is given."""
        nn.init.normal_(self.weight, std=spread or gain / math.sqrt(self.weight.shape[1] * len(self.shape)))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """int64 [...] -> [..., hidden_size]."""
        embeddings = []
        cells = self.capacity
        for size, table in zip(self.shape, self.weight.split(self.shape), strict=True):
            cells //= size
            embeddings.append(F.embedding(positions // cells, table))
            positions = positions % cells
        return sum(embeddings[1:], start=embeddings[0])

    def extra_repr(self) -> str:
        return f"shape={list(self.shape)}, hidden_size={self.weight.shape[1]}"


class LearnedPositions(FactorisedPositions):
    """One learned embedding per position: the factorised embedding with a single axis."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__((max_positions,), hidden_size)


class RelativePositions(nn.Module):
    """A key embedding for each distance q - k from 0 to `span`, from N(0, 1), for all layers and heads alike
    (Sukhbaatar et al. 2019, the authors' `key_pe`; they read no token at distance 0 and have no row for it).
    """

    def __init__(self, span: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(span + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self) -> torch.Tensor:
        """[span + 1, head_dim]: row d is for distance d."""
        return self.weight


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021, RoFormer): the pair (x_j, x_{j + D/2}) turns by position * theta^(-2j / D).

    The angles are computed in float32, or in float64 for float64 input.
    """

    def __init__(self, theta: float = 10000.0) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads [B, H, N, D], D even, and positions int64 [B or 1, N] -> [B, H, N, D] in the dtype of `heads`."""
        dtype = torch.promote_types(heads.dtype, torch.float32)
        exponents = torch.arange(0, heads.shape[-1], 2, dtype=dtype, device=heads.device) / heads.shape[-1]
        angles = positions[:, None, :, None].to(dtype) * self.theta**-exponents
        cosine, sine = angles.cos(), angles.sin()
        first, second = heads.to(dtype).chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(heads.dtype)

    def extra_repr(self) -> str:
        return f"theta={self.theta}"
