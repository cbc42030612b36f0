"""The attention of each layer of a model, as facts: its pattern, heads, sinks, soft-cap, and what a cache holds of it.

Everything is read from the configuration and from modules without weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.drop_in.field import INCLUDED, read_native_window, read_patterns
from asterism.models.drop_in.interface import interface_of
from asterism.models.drop_in.named import without_weights
from asterism.models.drop_in.native import native_locals, patterns_of
from asterism.models.drop_in.places import ATTENDS, LocalSpan, Own, find_attention, is_causal, opens_mask
from asterism.patterns import Mixer, Pattern, dense, window


@dataclass(frozen=True)
class LayerAttention:
    """Who reads whom in a layer, and what else its attention is.

    pattern    None where it is no attention or none that a pattern says; `otherwise` says then what it is
    heads      query heads, and `key_heads` those of keys and values; 0 where the configuration names none
    kept       numbers of keys and values that a cache holds of a token, 0 for a layer that reads those of another one;
               None where that is not known
    sinks      whether every head has a learned sink
    softcap    bound of the scores, None for none
    """

    pattern: Mixer | None
    otherwise: str
    heads: int
    key_heads: int
    kept: int | None
    sinks: bool
    softcap: float | None


@dataclass(frozen=True)
class ModelAttention:
    """The attention of a model: one LayerAttention per layer, first to last, and remarks, one line each."""

    model: str
    family: str
    hides_future: bool
    positions: int | None
    bytes_of_number: int
    layers: tuple[LayerAttention, ...]
    remarks: tuple[str, ...]


_OTHERWISE = ("opened-mask", "other-mixers", "unsupported-field")
"""Refusals of `use_pattern` for models of which layers can be described all the same."""


def describe_attention(config: PreTrainedConfig) -> ModelAttention:
    """Describe the attention of each layer of the model that a configuration makes.

    Raises ConfigurationError for models that are not one stack of layers, or that compute attention in a way that no
    pattern says, and for a configuration that contradicts itself.
    """
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise ConfigurationError(
            "several-models", f"{type(config).__name__} is of several models of text; give one of them"
        ) from error
    remarks = () if text is config else (f"the text model inside of {config.model_type}; its other parts are left out",)
    model = without_weights(text)
    layers, hides_future, more = _own(text) if hasattr(text, "layer_mixers") else _foreign(model)
    return ModelAttention(
        model=type(model).__name__,
        family=text.model_type,
        hides_future=hides_future,
        positions=getattr(text, "max_position_embeddings", None),
        bytes_of_number=getattr(config.dtype or text.dtype, "itemsize", torch.bfloat16.itemsize),
        layers=layers,
        remarks=(*remarks, *more),
    )


def _own(config: Any) -> tuple[tuple[LayerAttention, ...], bool, tuple[str, ...]]:
    """Of a model of Asterism, whose configuration holds its patterns."""
    mixers = config.layer_mixers()
    hides_future = all(mixer.is_causal for mixer in mixers)
    widths = (config.query_key_dim + config.value_dim) // config.num_attention_heads

    def kept(mixer: Mixer) -> int | None:
        index = config.index_dim if isinstance(mixer, Pattern) and mixer.chooses else 0
        return (widths + index) * config.num_key_value_heads if hides_future else None

    made = (
        LayerAttention(mixer, "", config.num_attention_heads, config.num_key_value_heads, kept(mixer), False, None)
        for mixer in mixers
    )
    remark = f"an index branch of {config.index_dim} features for each key head chooses the blocks of selected(...)"
    return tuple(made), hides_future, (remark,) if config.index_dim else ()


def _foreign(model: PreTrainedModel) -> tuple[tuple[LayerAttention, ...], bool, tuple[str, ...]]:
    """Of a model of transformers; where a pattern is saved with it, that is what its layers follow."""
    remarks: tuple[str, ...] = ()
    try:
        modules: Sequence[Any] = find_attention(model)
    except ConfigurationError as error:
        if error.code not in _OTHERWISE:
            raise
        modules, remarks = _found_attention(model), (f"use_pattern refuses it: {error}",)
    opened, own = opens_mask(model), native_locals(model, modules)
    hides_future = not opened and is_causal(model, [one for one in modules if one is not None])
    patterns: list[Pattern | None] = list(_opened(own) if opened else patterns_of(own, hides_future))
    types = getattr(model.config, "layer_types", None) or ["full_attention"] * len(patterns)
    others = ["" if kind in ATTENDS else f"{kind}: no pattern says it" for kind in types]
    patterns = [None if other else pattern for pattern, other in zip(patterns, others, strict=True)]
    if model.config.asterism_pattern is not None:
        patterns, more = followed(model, patterns)
        remarks += more
    parts = model.config.per_layer_config if getattr(model.config, "is_heterogeneous", False) else None
    layers = tuple(
        _layer(pattern, other, module, model.config if parts is None else parts[number], hides_future)
        for number, (pattern, other, module) in enumerate(zip(patterns, others, modules, strict=True))
    )
    return layers, hides_future, remarks


def _opened(own: Sequence[Own | None]) -> list[Pattern]:
    """The patterns of layers whose masks are opened: their windows count the query's own key on either side."""
    return [window(one.size - 1, one.size - 1) if isinstance(one, LocalSpan) else dense() for one in own]


def _found_attention(model: PreTrainedModel) -> list[Any]:
    """The attention of each layer of a model that `find_attention` refuses; None for a layer in which none is found."""
    attends = [part for part in model.modules() if interface_of(part) is not None]
    found = {getattr(part, "layer_idx", None): part for part in attends}
    return [found.get(number) for number in range(model.config.num_hidden_layers)]


def followed(model: PreTrainedModel, own: Sequence[Pattern | None]) -> tuple[list[Pattern | None], tuple[str, ...]]:
    """The patterns that are saved in the configuration, joined with the model's own as that says."""
    saved = read_patterns(model.config.asterism_pattern, len(own))
    remark = "the pattern is that saved with the model (asterism_pattern)"
    said = read_native_window(model.config)
    if said == "intersect":
        return [one if at is None else one & at for one, at in zip(saved, own, strict=True)], (
            f"{remark}, within the model's own windows",
        )
    return list(saved), (remark if said == INCLUDED else f"{remark}, in place of the model's own windows",)


def _layer(
    pattern: Pattern | None, otherwise: str, module: Any, config: PreTrainedConfig, hides_future: bool
) -> LayerAttention:
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    cap = getattr(config, "attn_logit_softcapping", None)
    return LayerAttention(
        pattern=pattern,
        otherwise=otherwise,
        heads=heads,
        key_heads=key_heads,
        kept=_kept(module, config, heads, key_heads) if hides_future and pattern is not None else None,
        sinks=isinstance(getattr(module, "sinks", None), torch.nn.Parameter),
        softcap=float(cap) if isinstance(cap, int | float) else None,
    )


def _kept(module: Any, config: PreTrainedConfig, heads: int, key_heads: int) -> int | None:
    """Numbers of keys and values of a token: what the projections give, or else what the configuration names."""
    if getattr(module, "is_kv_shared_layer", False):  # Gemma 3n, Gemma 4
        return 0
    keys, values = (getattr(module, name, None) for name in ("k_proj", "v_proj"))
    if isinstance(keys, torch.nn.Linear) and isinstance(values, torch.nn.Linear):
        return keys.out_features + values.out_features
    if getattr(config, "kv_lora_rank", None) or not heads:  # compressed keys: what is kept depends on the cache
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * int(width) * key_heads
