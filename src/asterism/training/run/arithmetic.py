"""The arithmetic that a run computes in, in training and ever after, and the loss in it."""

from collections.abc import Mapping

import torch
from torch import nn

from asterism.training.run.configuration import Dtype


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is for float32, autocast for bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def loss_of(model: nn.Module, batch: Mapping[str, torch.Tensor], dtype: Dtype) -> torch.Tensor:
    """The mean loss of a batch or slice, in nats, as the model itself computes it: a float32 scalar to differentiate.

    A batch holds the arguments of the model, labels among them. No loss is computed anywhere else.
    """
    with arithmetic(dtype, batch["input_ids"].device):
        loss: torch.Tensor = model(**batch).loss
    return loss.float()
