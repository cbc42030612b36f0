"""Batches of packed documents, given by `position_ids` that restart or by `cu_seqlens`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asterism.errors import ConfigurationError
from asterism.kernels.packed import document_lengths, read_bounds
from asterism.layers.rows.padding import count_positions


class PackedDocuments(NamedTuple):
    """The documents of a batch [B, N].

    sizes      their lengths, through all rows laid end to end
    positions  int64 [B, N]: where each token stands in its document
    """

    sizes: tuple[int, ...]
    positions: Tensor


def find_documents(
    position_ids: Tensor | None, cu_seqlens: Tensor | Sequence[int] | None, real: Tensor | None, like: Tensor
) -> PackedDocuments | None:
    """The documents in a batch `like` [B, N, ...]; None where each row is one sequence.

    `real` bool [B, N] is what an attention_mask says, if one is given. Raises KernelError for `cu_seqlens` that do not
    divide a row, ConfigurationError for positions that are not those of documents, for both arguments at once, and for
    documents in a padded batch.
    """
    if position_ids is None and cu_seqlens is None:
        return None
    if position_ids is not None and cu_seqlens is not None:
        raise ConfigurationError(
            "documents-said-twice",
            "got both position_ids and cu_seqlens, which both give the borders of documents: give one of them",
        )
    batch, tokens = like.shape[:2]
    if cu_seqlens is not None:
        lengths = document_lengths(read_bounds(cu_seqlens, like.device), tokens, "cu_seqlens")
        rows = np.tile(np.concatenate([np.arange(0), *map(np.arange, lengths)]), (batch, 1))
    else:
        rows = _positions_by_column(position_ids, batch, tokens)
    ordinary = np.arange(tokens)
    if real is not None and not real.all():
        counted = count_positions(real, tokens, real.device).cpu().numpy()
        if ((rows == counted) | (counted < 0)).all():
            return None
        raise ConfigurationError(
            "documents-padded",
            "documents are packed (position_ids or cu_seqlens), but the batch is padded (attention_mask): remove the"
            " padding, packed rows need none",
        )
    if (rows == ordinary).all():
        return None
    laid = rows.ravel()
    follows = np.append(False, laid[1:] == laid[:-1] + 1) & (np.arange(laid.size) % max(tokens, 1) > 0)
    if wrong := np.flatnonzero((laid != 0) & ~follows)[:1].tolist():
        row, column = divmod(wrong[0], tokens)
        before = f" after {laid[wrong[0] - 1]}" if column else " first"
        raise ConfigurationError(
            "position-ids-count",
            "position_ids must count the tokens of each document, 0, 1, 2, ..., and restart at 0 with the next; got"
            f" {laid[wrong[0]]}{before} in row {row}, column {column}",
        )
    begins = np.flatnonzero(laid == 0)
    sizes = np.diff(begins, append=laid.size).tolist()
    return PackedDocuments(tuple(sizes), torch.from_numpy(rows.astype(np.int64)).to(like.device))


def check_positions(position_ids: Tensor, batch: int, tokens: int) -> None:
    """Raises ConfigurationError for position_ids that are not [batch or 1, tokens], or of a dtype with fractions."""
    if position_ids.shape not in ((batch, tokens), (1, tokens)) or position_ids.is_floating_point():
        raise ConfigurationError(
            "position-ids-form",
            f"position_ids must be whole numbers [{batch} or 1, {tokens}],"
            f" got {list(position_ids.shape)} of {position_ids.dtype}",
        )


def _positions_by_column(position_ids: Tensor | None, batch: int, tokens: int) -> np.ndarray:
    assert position_ids is not None
    check_positions(position_ids, batch, tokens)
    return np.broadcast_to(position_ids.cpu().numpy(), (batch, tokens))
