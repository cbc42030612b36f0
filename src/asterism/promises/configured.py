"""Which layers a model has, and what its configuration says that each of them reads.

Only the configuration decides: a window that it names and that no code of the model applies is expected all the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.drop_in.native import configured_locals, patterns_of
from asterism.models.drop_in.places import LocalSpan, is_causal
from asterism.patterns import Pattern, parse

_LONG = 1024
"""Tokens in which patterns that were given show how far they reach."""

_ATTENTION = frozenset(("full_attention", "sliding_attention", "chunked_attention"))


def find_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of the model's one stack, first to last. Raises ConfigurationError for models of several stacks."""
    config = text_config(model)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigurationError(
            "encoder-decoder-model",
            f"{type(model).__name__} is an encoder with a decoder; windows are checked in models of one stack of"
            " layers: give its encoder or its decoder, or layers= and patterns= of check_windows",
        )
    number = getattr(config, "num_hidden_layers", None)
    lists = {name: list(part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    stacks = {name: layers for name, layers in lists.items() if len(layers) == number}
    outer = [
        layers for name, layers in stacks.items() if not any(name.startswith(f"{other}.") for other in stacks if other)
    ]
    if not outer or not number:
        raise ConfigurationError(
            "no-layers-found",
            f"{type(model).__name__} has no list of {number} layers (num_hidden_layers of its configuration); give"
            " layers= and patterns= of check_windows",
        )
    return max(outer, key=lambda layers: sum(p.numel() for layer in layers for p in layer.parameters()))


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the model's text, where it has several."""
    return model.config.get_text_config(decoder=True)


def hides_future(model: PreTrainedModel, layers: Sequence[nn.Module]) -> bool:
    """Whether a model's tokens read only those before them."""
    return is_causal(model, [module for layer in layers for module in layer.modules()])


class Configured(NamedTuple):
    """What each layer reads by the configuration, and the largest window or chunk in tokens, 0 if there is none.

    A pattern is None for a layer of a type that no window describes, such as a state-space layer.
    """

    patterns: tuple[Pattern | None, ...]
    largest: int


def configured(model: PreTrainedModel, layers: Sequence[nn.Module]) -> Configured:
    """What the configuration says of the layers. Raises ConfigurationError for one that contradicts itself."""
    config = text_config(model)
    own = _of_gpt_neo(config) or configured_locals(config, len(layers))
    patterns = patterns_of(own, hides_future(model, layers))
    size = max((local.size for local in own if local is not None), default=0)
    types = getattr(config, "layer_types", None) or ["full_attention"] * len(layers)
    return Configured(
        tuple(pattern if kind in _ATTENTION else None for kind, pattern in zip(types, patterns, strict=True)), size
    )


def given(patterns: Sequence[Pattern | str], layers: Sequence[nn.Module]) -> Configured:
    """What somebody says of the layers. Raises ConfigurationError unless there is a pattern for each of them."""
    if len(patterns) != len(layers):
        raise ConfigurationError(
            "patterns-per-layer", f"patterns= has {len(patterns)} patterns for {len(layers)} layers; give one for each"
        )
    read = tuple(parse(one) if isinstance(one, str) else one for one in patterns)
    return Configured(read, max(_farthest(pattern) for pattern in read) + 1)


def _farthest(pattern: Pattern) -> int:
    """The largest distance of a key from its query, or 0 for a pattern that reads a whole row to one side."""
    allowed = pattern.dense(_LONG)[0]
    queries, keys = np.nonzero(allowed)
    distance = int(np.abs(queries - keys).max())
    return 0 if distance == _LONG - 1 else distance


def _of_gpt_neo(config: Any) -> list[LocalSpan | None] | None:
    """GPT-Neo names its layers "global" and "local", and counts the query among the `window_size` keys."""
    kinds = getattr(config, "attention_layers", None)
    if config.model_type != "gpt_neo" or kinds is None:
        return None
    return [LocalSpan("window", config.window_size) if kind == "local" else None for kind in kinds]
