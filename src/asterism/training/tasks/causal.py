"""Causal models to fine-tune: their pattern, and what must hold for rows of prompts and answers."""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig, use_pattern
from asterism.training.settings.configuration import FineTuneConfig

_TOKENS = 8
"""Tokens of the row that a model is tried on."""
_NOISE = 1e-3
"""The largest change of a logit, relative to the largest logit, that rounding explains."""


def follow(model: PreTrainedModel, config: FineTuneConfig) -> None:
    """Give the model the pattern of the settings, if there is one.

    Raises ConfigurationError or PatternError for a model that cannot follow it.
    """
    if config.pattern is None:
        return
    if isinstance(model.config, AsterismConfig):
        raise ConfigurationError(
            "pattern-of-own-model",
            f"pattern: the model in {config.model} is Asterism's and has its own mixers; leave pattern out",
        )
    use_pattern(model, config.pattern, native_window=config.native_window, positions=config.positions)


@torch.no_grad()
def refuse_readers(model: PreTrainedModel, config: FineTuneConfig) -> None:
    """Raise ConfigurationError for a model that reads the future, or with `packing` across the borders of examples.

    Tokens that must not be read are changed, and the logits of others compared.
    """
    was_training = model.training
    model.train(False)
    embeddings: Any = model.get_input_embeddings()
    size = embeddings.num_embeddings
    row = (torch.arange(_TOKENS) % size)[None]
    later, earlier = row.clone(), row.clone()
    later[0, -1], earlier[0, 0] = (row[0, -1] + 1) % size, (row[0, 0] + 1) % size
    if _differ(model, row, later, slice(0, _TOKENS - 1)):
        raise ConfigurationError(
            "not-a-causal-model",
            f"model: {config.model} holds a {model.config.model_type} model whose tokens read the future; give a causal"
            " model such as Llama or Qwen",
        )
    if config.packing:
        half = _TOKENS // 2
        positions = {"position_ids": torch.arange(half).repeat(2)[None]}
        takes = "position_ids" in inspect.signature(model.forward).parameters
        if not takes or _differ(model, row, earlier, slice(half, _TOKENS), **positions):
            raise ConfigurationError(
                "packing-leaks",
                f"packing: the {model.config.model_type} model in {config.model} reads across the borders of packed"
                " examples; leave packing out",
            )
    model.train(was_training)


def _differ(model: Any, one: torch.Tensor, other: torch.Tensor, seen: slice, **arguments: Any) -> bool:
    """Whether the logits of these columns differ between two rows, int64 [1, N] each."""
    a, b = (model(input_ids=row, use_cache=False, **arguments).logits[0, seen].float() for row in (one, other))
    return bool((a - b).abs().max() > _NOISE * a.abs().max().clamp(min=1e-6))
