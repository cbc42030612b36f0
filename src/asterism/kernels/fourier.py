"""The real part of the discrete Fourier transform over tokens and features (Lee-Thorp et al. 2021, FNet).

Both transforms are unnormalised, y[k, f] = sum over n, m of x[n, m] cos(2 pi (n k / N + m f / C)), as in the authors'
FFT path and in Hugging Face's FNet, so imported weights mean the same. (The matrix that the paper prints, equation 2,
is divided by sqrt(N); next to the residual x that is another model.)

The input is real and only the real part is kept. That saves half of the work: Y[k, f] is the conjugate of Y[-k, -f], so
half of the features are computed and the others copied. And because the cosine above does not change when (n, m) and
(k, f) change places, the operator is its own transpose: the gradient is the transform of the gradient.
"""

from typing import Any

import torch


def fourier(tokens: torch.Tensor) -> torch.Tensor:
    """[B, N, C] -> Re(F_tokens(F_features(tokens))) [B, N, C], unnormalised, in the dtype of the tokens."""
    wide = torch.promote_types(tokens.dtype, torch.float32)
    return _Fourier.apply(tokens.to(wide)).to(tokens.dtype) if tokens.numel() else tokens  # type: ignore[no-untyped-call]


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
        return _Fourier.apply(gradient)  # type: ignore[no-untyped-call]
