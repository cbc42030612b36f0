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


def fourier_of_rows(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The same of the real tokens of each row, in their order and at their number; 0 for the others.

    tokens [B, N, C], real bool [B, N] -> [B, N, C]. How many tokens are real is known only when numbers are there, so
    torch.compile keeps this as an operator.
    """
    return _of_rows(tokens, real) if torch.compiler.is_dynamo_compiling() else _each_length(tokens, real)


def _each_length(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """One transform for all rows with as many real tokens."""
    mixed, counts = torch.zeros_like(tokens), real.sum(dim=1)
    for length in counts.unique().tolist():
        these = real & (counts == length)[:, None]
        mixed[these] = fourier(tokens[these].unflatten(0, (-1, length or 1))).flatten(0, 1)
    return mixed


@torch.library.custom_op("asterism::fourier_of_rows", mutates_args=())
def _of_rows(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return _each_length(tokens, real)


@_of_rows.register_fake
def _shape_of_rows(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tokens)


def _keep_real(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _gradient_of_rows(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    """The operator is its own transpose, row by row, too."""
    return _of_rows(gradient, *ctx.saved_tensors), None


_of_rows.register_autograd(_gradient_of_rows, setup_context=_keep_real)


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
