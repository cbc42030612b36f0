"""Labels of tokens, the targets of each index of a row: tensors, but this module needs no torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a place that predicts nothing, as everywhere in PyTorch and transformers."""


def shifted(labels: "Tensor", ignored: int = IGNORED) -> "Tensor":
    """What each place predicts, int64 [B, N]: of labels [B, N] of the tokens the next; the last place nothing."""
    found = labels.new_full(labels.shape, ignored)
    found[:, :-1] = labels[:, 1:]
    return found


def shifted_right(labels: "Tensor", start: int, padding: int) -> "Tensor":
    """What a decoder reads to predict labels int64 [..., N]: the token `start`, and all of them but the last.

    `padding` is read in place of IGNORED.
    """
    found = labels.new_full(labels.shape, start)
    found[..., 1:] = labels[..., :-1].masked_fill(labels[..., :-1] == IGNORED, padding)
    return found


def read_and_predicted(rows: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Of rows int64 [B, N + 1], what N places read and what they predict, the value after each: views [B, N]."""
    return rows[:, :-1], rows[:, 1:]


def without_first_tokens(labels: "Tensor", positions: "Tensor", ignored: int = IGNORED) -> "Tensor":
    """Labels [B, N] in which nothing predicts the first token of a document: before it stands another one's last.

    positions  int64 [B or 1, N]: where each token stands in its document
    """
    return labels.masked_fill(positions == 0, ignored)


def without_tokens_at(labels: "Tensor", starts: "Tensor") -> "Tensor":
    """The same of documents that start at columns `starts`, int64 [documents]; one without tokens may start at N."""
    return labels.index_fill(1, starts[starts < labels.shape[1]], IGNORED)
