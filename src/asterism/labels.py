"""Labels of tokens: what each place of a row is to predict. They are tensors, but torch is not needed to name them."""

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


def without_first_tokens(labels: "Tensor", positions: "Tensor", ignored: int = IGNORED) -> "Tensor":
    """Labels [B, N] in which nothing predicts the first token of a document: before it stands another one's last.

    positions  int64 [B or 1, N]: where each token stands in its document
    """
    return labels.masked_fill(positions == 0, ignored)
