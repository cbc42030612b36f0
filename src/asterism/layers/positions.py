"""Positions of tokens in a model: learned, sinusoidal, factorised, relative, bucketed or rotary.

Learned and factorised positions are added to the token embedding once, before the first block, and have a table that
ends; sinusoidal ones, too, without a table. Rotary positions turn queries and keys inside every attention layer and do
not end; relative positions are added to the keys by distance, up to a span; buckets of distances are added to the
scores. Positions are int64 and count from 0.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from asterism.errors import ConfigurationError
from asterism.kernels import Buckets


class FactorisedPositions(nn.Module):
    """The sum of one learned embedding per axis of the position (Child 2019, section 5.3).

    Position i is read as an index into an array of the given shape, last axis fastest: [rows, stride] for text,
    [height, width, 3] for the bytes of an image. Positions must be below `capacity`, the product of the axes.

    Raises ConfigurationError for an empty shape or an axis that is not positive.
    """

    def __init__(self, shape: Sequence[int], hidden_size: int) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise ConfigurationError(
                "position-shape", f"position_shape needs at least one axis, each at least 1, got {list(shape)}"
            )
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


class SinusoidalPositions(nn.Module):
    """sin(p f_j) in the first half of the features and cos(p f_j) in the second, f_j = 10000^(-2j / hidden_size)
    (Vaswani 2017, section 3.5, in the order of the authors' code and of Pegasus). Positions do not end.

    Numbers are rounded to float32 in every dtype, as in the tables that others keep: then so are those of float64.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """int64 [...] -> float32 [..., hidden_size]."""
        even = torch.arange(0, self.hidden_size, 2, dtype=torch.float64, device=positions.device)
        angles = positions[..., None] / 10000 ** (even / self.hidden_size)
        return torch.cat([angles.sin(), angles[..., : self.hidden_size // 2].cos()], dim=-1).float()

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}"


class BucketedPositions(nn.Embedding):
    """A bias of each head for ranges of distances, for all layers of a stack alike (T5; see `Buckets`).

    bidirectional  whether keys after the query have separate buckets
    """

    def __init__(self, buckets: int, heads: int, *, max_distance: int, bidirectional: bool) -> None:
        super().__init__(buckets, heads)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self) -> Buckets:  # type: ignore[override]
        """The bias of the score."""
        return Buckets(self.weight, self.bidirectional, self.max_distance)


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
        return turn(heads, *self.turns(positions, heads.shape[-1], heads.dtype))

    def turns(self, positions: torch.Tensor, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [B or 1, 1, N, width / 2] by which heads of that dtype turn at positions [B or 1, N]."""
        wide = torch.promote_types(dtype, torch.float32)
        exponents = torch.arange(0, width, 2, dtype=wide, device=positions.device) / width
        angles = positions[:, None, :, None].to(wide) * self.theta**-exponents
        return angles.cos(), angles.sin()

    def extra_repr(self) -> str:
        return f"theta={self.theta}"


def turn(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """heads [B, H, N, D] with the pairs (x_j, x_{j + D/2}) turned, in their dtype; computed in that of the angles.

    cosine and sine [B or 1, 1, N, D / 2] say how far; gradients do not flow to them.
    """
    if torch.compiler.is_compiling():  # which fuses by itself what is written out below
        first, second = heads.to(cosine.dtype).chunk(2, dim=-1)
        pairs = first * cosine - second * sine, second * cosine + first * sine
        return torch.cat(pairs, dim=-1).to(heads.dtype)
    turned: torch.Tensor = _Turn.apply(heads, cosine, sine, 1.0)
    return turned


class _Turn(torch.autograd.Function):
    """A rotation, whose transpose is the rotation back.

    Written for its gradients: of PyTorch's own operations they take five times as many passes over the heads.
    """

    @staticmethod
    def forward(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, direction: float) -> torch.Tensor:
        half = heads.shape[-1] // 2
        # In rows of their own, heads are long vectors to multiply by the angles of all positions.
        plain = heads.to(cosine.dtype, memory_format=torch.contiguous_format)
        turned = plain * torch.cat([cosine, cosine], dim=-1)
        turned[..., :half].addcmul_(plain[..., half:], sine, value=-direction)
        turned[..., half:].addcmul_(plain[..., :half], sine, value=direction)
        # Heads side by side, as projections give them and want their gradients.
        return turned.to(heads.dtype).transpose(1, 2).contiguous().transpose(1, 2)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, cosine, sine, context.direction = inputs
        context.save_for_backward(cosine, sine)
        context.save_for_forward(cosine, sine)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _Turn.apply(gradient, *context.saved_tensors, -context.direction), None, None, None

    @staticmethod
    def jvp(context: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        turned: torch.Tensor = _Turn.apply(tangent, *context.saved_tensors, context.direction)
        return turned

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[torch.Tensor, int]:
        """One after the other: PyTorch maps no `addcmul_`."""
        each = (
            (x if axis is None else x.select(axis, place) for x, axis in zip(inputs, in_dims, strict=True))
            for place in range(info.batch_size)
        )
        return torch.stack([_Turn.apply(*one) for one in each]), 0
