"""Fourier mixing (Lee-Thorp et al. 2021, FNet): y = Re(F_tokens(F_features(x))). It has no parameters."""

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.layers.rows import Rows, rows_of
from asterism.patterns import Fourier, Transform


def not_causal(mixer: Transform) -> str:
    """Why a causal model refuses a mixer that has no pattern."""
    return (
        f"{mixer} cannot be used by a causal model or with a cache: every output reads every token, including the"
        " future; use a causal pattern in this layer"
    )


def check_rows(mixer: Transform, hidden: torch.Tensor, rows: Rows | None, cache: object | None) -> Rows:
    """The rows of hidden states [B, N, C], of any dtype, that a mixer without a pattern reads.

    Raises ConfigurationError for a cache, segments and documents.
    """
    if cache is not None:
        raise ConfigurationError("reads-future", not_causal(mixer))
    rows = rows_of(hidden) if rows is None else rows
    if rows.segments is not None or rows.documents is not None:
        raise ConfigurationError(
            "transform-segments",
            f"{mixer} reads all tokens of a row and cannot keep segments apart; give each segment its own row",
        )
    return rows


class FourierMixing(nn.Module):
    """The real part of the discrete Fourier transform over tokens and features, a token mixer for encoders.

    float64 and float32 are transformed as they are; bfloat16 and float16 in float32, and the result is rounded back.
    The largest outputs grow with N * C, so float16 may overflow where bfloat16 does not. See `asterism.kernels.fourier`
    for the definition.
    """

    def forward(self, hidden: torch.Tensor, *, rows: Rows | None = None, cache: object | None = None) -> torch.Tensor:
        """[B, N, C] -> [B, N, C], for any N and C, in the dtype of `hidden`.

        rows  where the tokens stand; by default each row is one sequence. The real tokens of a row, which may stand
              anywhere in it, are transformed by themselves, in their order, at their own number; what the others hold
              changes nothing, and they get 0 and gradient 0.

        Raises ConfigurationError for a cache, because the transform is never causal, and for segments and documents.
        """
        return check_rows(Fourier(), hidden, rows, cache).fourier(hidden)
