"""Finds where a model of transformers computes attention, and why some models cannot follow a pattern.

A place is an attention module with its number among the model's layers. Everything here looks only; what it refuses, it
refuses before anything has changed, in terms of the model and of what its user can do.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.cache.naming import CACHE
from asterism.models.drop_in.interface import KNOWN_ARGUMENTS, interface_of

Kind = Literal["window", "chunk"]


class LocalSpan(NamedTuple):
    """What a layer is restricted to by itself: a window or a chunk of so many tokens, as its configuration counts."""

    kind: Kind
    size: int


class ChosenBlocks(NamedTuple):
    """What a layer reads whose queries choose: `topk` blocks of `block` keys, with the `local` ones up to its own."""

    block: int
    topk: int
    local: int


Own = LocalSpan | ChosenBlocks
"""What a layer does by itself beside reading all."""


class Place(NamedTuple):
    """Which of how many layers of attention a module is, and, where its pattern is made with it, its own restriction.

    `follows` tells a layer without a restriction from one whose restriction is nobody's affair; `hides_future`, whether
    the model hid the future from its tokens then.
    """

    number: int
    layers: int
    follows: bool = False
    local: Own | None = None
    hides_future: bool = False


_NAME = "asterism_place"
"""The attribute of an attention module that holds its place."""


def place_of(module: nn.Module) -> Place:
    """The place that `use_pattern` gave a module, or ConfigurationError for one without."""
    place = getattr(module, _NAME, None)
    if place is None:
        raise ConfigurationError(
            "no-pattern-given",
            f"this {type(module).__name__} was given no pattern; call use_pattern(model, pattern) on its model",
        )
    return place


def set_places(modules: Sequence[nn.Module], own: Sequence[Own | None] | None, hides_future: bool) -> None:
    """Tell each module, first layer to last, where it stands, and what it is restricted to if its pattern has that."""
    for number, module in enumerate(modules):
        local = None if own is None else own[number]
        setattr(module, _NAME, Place(number, len(modules), own is not None, local, hides_future))


def find_attention(model: PreTrainedModel) -> list[Any]:
    """The attention of each layer, first to last. Raises ConfigurationError for models that cannot follow a pattern."""
    named = {name: module for name, module in model.named_modules() if interface_of(module) is not None}
    _check_kind(model, named)
    for name, module in named.items():
        _check_interface(model, name, module)
    stacks = sorted({re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in named})
    if len(stacks) > 1:
        raise ConfigurationError(
            "several-kinds-of-attention",
            f"{_a(model)} has attention of several kinds ({', '.join(stacks)}), but a pattern is for one stack of"
            " self-attention layers; give it to a part of the model with one such stack",
        )
    return _in_order(model, named)


def is_causal(model: PreTrainedModel, modules: Sequence[Any]) -> bool:
    """Whether the model hides the future from its tokens, as its attention says or, in CLIP's texts, only its mask."""
    hides = any(getattr(module, "is_causal", False) for module in modules) or any(
        _hides_future(type(part)) for part in model.modules() if isinstance(part, PreTrainedModel)
    )
    return hides and getattr(model.config, "is_causal", True)


def _hides_future(kind: Any) -> bool:
    """Whether a model makes causal masks and no others."""
    source = _forward_of(kind)
    return "create_causal_mask(" in source and "create_bidirectional_mask(" not in source


def makes_windows(model: PreTrainedModel) -> bool:
    """Whether a model, or a part of it, makes masks of a sliding window (in Mimi, its transformer does)."""
    parts = {type(part) for part in model.modules() if not type(part).__module__.startswith("torch.")}
    return any(
        "sliding_window_causal_mask" in (source := _forward_of(kind)) or "sliding_window_mask" in source
        for kind in parts
    )


def counts_tokens(kind: Any) -> bool:
    """Whether attention asks its cache, and nothing else of it, how many tokens come before (Llama 4)."""
    source = _forward_of(kind)
    return f"{CACHE}.get_seq_length(" in source and ".is_updated" not in source


def _has_own_mask(kind: Any) -> bool:
    """Whether a model keeps the images of a row apart by a mask of its own (Pixtral)."""
    return "generate_block_attention_mask(" in _forward_of(kind)


def opens_mask(model: PreTrainedModel) -> bool:
    """Whether a model makes causal masks and opens them to the future itself (EmbeddingGemma, which is a Gemma 3)."""
    return bool(getattr(model.config, _OPENS, False)) and any(
        f"config.{_OPENS}" in _forward_of(type(part)) for part in model.modules() if isinstance(part, PreTrainedModel)
    )


_OPENS = "use_bidirectional_attention"
"""The field of a configuration that opens masks."""


def _forward_of(kind: Any) -> str:
    try:
        return inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return ""


# --- refusals --------------------------------------------------------------------------------------------------------

_UNFIT = {
    "add_cross_attention": "reads another sequence, too (cross-attention)",
    "cross_attention_layers": "reads another sequence, too (cross-attention)",
    "num_kv_shared_layers": "shares keys between its layers",
}
"""What in a configuration forbids a pattern, and what it means."""


