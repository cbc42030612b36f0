"""The loss of tokens: cross entropy in float32 or wider."""

import torch
import torch.nn.functional as F

from asterism.errors import ConfigurationError, shown
from asterism.labels import IGNORED


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    ignore_index: int = IGNORED,
    num_items_in_batch: int | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The mean loss in nats of logits [B, N, V] for labels [B, N], in float32 or wider.

    num_items_in_batch  the loss is the sum divided by it, not the mean
    label_smoothing     in [0, 1]: the share of each label that is spread over the vocabulary (Szegedy 2016)

    Raises ConfigurationError for labels of another shape and for a label_smoothing that is no share.
    """
    if labels.shape != logits.shape[:-1]:
        raise ConfigurationError(
            "labels-shape",
            f"labels must have the shape of the logits, [batch, tokens] = {list(logits.shape[:-1])}, got"
            f" {list(labels.shape)}",
        )
    if not (isinstance(label_smoothing, int | float) and 0 <= label_smoothing <= 1):
        raise ConfigurationError(
            "label-smoothing", f"label_smoothing must be from 0 to 1, got {shown(label_smoothing)}"
        )
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(
        wide,
        labels.flatten().to(logits.device),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss if num_items_in_batch is None else loss / torch.as_tensor(num_items_in_batch, device=loss.device)
