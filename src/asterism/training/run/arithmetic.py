"""The arithmetic of a run, in training and afterwards, and its loss."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

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
"""The speed-up over float32 from which bfloat16 is chosen, because it also casts every weight, and rounds."""

_PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def settled(config: Config) -> Config:
    """The configuration with dtype "auto" replaced by the dtype in which this machine multiplies matrices faster."""
    if config.dtype != "auto":
        return config
    return replace(config, dtype="bfloat16" if _prefers_bfloat16() else "float32")


def _prefers_bfloat16() -> bool:
    """Whether the device that runs are trained on, a GPU if there is one, multiplies bfloat16 faster.

    A processor without instructions for it never does, whatever the measured figures are.
    """
    device = device_of_runs()
    if device.type == "cpu":
        if not multiplies_bfloat16():
            return False
        rates = matrix_rates()
        return rates["bfloat16"] > _WORTH_IT * rates["float32"]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def notes_on_dtype(asked: Dtype, taken: Dtype) -> list[str]:
    """Notes for people on the dtype that the machine decided, or would have decided."""
    if asked != taken:
        return [f"dtype: auto chose {taken}"]
    if asked == "bfloat16" and device_of_runs().type == "cpu" and not multiplies_bfloat16():
        return [
            "dtype: this processor has no instructions for bfloat16, and takes several times as long as in float32:"
            " give --dtype float32"
        ]
    return []


def weights_dtype(dtype: Dtype) -> torch.dtype:
    """The dtype of weights, gradients and moments."""
    return torch.float64 if dtype == "float64" else torch.float32


def computed_in(dtype: Dtype) -> torch.dtype:
    """The dtype of matrix products, including those of the optimiser; none is narrower. "auto" must be settled."""
    return _PRODUCTS[dtype]


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: autocast for bfloat16, none otherwise. "auto" must be settled."""
    return torch.autocast(device.type, torch.bfloat16, enabled=computed_in(dtype) == torch.bfloat16)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the body, the caller's autocast, `no_grad`, inference mode, default dtype and default device have no
    effect, also on the backward pass. Only the configuration of a run decides how it computes."""
    default = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float32)
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def wide(logits: torch.Tensor) -> torch.Tensor:
    """Logits [...] in float32, or unchanged if they are wider. Losses are computed in this dtype."""
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
    arguments: Mapping[str, Any] | None = None,
) -> torch.Tensor:
    """The mean loss of a batch or slice, in nats, as the model computes it: a differentiable scalar in the dtype of the
    weights.

    A batch holds the arguments of the model, including labels. `seed` decides the dropout in the attention of our
    models, and is None for others. With `label_smoothing` (Szegedy 2016, section 7), that share of the target
    probability is spread over all tokens. If labels are float [B, columns] of 0 and 1, a 1 counts `positive_weight`
    times as much as a 0 (Zaheer 2020, appendix F). `weights` are those of this slice in its step: one for means over
    labels, and one for means over rows (the next sentence). `arguments` are for the model, besides the batch. No loss
    is computed anywhere else.

    Within `sequence_parallel`, the value is that of all tokens, and the gradient is this process's part.
    """
    with arithmetic(dtype, batch["input_ids"].device):
        found = model(**batch, **(arguments or {}), **({} if seed is None else {"dropout_seed": seed % 2**48}))
    loss: torch.Tensor = found.loss.to(weights_dtype(dtype))
    if positive_weight != 1:
        # The model's mean counts each 1 once; the rest of its weight is added.
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
    """A mean over whole rows, which all processes that share the rows compute. It is counted once."""
    context = sharding()
    return mean if context is None else whole(counted_once(mean, context.group), context.group)


def _of_tokens(values: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of all processes that share the rows."""
    context = sharding()
    if context is None:
        return values.mean()
    count = whole(torch.tensor(float(len(values)), device=values.device), context.group)
    return whole(values.sum() / count, context.group)
