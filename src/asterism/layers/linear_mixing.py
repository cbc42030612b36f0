"""Linear mixing (Lee-Thorp et al. 2021, the Linear and Random encoders): y = T x F, with a matrix over tokens, and one
over features, in place of attention.
"""

import math

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.layers.fourier import check_rows
from asterism.layers.rows import Rows
from asterism.patterns import Linear

MOST_TOKENS = 8192
"""Of a row: the matrix over tokens has as many weights as pairs of tokens."""


class LinearMixing(nn.Module):
    """A matrix over at most `tokens` tokens, and one over `width` features, without biases.

    learned  whether they are trained; else they are random and stay as they are, saved with the model

    By itself, the layer draws weights that keep the size of what they mix: N(0, 1 / sqrt(tokens)) and
    N(0, 1 / sqrt(width)). In models they are drawn like all other matrices. Raises ConfigurationError for more than
    8,192 tokens, and for sizes below 1.
    """

    def __init__(self, tokens: int, width: int, *, learned: bool = True) -> None:
        super().__init__()
        for name, size in (("tokens", tokens), ("width", width)):
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError("linear-sizes", f"{name}: must be a whole number of at least 1, got {size!r}")
        if tokens > MOST_TOKENS:
            raise ConfigurationError(
                "linear-tokens",
                f"{Linear(learned)} has a weight for each pair of tokens, so rows may have at most {MOST_TOKENS:,}, got"
                f" max_position_embeddings={tokens:,}",
            )
        self.learned = learned
        self.over_tokens: torch.Tensor
        self.over_features: torch.Tensor
        for name, size in (("over_tokens", tokens), ("over_features", width)):
            if learned:
                self.register_parameter(name, nn.Parameter(torch.empty(size, size)))
            else:  # which no optimiser sees, and files hold
                self.register_buffer(name, torch.empty(size, size))
        self.initialise(1.0, None)

    def initialise(self, gain: float, spread: float | None) -> None:
        """Draw both matrices with standard deviation `spread`, or gain / sqrt(their size)."""
        for weight in (self.over_tokens, self.over_features):
            nn.init.normal_(weight, std=spread or gain / math.sqrt(len(weight)))

    def forward(self, hidden: torch.Tensor, *, rows: Rows | None = None, cache: object | None = None) -> torch.Tensor:
        """[B, N, C] -> [B, N, C], for N of at most `tokens`, in the dtype of the weights.

        rows  where the tokens stand; by default each row is one sequence. Padding changes nothing, and gets 0.

        Raises ConfigurationError for a longer row, for a cache, because every token reads all, for segments and
        documents, and for rows that several devices share.
        """
        rows = check_rows(Linear(self.learned), hidden, rows, cache)
        if hidden.shape[1] > len(self.over_tokens):
            raise ConfigurationError(
                "linear-row",
                f"{Linear(self.learned)} has weights for rows of {len(self.over_tokens):,} tokens, got"
                f" {hidden.shape[1]:,}",
            )
        return rows.linear(hidden @ self.over_features, self.over_tokens)
