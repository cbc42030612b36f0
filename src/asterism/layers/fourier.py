"""Fourier mixing (Lee-Thorp et al. 2021, FNet): y = Re(F_tokens(F_features(x))). It has no parameters.

Both transforms are unnormalised, y[k, f] = sum over n, m of x[n, m] cos(2 pi (n k / N + m f / C)), as in the authors'
FFT path and in Hugging Face's FNet, so imported weights mean the same. (The matrix that the paper prints, equation 2,
is divided by sqrt(N); next to the residual x that is another model.)

The input is real and only the real part is kept. That saves half of the work: Y[k, f] is the conjugate of Y[-k, -f], so
half of the features are computed and the others copied. And because the cosine above does not change when (n, m) and
(k, f) change places, the operator is its own transpose: the gradient is the transform of the gradient.
"""

from typing import Any

import torch
from torch import nn

from asterism.errors import ConfigurationError

NOT_CAUSAL = (
    "fourier() cannot be used by a causal model or with a cache: every output of a Fourier transform reads every token,"
    " the future too; use a causal pattern in this layer"
)
"""Why a causal model refuses Fourier mixing."""


class FourierMixing(nn.Module):
    """The real part of the discrete Fourier transform over tokens and features, a token mixer for encoders.

    float64 and float32 are transformed as they are; bfloat16 and float16 in float32, and the result is rounded back.
    The largest outputs grow with N * C, so float16 may overflow where bfloat16 does not.
    """

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        key_mask: torch.Tensor | None = None,
        segments: torch.Tensor | None = None,
        cache: object | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, N, C] -> [B, N, C], for any N and C.

        key_mask   bool [B, N]: True for real tokens, which may stand anywhere in their row. The real tokens of a row
                   are transformed by themselves, in the order of their columns, at their own number; what the others
                   hold changes nothing, and they get 0 and gradient 0.
        positions  not used: the transform knows tokens by their order

        Raises ConfigurationError for a cache, because the transform is never causal, and for segments.
        """
        if cache is not None:
            raise ConfigurationError(NOT_CAUSAL)
        if segments is not None:
            raise ConfigurationError(
                "fourier() reads all tokens of a row and cannot keep segments apart; give each segment a row of its own"
            )
        if key_mask is None:
            return fourier(hidden)
        mixed = torch.zeros_like(hidden)
        lengths = key_mask.sum(dim=1)
        for length in lengths.unique().tolist():
            real = key_mask & (lengths == length)[:, None]
            mixed[real] = fourier(hidden[real].unflatten(0, (-1, length or 1))).flatten(0, 1)
        return mixed


def fourier(tokens: torch.Tensor) -> torch.Tensor:
    """[B, N, C] -> Re(F_tokens(F_features(tokens))) [B, N, C], unnormalised, in the dtype of the tokens."""
    wide = torch.promote_types(tokens.dtype, torch.float32)
    return _Fourier.apply(tokens.to(wide)).to(tokens.dtype) if tokens.numel() else tokens


class _Fourier(torch.autograd.Function):
    """A linear operator that is its own transpose, so every derivative is the operator again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tokens: torch.Tensor) -> torch.Tensor:
        computed = torch.fft.rfft2(tokens).real
        mirrored = computed[..., 1 : (tokens.shape[-1] + 1) // 2].flip((-2, -1)).roll(1, -2)
        return torch.cat([computed, mirrored], dim=-1)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _Fourier.apply(gradient)
