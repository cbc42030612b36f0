"""Packed batches: several documents in a row, marked by their borders or by positions that restart.

Transformers says so in three ways: `cu_seq_lens_q`, which its collators write for Flash Attention; `position_ids`,
which models hand on to attention; and a mask that keeps documents apart, which models make of these `position_ids`.
All become the lengths of the documents, one row of the batch after another.
"""

from collections.abc import Callable
from typing import Any

import torch

from asterism.errors import ConfigurationError
from asterism.kernels.packed import document_lengths, read_bounds

BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""What collators write of documents."""


def from_boundaries(given: dict[str, Any], tokens: int, device: torch.device) -> tuple[int, ...] | None:
    """The lengths of documents from what collators write, taken out of `given`; None for nothing.

    Raises KernelError for boundaries that do not divide the tokens of the batch, ConfigurationError for others of keys.
    """
    starts, others, *_ = (given.pop(name, None) for name in BOUNDARIES)
    if starts is None:
        return None
    bounds = read_bounds(starts, device, BOUNDARIES[0])
    if others is not None and read_bounds(others, device, BOUNDARIES[1]) != bounds:
        raise ConfigurationError(
            "cu-seq-lens-differ", "cu_seq_lens_q and cu_seq_lens_k differ: documents have as many queries as keys"
        )
    return document_lengths(bounds, tokens, BOUNDARIES[0])


def from_positions(position_ids: Any, rows: int, tokens: int) -> tuple[int, ...] | None:
    """The lengths of documents from [rows or 1, tokens] positions; None where they grow by 1 in every row."""
    if not isinstance(position_ids, torch.Tensor) or position_ids.shape not in ((rows, tokens), (1, tokens)):
        return None
    return _lengths((position_ids.diff(dim=1) == 1).expand(rows, -1))


def from_mask(reads: Callable[..., torch.Tensor], rows: int, tokens: int, device: Any) -> tuple[int, ...] | None:
    """The lengths of documents from a mask function of transformers that hides the future; None for one per row.

    `reads` maps int64 rows [B, 1], a head, and queries and keys [1, M] to bool [B or 1, M]: whether the key is read.

    A token reads the one before it unless a document begins with it. Raises ConfigurationError for a mask that lets a
    token read the one after it, for that is no packing. While a graph is traced the mask has no values; then packing
    is refused when the graph runs.
    """
    row, later = torch.arange(rows, device=device)[:, None], torch.arange(1, tokens, device=device)[None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    follows = reads(row, head, later, later - 1).expand(rows, -1)
    ahead = reads(row, head, later - 1, later)
    if torch.compiler.is_compiling():
        torch._assert_async(follows.all() & ~ahead.any(), _IN_GRAPHS)
        return None
    if bool(ahead.any()):
        raise ConfigurationError(
            "mask-reads-future",
            "the model's mask lets some tokens read the future, as for the tokens of an image, which a pattern"
            " cannot follow; give text only",
        )
    return _lengths(follows)


_IN_GRAPHS = (
    "the model's mask keeps documents apart (position_ids that start again, or those of a tree), and a compiled graph"
    " cannot be one for all boundaries: do not compile, or give one sequence per row"
)


def _lengths(follows: torch.Tensor) -> tuple[int, ...] | None:
    """The runs of tokens that each follow the one before, from bool [rows, tokens - 1]; None for one run per row."""
    if bool(follows.all()):
        return None
    starts = torch.nn.functional.pad(~follows, (1, 0), value=True).flatten().nonzero()[:, 0].tolist()
    ends = [*starts[1:], follows.shape[0] * (follows.shape[1] + 1)]
    return tuple(end - start for start, end in zip(starts, ends, strict=True))