CHOOSES = "minimax_m3_sparse"
"""The type of layers that choose blocks of keys by an index branch, and say which to their attention (MiniMax-M3)."""

ATTENDS = frozenset(("full_attention", "sliding_attention", "chunked_attention", CHOOSES))
"""Types of layers that attend and do nothing else among tokens."""


def _check_kind(model: PreTrainedModel, named: dict[str, Any]) -> None:
    """Raises ConfigurationError for kinds of models that no pattern fits."""
    config = model.config
    if not named:
        raise ConfigurationError(
            "own-attention",
            f"{_a(model)} computes its attention itself, not through the AttentionInterface of transformers, so a"
            " pattern cannot replace its mask; use a model that does, such as Llama, GPT-2, BERT or ModernBERT",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigurationError(
            "encoder-decoder-model",
            f"{_a(model)} is an encoder with a decoder, or shares its configuration with one (is_encoder_decoder),"
            " but a pattern is for one stack of self-attention layers; use a model of one stack, such as"
            " T5EncoderModel for the encoder of T5",
        )
    if any(module.config is not config for module in named.values()):
        raise ConfigurationError(
            "several-models",
            f"{_a(model)} consists of several models; give the pattern to one of them{_parts(model, named)}",
        )
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - ATTENDS):
        raise ConfigurationError(
            "other-mixers",
            f"{_a(model)} has layers other than attention (of type {', '.join(others)}), which a pattern cannot"
            " restrict; use a model of attention only",
        )
    if _has_own_mask(type(model)):
        raise ConfigurationError(
            "own-mask",
            f"{_a(model)} builds its own mask, which a pattern would replace and lose; it cannot take a pattern",
        )
    if opens_mask(model):
        raise ConfigurationError(
            "opened-mask",
            f"{_a(model)} opens its causal mask to the future ({_OPENS} in its configuration), which a pattern would"
            " replace and lose; it cannot take a pattern",
        )
    for field, meaning in _UNFIT.items():
        if getattr(config, field, None):
            raise ConfigurationError(
                "unsupported-field",
                f"{_a(model)} {meaning} ({field} in its configuration), but a pattern is for layers of self-attention"
                " that compute their own keys",
            )


def _check_interface(model: PreTrainedModel, name: str, module: Any) -> None:
    interface = interface_of(module)
    assert interface is not None
    if not interface.mask_as_is:
        raise ConfigurationError(
            "mask-inside-attention",
            f"{_a(model)} changes its mask inside attention ({type(module).__name__}), and a pattern would lose that"
            " change; it cannot take a pattern",
        )
    if unknown := sorted(interface.arguments - KNOWN_ARGUMENTS):
        raise ConfigurationError(
            "unknown-attention-argument",
            f"{_a(model)} passes {', '.join(unknown)} to its attention ({name}), which changes scores or masks in a"
            " way that a pattern cannot follow; it cannot take a pattern",
        )
    if interface.calls > 1:
        raise ConfigurationError(
            "attends-twice",
            f"{_a(model)} attends more than once in each layer ({type(module).__name__}), but a pattern and its cache"
            " are for one attention per layer; it cannot take a pattern",
        )


def _in_order(model: PreTrainedModel, named: dict[str, Any]) -> list[Any]:
    """The modules by the number of their layer; ConfigurationError unless there is one for each layer."""
    modules = list(named.values())
    own_numbers = [number for module in modules if type(number := getattr(module, "layer_idx", None)) is int]
    numbers = own_numbers if len(own_numbers) == len(modules) else list(range(len(modules)))
    layers = _layers(model.config, len(modules))
    if sorted(numbers) != list(range(layers)):
        seen = ", ".join(str(number) for number in sorted(numbers))
        raise ConfigurationError(
            "attention-in-some-layers",
            f"{_a(model)} has {layers} layers, but only layers {seen} have attention that can follow a pattern; every"
            " layer needs it",
        )
    return [module for _, module in sorted(zip(numbers, modules, strict=True), key=lambda pair: pair[0])]


def _layers(config: PreTrainedConfig, found: int) -> int:
    """How many layers of attention there should be: ALBERT uses the same few for all of its layers."""
    groups = getattr(config, "num_hidden_groups", None)
    if groups is not None:
        return groups * getattr(config, "inner_group_num", 1)
    return getattr(config, "num_hidden_layers", found)


def _parts(model: PreTrainedModel, named: dict[str, Any]) -> str:
    """Which models inside have attention of their own, for a message: the outermost whose modules share its config."""
    parts: dict[str, str] = {}
    for name, part in model.named_modules():
        inside = [module for path, module in named.items() if path.startswith(f"{name}.")]
        if not isinstance(part, PreTrainedModel) or not inside or any(name.startswith(f"{known}.") for known in parts):
            continue
        if _can_follow(part):
            parts[name] = f"use_pattern(model.{name}, pattern) for its {type(part).__name__}"
    return f": {', '.join(parts.values())}" if parts else ""


def _can_follow(model: PreTrainedModel) -> bool:
    try:
        find_attention(model)
    except ConfigurationError:
        return False
    return True


def _a(model: PreTrainedModel) -> str:
    return type(model).__name__
