"""Padding that changes no real token: finds the real tokens, their positions, and the length of each row.

Patterns count tokens, so a padded batch is packed: the real tokens of each row move to the front, whatever side or
hole the padding is in, and the results move back. Behind the real tokens, padding is in the future of all of them, and
no causal pattern reads it. For other mixers padded keys are masked; a pattern whose rule depends on the length, such as
one with a global last token, is laid over each row's own length: the rows, laid end to end, are documents, which are
attended to in one call.

A padded column repeats the last real token before it, so the last column of a row always predicts the token that comes
next; one without such a token gets 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from asterism.errors import ConfigurationError
from asterism.layers.kept import REMEMBERED


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

    def known(self) -> tuple[list[int], int, tuple[str, ...]]:
        """How many tokens of each row are real; the last column that is padding in some row, counted from 1; of each
        row, the REMEMBERED columns up to that one, as text: 1 for a token, 0 for padding.

        A GPU is waited for, once.
        """
        # The padding of a row stands behind its real tokens in `column`, in ascending order.
        last = torch.where(self.real[:, -1:], -1, self.column[:, -1:]) + 1
        tail = self.slot[:, -REMEMBERED - 1 :].diff(dim=1)
        if self.slot.shape[1] <= REMEMBERED:
            tail = torch.cat([self.slot[:, :1] + 1, tail], dim=1)
        rows = torch.cat([self.real.sum(dim=1, keepdim=True), last, tail], dim=1).tolist()
        padded = max(row[1] for row in rows)
        behind = self.slot.shape[1] - padded
        texts = ("".join(map(str, row[2 : len(row) - behind])) for row in rows)
        return [row[0] for row in rows], padded, tuple(texts)


def real_tokens(attention_mask: torch.Tensor, batch: int, seen: int, new: int) -> torch.Tensor:
    """The mask as bool [B, S + N] of S tokens that a cache has seen and N new ones, True for real tokens.

    Raises ConfigurationError for a mask of another shape, and for one that would be added to the scores.
    """
    if list(attention_mask.shape) != [batch, seen + new]:
        raise ConfigurationError(
            "mask-shape",
            f"attention_mask has shape {list(attention_mask.shape)}; {new} new tokens after {seen} columns"
            f" need [{batch}, {seen + new}], 1 for tokens and 0 for padding",
        )
    refuse_added(attention_mask)
    return attention_mask.bool()


def refuse_added(attention_mask: torch.Tensor) -> None:
    """Raises ConfigurationError for a mask [B, N], of any dtype, of other numbers than 0 and 1, all of which would
    count as 1."""
    if not attention_mask.is_floating_point() or torch.compiler.is_compiling():
        return
    others = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
    if others.numel():
        raise ConfigurationError(
            "mask-values",
            f"attention_mask holds {float(others[0]):g}, like a mask that is added to scores; give 1 for tokens and 0"
            " for padding",
        )


def is_known_full(mask: torch.Tensor) -> bool:
    """Whether all tokens of a mask, bool [B, N], are real; False, too, while a graph is traced, for then the mask has
    no values yet."""
    return not torch.compiler.is_compiling() and bool(mask.all())


def count_positions(real: torch.Tensor | None, tokens: int, device: torch.device) -> torch.Tensor:
    """Where each token stands among the real tokens of its row: int64 [B or 1, tokens], -1 for padding.

    `real` is bool [B, tokens], None where all are.
    """
    positions = torch.arange(tokens, device=device)[None] if real is None else real.cumsum(dim=1) - 1
    return positions if real is None else torch.where(real, positions, -1)


def lay_end_to_end(heads: torch.Tensor) -> torch.Tensor:
    """[B, H, N, D] -> [1, H, B * N, D], of any dtype, the rows one after another; no copy where heads lie side by side
    in memory."""
    return heads.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None]


def cut_into_rows(heads: torch.Tensor, rows: int) -> torch.Tensor:
    """The inverse of `lay_end_to_end`: [1, H, B * N, D] -> [B, H, N, D], of any dtype."""
    return heads[0].unflatten(1, (rows, heads.shape[2] // rows)).transpose(0, 1)


def documents_of_rows(lengths: Sequence[int], tokens: int) -> tuple[int, ...]:
    """What `in_documents` takes for rows of `tokens` slots, laid end to end, with so many real tokens in front."""
    return tuple(size for length in lengths for size in (length, length - tokens))


def documents_by_row(documents: Sequence[int], rows: int, tokens: int) -> dict[tuple[int, ...], list[int]]:
    """The documents of rows of `tokens` laid end to end, as those of each row: which rows have the same ones.

    Raises ConfigurationError for a document that begins in one row and ends in another.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    sizes = iter([size for size in documents if size])
    for row in range(rows):
        own: list[int] = []
        while sum(map(abs, own)) < tokens:
            own.append(next(sizes, tokens + 1))
        if sum(map(abs, own)) != tokens:
            raise ConfigurationError(
                "documents-across-rows",
                f"documents of a sharded batch must end where a row of {tokens} tokens ends, got {own[-1]} tokens in"
                f" row {row} after {sum(map(abs, own[:-1]))}",
            )
        alike.setdefault(tuple(own), []).append(row)
    return alike


def _like(index: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B, N] as a view of the shape [B, N, ...] of the tokens."""
    return index.reshape(*index.shape, *[1] * (tokens.ndim - 2)).expand_as(tokens)
