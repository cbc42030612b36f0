"""Padding that changes no real token.

Patterns count tokens, so a padded batch is packed once, after the embedding: the real tokens of each row move to the
front, whatever side or hole the padding is in, and after the last layer the results move back. Behind the real tokens,
padding is in the future of all of them, and no causal pattern reads it. For other mixers padded keys are masked; a
pattern whose rule depends on the length, such as one with a global last token, is laid over each row's own length.

A padded column repeats the last real token before it, so the last column of a row always predicts the token that comes
next; one without such a token gets 0.
"""

from typing import NamedTuple

import torch


class Packing(NamedTuple):
    """Where the tokens of a padded batch go: N columns of the batch against N slots with the real tokens in front.

    column  int64 [B, N]: the column that each slot takes its token from
    slot    int64 [B, N]: the slot that each column takes its result from; -1 for none
    real    bool [B, N]: whether the slot holds a real token
    """

    column: torch.Tensor
    slot: torch.Tensor
    real: torch.Tensor

    @classmethod
    def of(cls, mask: torch.Tensor) -> "Packing":
        """From a mask bool [B, N] that is True for real tokens."""
        column = torch.argsort(mask, dim=1, descending=True, stable=True)
        return cls(column, mask.cumsum(dim=1) - 1, mask.gather(1, column))

    def pack(self, columns: torch.Tensor) -> torch.Tensor:
        """[B, N, ...] by column -> [B, N, ...] by slot."""
        return columns.gather(1, _like(self.column, columns))

    def unpack(self, slots: torch.Tensor) -> torch.Tensor:
        """[B, N, ...] by slot -> [B, N, ...] by column."""
        slot = _like(self.slot, slots)
        return slots.gather(1, slot.clamp(min=0)).masked_fill(slot < 0, 0)


def _like(index: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B, N] as a view of the shape [B, N, ...] of the tokens."""
    return index.reshape(*index.shape, *[1] * (tokens.ndim - 2)).expand_as(tokens)
