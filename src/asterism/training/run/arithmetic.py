"""The arithmetic that a run computes in, in training and ever after, and the loss in it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from asterism.kernels import matrix_rates
from asterism.kernels.cpu.processor import multiplies_bfloat16
from asterism.parallel import sharding
from asterism.parallel.collectives import counted_once, whole
from asterism.training.run.device import device_of_runs
from asterism.training.settings.configuration import Dtype, TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)

_WORTH_IT = 1.2
"""How many times as fast as float32 bfloat16 must be: it also casts every weight, and rounds."""

_PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def settled(config: Config) -> Config:
    """The configuration with dtype "auto" replaced by what the machine multiplies matrices faster in."""
    if config.dtype != "auto":
        return config
    return replace(config, dtype="bfloat16" if _prefers_bfloat16() else "float32")


def _prefers_bfloat16() -> bool:
    """Whether the device that runs are trained on, a GPU if there is one, multiplies bfloat16 faster.

    A processor without instructions for it does not, whatever the figures are that answer.
    """
    device = device_of_runs()
    if device.type == "cpu":
        if not multiplies_bfloat16():
            return False
        rates = matrix_rates()
        return rates["bfloat16"] > _WORTH_IT * rates["float32"]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def notes_on_dtype(asked: Dtype, taken: Dtype) -> list[str]:
    """What the machine decided, or would have, for people."""
    if asked != taken:
        return [f"dtype: auto chose {taken}"]
    if asked == "bfloat16" and device_of_runs().type == "cpu" and not multiplies_bfloat16():
        return ["dtype: this processor has no instructions for bfloat16, and computes faster in float32"]
    return []


def weights_dtype(dtype: Dtype) -> torch.dtype:
    """What weights, gradients and moments are kept in."""
    return torch.float64 if dtype == "float64" else torch.float32


def computed_in(dtype: Dtype) -> torch.dtype:
    """The type of products, those of the optimiser among them: none is narrower. "auto" must be settled."""
    return _PRODUCTS[dtype]


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is, but autocast for bfloat16. "auto" must be settled."""
    return torch.autocast(device.type, torch.bfloat16, enabled=computed_in(dtype) == torch.bfloat16)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the body the caller's autocast, which the backward pass would see, and its `no_grad` do not hold: only a
    run's configuration decides how it computes."""
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def wide(logits: torch.Tensor) -> torch.Tensor:
    """Logits [...] in float32, or wider where they are: what losses are computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def loss_of(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    dtype: Dtype,
    seed: int | None,
    *,
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
    weights: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """The mean loss of a batch or slice, in nats, as the model itself computes it: a scalar to differentiate, of the
    type of the weights.

    A batch holds the arguments of the model, labels among them; `seed` decides what the attention of a model of ours
    drops, and is None for others. With `label_smoothing` (Szegedy 2016, section 7) that share of the wanted probability
    is spread over all tokens. Where labels are float [B, columns] of 0 and 1, a 1 counts `positive_weight` times as
    much as a 0 (Zaheer 2020, appendix F). `weights` are those of this slice in its step: of what is a mean over labels,
    and of what is one over rows (the next sentence). No loss is computed anywhere else.

    Within `sequence_parallel` the value is that of all tokens, and the gradient this process's part.
    """
    with arithmetic(dtype, batch["input_ids"].device):
        found = model(**batch, **({} if seed is None else {"dropout_seed": seed % 2**48}))
    loss: torch.Tensor = found.loss.to(weights_dtype(dtype))
    if positive_weight != 1:
        # The model's mean has each 1 once; the rest of its weight is added.
        ones = batch["labels"] * nn.functional.softplus(-found.logits.float())
        loss = loss + (positive_weight - 1) * _of_rows(ones.mean())
    if label_smoothing:
        known = batch["labels"] >= 0
        logits, labels = found.logits[known].float(), batch["labels"][known]
        # The mean of -log p over all tokens takes that share of the place of -log p of the label: the norm cancels out.
        loss = loss + label_smoothing * _of_tokens(logits.gather(1, labels[:, None])[:, 0] - logits.mean(1))
    rows = torch.zeros_like(loss)
    if "next_sentence_label" in batch and weights[0] != weights[1]:
        answers = found.seq_relationship_logits.to(loss.dtype)
        rows = _of_rows(nn.functional.cross_entropy(answers, batch["next_sentence_label"].view(-1)))
    # The mean of a slice without labels is not a number; its gradient is 0 all the same, and no process lacks it.
    by_labels = weights[0] * (loss - rows) if weights[0] else (loss - rows).nan_to_num() * 0
    return by_labels + weights[1] * rows


def _of_rows(mean: torch.Tensor) -> torch.Tensor:
    """A mean over whole rows, which all who share their tokens compute: it is counted once."""
    context = sharding()
    return mean if context is None else whole(counted_once(mean, context.group), context.group)


def _of_tokens(values: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of all who share them."""
    context = sharding()
    if context is None:
        return values.mean()
    count = whole(torch.tensor(float(len(values)), device=values.device), context.group)
    return whole(values.sum() / count, context.group)
