"""The arithmetic that a run computes in, in training and ever after, and the loss in it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from asterism.kernels import matrix_rates
from asterism.training.run.configuration import Dtype, TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)

_WORTH_IT = 1.2
"""How many times as fast as float32 bfloat16 must be: it also casts every weight, and rounds."""

_IS_CAST = {"float32": False, "bfloat16": True, "float64": False}


def settled(config: Config) -> Config:
    """The configuration with dtype "auto" replaced by what the machine multiplies matrices faster in."""
    if config.dtype != "auto":
        return config
    return replace(config, dtype="bfloat16" if _prefers_bfloat16() else "float32")


def _prefers_bfloat16() -> bool:
    """Whether the device that runs are trained on, a GPU if there is one, multiplies bfloat16 faster."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        rates = matrix_rates()
        return rates["bfloat16"] > _WORTH_IT * rates["float32"]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def weights_dtype(dtype: Dtype) -> torch.dtype:
    """What weights, gradients and moments are kept in."""
    return torch.float64 if dtype == "float64" else torch.float32


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is, but autocast for bfloat16. "auto" must be settled."""
    return torch.autocast(device.type, torch.bfloat16, enabled=_IS_CAST[dtype])


def loss_of(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    dtype: Dtype,
    seed: int | None,
    *,
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
) -> torch.Tensor:
    """The mean loss of a batch or slice, in nats, as the model itself computes it: a scalar to differentiate, of the
    type of the weights.

    A batch holds the arguments of the model, labels among them; `seed` decides what the attention of a model of ours
    drops, and is None for others. With `label_smoothing` (Szegedy 2016, section 7) that share of the wanted probability
    is spread over all tokens. Where labels are float [B, columns] of 0 and 1, a 1 counts `positive_weight` times as
    much as a 0 (Zaheer 2020, appendix F). No loss is computed anywhere else.
    """
    with arithmetic(dtype, batch["input_ids"].device):
        found = model(**batch, **({} if seed is None else {"dropout_seed": seed % 2**48}))
    loss: torch.Tensor = found.loss.to(weights_dtype(dtype))
    if positive_weight != 1:
        # The model's mean has each 1 once; the rest of its weight is added.
        loss = loss + (positive_weight - 1) * (batch["labels"] * nn.functional.softplus(-found.logits.float())).mean()
    if not label_smoothing:
        return loss
    known = batch["labels"] >= 0
    logits, labels = found.logits[known].float(), batch["labels"][known]
    # The mean of -log p over all tokens takes that share of the place of -log p of the label: the norm cancels out.
    return loss + label_smoothing * (logits.gather(1, labels[:, None])[:, 0] - logits.mean(1)).mean()
