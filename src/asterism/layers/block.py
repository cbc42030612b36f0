"""Residual blocks around any token mixer.

Norm first (Child 2019, section 5.2):

    a(H) = dropout(mixer(norm(H)))        b(H) = dropout(ff(norm(H + a(H))))        block(H) = H + a(H) + b(H)

Both norms read the plain sum, so the identity path from the embedding to the last layer is never normalised.

Norm last (Vaswani 2017, BERT): h(H) = norm(H + dropout(mixer(H))) and block(H) = norm(h + dropout(ff(h))).

All attention (Sukhbaatar et al. 2019): block(H) = norm(H + dropout(mixer(H))), and no feed-forward layer.

A block of a decoder that reads a source has one more residual branch, for its cross attention, after the mixer.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from asterism.errors import ConfigurationError, nearest
from asterism.kernels.transforms import is_transformed
from asterism.layers.initialisation import ResidualLinear
from asterism.layers.linear import Linear
from asterism.layers.rows import Rows


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x) of x [...], in its dtype: the activation of the paper, through the fused silu(y) = y *
    sigmoid(y)."""
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


NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
"""Of tokens with so many features, given `eps`; RMSNorm (Zhang and Sennrich 2019) takes off no mean, has no bias."""


def _recomputed(compute: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """What `compute` gives, and its backward pass computes it again; not under torch.func, which has no such thing."""
    if is_transformed():
        return compute(*given)
    computed: torch.Tensor = checkpoint(compute, *given, use_reentrant=False, preserve_rng_state=False)
    return computed


class FeedForward(nn.Module):
    """W_2 f(W_1 x + b_1) + b_2, for each token alone. Raises ConfigurationError for an unknown activation.

    The backward pass recomputes f, so a block stores 14 instead of 18 numbers for each feature of a token.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str = "quick_gelu", bias: bool = True
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigurationError(
                "unknown-activation",
                f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}."
                + nearest(activation, ACTIVATIONS),
            )
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = ResidualLinear(intermediate_size, hidden_size, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> [..., hidden_size], in the dtype of the weights."""
        return _recomputed(self._finish, self.up_proj(hidden))

    def _finish(self, expanded: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(expanded))


class GatedFeedForward(FeedForward):
    """W_2 (f(W_g x + b_g) * (W_1 x + b_1)) + b_2: f opens and closes a gate (Shazeer 2020, GLU Variants)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: str = "quick_gelu", bias: bool = True
    ) -> None:
        super().__init__(hidden_size, intermediate_size, activation, bias)
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> [..., hidden_size], in the dtype of the weights."""
        return _recomputed(self._finish_gated, self.gate_proj(hidden), self.up_proj(hidden))

    def _finish_gated(self, gate: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(gate) * expanded)


class _Block(nn.Module):
    """Residual branches: a mixer, in a decoder cross attention, mostly a feed-forward layer; and a norm for each.

    mixer            maps [B, N, hidden_size] to the same shape, as SparseAttention does
    feed_forward     a module, or the width inside a FeedForward with quick_gelu; None for no such branch
    norm             "layer" or "rms"
    cross_attention  a CrossAttention; `forward` is then given what it reads
    """

    def __init__(
        self,
        mixer: nn.Module,
        hidden_size: int,
        feed_forward: nn.Module | int | None,
        *,
        dropout: float = 0.0,
        norm: str = "layer",
        layer_norm_eps: float = 1e-5,
        cross_attention: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.mixer_norm = NORMS[norm](hidden_size, eps=layer_norm_eps)
        self.mixer = mixer
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_norm = NORMS[norm](hidden_size, eps=layer_norm_eps)
        self.feed_forward: nn.Module | None = None
        if feed_forward is not None:
            self.feed_forward_norm = NORMS[norm](hidden_size, eps=layer_norm_eps)
            if isinstance(feed_forward, int):
                feed_forward = FeedForward(hidden_size, feed_forward)
            self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        hidden: torch.Tensor,
        source: torch.Tensor | None = None,
        *,
        rows: Rows | None = None,
        cross: Mapping[str, object] | None = None,
        **mixer_arguments: object,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size], in the dtype of `hidden`.

        `rows` say where the tokens stand; other keyword arguments go to the mixer. `source` [B, S, hidden_size], or
        None where a cache has its keys and values, and the arguments `cross` are for the cross attention of a block
        that has one.
        """
        if rows is not None:  # a mixer that knows no rows needs none
            mixer_arguments["rows"] = rows
        hidden = self._add(hidden, self.mixer_norm, partial(self.mixer, **mixer_arguments))
        if self.cross_attention is not None:
            reading = partial(self.cross_attention, source=source, rows=rows, **(cross or {}))
            hidden = self._add(hidden, self.cross_norm, reading)
        if self.feed_forward is not None:
            hidden = self._add(hidden, self.feed_forward_norm, self.feed_forward)
        return hidden

    def _add(
        self, hidden: torch.Tensor, norm: nn.Module, branch: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """The sum of hidden states and a branch, normalised where the block has it."""
        raise NotImplementedError


class PreNormBlock(_Block):
    """Branches that are normalised before, and added after."""

    def _add(
        self, hidden: torch.Tensor, norm: nn.Module, branch: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        return hidden + self.dropout(branch(norm(hidden)))


class PostNormBlock(_Block):
    """Branches that are added, and the sums normalised."""

    def _add(
        self, hidden: torch.Tensor, norm: nn.Module, branch: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        return norm(hidden + self.dropout(branch(hidden)))


class AllAttentionBlock(PostNormBlock):
    """A PostNormBlock without a feed-forward layer (Sukhbaatar et al. 2019)."""

    def __init__(self, mixer: nn.Module, hidden_size: int, **options: Any) -> None:
        super().__init__(mixer, hidden_size, None, **options)
