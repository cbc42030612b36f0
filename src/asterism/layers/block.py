"""Residual blocks around any token mixer.

Norm first (Child 2019, section 5.2):

    a(H) = dropout(mixer(norm(H)))        b(H) = dropout(ff(norm(H + a(H))))        block(H) = H + a(H) + b(H)

Both norms read the plain sum, so the identity path from the embedding to the last layer is never normalised.

Norm last (Vaswani 2017, BERT): h(H) = norm(H + dropout(mixer(H))) and block(H) = norm(h + dropout(ff(h))).

All attention (Sukhbaatar et al. 2019): block(H) = norm(H + dropout(mixer(H))), and no feed-forward layer.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from asterism.errors import ConfigurationError, nearest
from asterism.layers.initialisation import ResidualLinear
from asterism.layers.linear import Linear


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x), the activation of the paper, through the fused silu(y) = y * sigmoid(y)."""
    if torch.compiler.is_compiling():  # which fuses by itself what is written out below
        return F.silu(1.702 * x) / 1.702
    activated: torch.Tensor = _QuickGelu.apply(x)
    return activated


class _QuickGelu(torch.autograd.Function):
    """silu(1.702 x) / 1.702, whose derivative is that of silu at 1.702 x.

    The activations are the largest tensors of a model, and a pass over them costs as much as the exponential: written
    out, this takes five passes and two tensors fewer than what PyTorch would derive.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.silu(1.702 * x, inplace=True).div_(1.702)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        context.save_for_backward(*inputs)
        context.save_for_forward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _times_slope(gradient, *context.saved_tensors)

    @staticmethod
    def jvp(context: Any, tangent: torch.Tensor) -> torch.Tensor:
        return _times_slope(tangent, *context.saved_tensors)


def _times_slope(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """x times the derivative of quick_gelu."""
    scaled = 1.702 * at
    if not (torch.is_grad_enabled() and (x.requires_grad or at.requires_grad)):
        return torch.ops.aten.silu_backward(x, scaled)
    share = scaled.sigmoid()  # what can be differentiated again
    return x * share * (1 + scaled * (1 - share))


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """W_2 f(W_1 x + b_1) + b_2, for each token alone. Raises ConfigurationError for an unknown activation.

    The backward pass computes f again: a block then keeps 14 instead of 18 numbers for each feature of a token.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str = "quick_gelu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigurationError(
                f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}."
                + nearest(activation, ACTIVATIONS)
            )
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = ResidualLinear(intermediate_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> [..., hidden_size]."""
        expanded = self.up_proj(hidden)
        return checkpoint(self._finish, expanded, use_reentrant=False, preserve_rng_state=False)

    def _finish(self, expanded: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(expanded))


class _Block(nn.Module):
    """One mixer and one feed-forward layer, and a norm for each.

    `mixer` maps [B, N, hidden_size] to the same shape, as SparseAttention does; `intermediate_size` is 4 * hidden_size
    by default.
    """

    def __init__(
        self,
        mixer: nn.Module,
        hidden_size: int,
        intermediate_size: int | None = None,
        *,
        activation: str = "quick_gelu",
        dropout: float = 0.0,
        layer_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.mixer = mixer
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.feed_forward = FeedForward(
            hidden_size, 4 * hidden_size if intermediate_size is None else intermediate_size, activation
        )
        self.dropout = nn.Dropout(dropout)


class PreNormBlock(_Block):
    """One mixer and one feed-forward layer, each normalised before and added after."""

    def forward(self, hidden: torch.Tensor, **mixer_arguments: object) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size]; keyword arguments go to the mixer."""
        hidden = hidden + self.dropout(self.mixer(self.mixer_norm(hidden), **mixer_arguments))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class PostNormBlock(_Block):
    """One mixer and one feed-forward layer, each added and the sum normalised."""

    def forward(self, hidden: torch.Tensor, **mixer_arguments: object) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size]; keyword arguments go to the mixer."""
        hidden = self.mixer_norm(hidden + self.dropout(self.mixer(hidden, **mixer_arguments)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class AllAttentionBlock(nn.Module):
    """A mixer that is added and the sum normalised, with no feed-forward layer (Sukhbaatar et al. 2019)."""

    def __init__(
        self, mixer: nn.Module, hidden_size: int, *, dropout: float = 0.0, layer_norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, **mixer_arguments: object) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size]; keyword arguments go to the mixer."""
        return self.mixer_norm(hidden + self.dropout(self.mixer(hidden, **mixer_arguments)))
