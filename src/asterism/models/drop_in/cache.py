"""How a model of transformers gets the cache that forgets.

Its attention modules know no positions, so they cannot extend a PatternCache themselves. Two hooks around each of them
do: the first takes the cache away from the module and hands the layer's part of it to the attention function, which
knows the positions; the second sees to it that it arrived there.
"""

import inspect
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import refuse_added
from asterism.models.cache.cache import PatternCache, new_layer
from asterism.models.cache.layer import OUTSIDE_GRAPHS, PatternCacheLayer
from asterism.models.cache.naming import cache_in, name_of_cache
from asterism.models.drop_in.attention import layer_rule
from asterism.models.drop_in.chosen import keeps_itself
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.models.drop_in.places import counts_tokens
from asterism.models.drop_in.tokens import LayerTokens, require_tokens
from asterism.patterns import parse


class _Before:
    """Stands for a cache in a module that asks it how many tokens come before, and keeps nothing.

    Llama 4 scales queries by their positions, which it counts itself.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def get_seq_length(self, *_: Any) -> int:
        return self.tokens

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, Hkv, N, D] and [B, Hkv, N, Dv], of any dtype, as they came."""
        return keys, values


def install_hooks(module: nn.Module) -> None:
    """Make an attention module forget by its pattern. The hooks do nothing while another attention is selected."""
    setattr(module, _COUNTS, counts_tokens(type(module)))
    if _hand_over_cache not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_hand_over_cache, with_kwargs=True)
        module.register_forward_hook(_check_cache, with_kwargs=True)


_COUNTS = "asterism_counts_tokens"
"""The attribute of an attention module that says whether it asks its cache how many tokens come before."""


def spare_caches(model: PreTrainedModel) -> None:
    """Have a model make no cache inside of a compiled graph unless it is told to: none can be made there."""
    takes_it = "use_cache" in inspect.signature(model.forward).parameters or getattr(model.config, "use_cache", False)
    if takes_it and _make_no_cache not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_make_no_cache, with_kwargs=True)


def check_masks(model: PreTrainedModel) -> None:
    """Have a model, and those inside of it, refuse masks that transformers would turn into ones before we see them."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and _check_mask not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_check_mask, with_kwargs=True)


def _check_mask(model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    mask = named.get("attention_mask", arguments[1] if len(arguments) > 1 else None)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and model.config._attn_implementation == IMPLEMENTATION:
        refuse_added(mask)
    if isinstance(mask, LayerTokens) and getattr(cache_in(named), "is_compileable", False):
        raise mask.refusal()  # `generate` has made it for a static cache; windows would ask it for its shape


def _make_no_cache(
    model: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    silent = named.get("use_cache") is None and cache_in(named) is None
    if not (silent and torch.compiler.is_compiling() and model.config._attn_implementation == IMPLEMENTATION):
        return None
    return arguments, named | {"use_cache": False}


def _hand_over_cache(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    name, counts = name_of_cache(named), getattr(module, _COUNTS, False)
    cache = named.get(name)
    if module.config._attn_implementation != IMPLEMENTATION or (cache is None and not counts):
        return None
    if keeps_itself(module, cache):
        return None
    tokens = next((x for x in (*named.values(), *arguments) if isinstance(x, LayerTokens)), None)
    if cache is None:
        first = None if tokens is None else tokens.first
        return (arguments, named | {name: _Before(first)}) if first else None
    rule = layer_rule(module, require_tokens(tokens, module))
    layer = _forgetting_layer(cache, module.layer_idx, rule.text)
    before = _Before(tokens.seen) if counts and tokens is not None else None
    return arguments, named | {name: before, "pattern_cache": layer, "pattern_rule": rule}


def _check_cache(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
    layer = named.get("pattern_cache")
    if layer is not None and layer.get_seq_length() == named["attention_mask"].seen:
        raise ConfigurationError(
            "arguments-kept",
            f"{type(module).__name__} does not pass its arguments to the attention function, so no cache can follow"
            " the pattern; call the model with use_cache=False",
        )


def _forgetting_layer(cache: Cache, number: int, text: str) -> PatternCacheLayer:
    """The cache's part for a layer; an empty DynamicCache is given one, in place, because its owner holds on to it."""
    known = type(cache) in (DynamicCache, PatternCache) and number < len(cache.layers)
    layer = cache.layers[number] if known else None
    if not isinstance(layer, PatternCacheLayer):
        layer = _make_layer(cache, number, text)
    if layer.pattern.text != text:
        raise ConfigurationError(
            "cache-of-other-pattern",
            f"the cache is for the pattern {layer.pattern}, but layer {number} has {text}; pass a"
            " PatternCache(), or nothing",
        )
    return layer


@torch.compiler.disable(reason=OUTSIDE_GRAPHS)
def _make_layer(cache: Cache, number: int, text: str) -> PatternCacheLayer:
    if type(cache) not in (DynamicCache, PatternCache) or cache.offloading:
        kind = f"{'offloaded ' if cache.offloading else ''}{type(cache).__name__}"
        raise ConfigurationError(
            "foreign-cache",
            f"the cache, of type {kind}, cannot forget by a pattern; pass a PatternCache(), with max_tokens for one of"
            " fixed size, or leave it out",
        )
    if isinstance(cache, PatternCache) and len(cache.layers) == number:
        cache.add_layer(parse(text))
    while len(cache.layers) <= number:
        cache.layers.append(DynamicLayer())
    layer = cache.layers[number]
    if isinstance(layer, PatternCacheLayer):
        return layer
    if cache.get_seq_length(number) > 0:
        raise ConfigurationError(
            "cache-filled-before",
            "the cache was filled without the pattern, and the positions of its keys are unknown;"
            " pass a PatternCache(), or nothing",
        )
    layer = cache.layers[number] = new_layer(cache, parse(text))
    return layer
