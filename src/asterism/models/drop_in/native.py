"""The attention that a model of transformers has by itself, layer by layer, as patterns.

Read from the configuration, and from nothing else; what the model asks of its masks is compared with it at every call
(`attention.layer_rule`), so a configuration that is read wrongly, or that a model does not follow, is refused. In a
text, `native` stands for the pattern of each layer: "native", "native | global_tokens((0,))".

Transformers counts a window in two ways, both found in its `masking_utils`: causal, `w` keys with the query's own;
otherwise `w` keys to either side. Chunks begin with the first real token of a row.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import ConfigurationError, shown
from asterism.models.drop_in.field import read_patterns
from asterism.models.drop_in.places import (
    CHOOSES,
    ChosenBlocks,
    Kind,
    LocalSpan,
    Own,
    Place,
    find_attention,
    is_causal,
    makes_windows,
)
from asterism.patterns import Pattern, blocks, causal, dense, window
from asterism.patterns.selected import selected
from asterism.patterns.text import bind, mentions
from asterism.patterns.tree import Tree

NAME = "native"
"""What stands in a text for the pattern that a layer has by itself."""

_KINDS: dict[str, Kind] = {"sliding_attention": "window", "chunked_attention": "chunk"}
"""What types of layers are restricted to."""


def native_patterns(model: PreTrainedModel) -> tuple[Pattern, ...]:
    """List the model's own pattern of each layer, first to last, as read from its configuration.

    Raises ConfigurationError for a model that cannot follow patterns, and for a configuration that contradicts itself.
    """
    modules = find_attention(model)
    return patterns_of(native_locals(model, modules), is_causal(model, modules))


def patterns_of(own: Sequence[Own | None], hides_future: bool) -> tuple[Pattern, ...]:
    """The pattern of each layer, by what it is restricted to."""
    return tuple(_pattern(local, hides_future) for local in own)


def native_locals(model: PreTrainedModel, modules: Sequence[Any]) -> list[Own | None]:
    """What each layer is restricted to by itself, first to last; None for one that is not.

    Raises ConfigurationError for a configuration that contradicts itself.
    """
    return configured_locals(model.config, len(modules), makes_windows(model))


def configured_locals(config: PreTrainedConfig, layers: int, windows: bool = True) -> list[Own | None]:
    """What a configuration restricts each of its layers to; `windows`: whether a `sliding_window` without types counts.

    Raises ConfigurationError for a configuration that contradicts itself.
    """
    types = getattr(config, "layer_types", None)
    if types is not None and len(types) != layers:
        raise ConfigurationError(
            "layer-types-number",
            f"layer_types of the configuration names {len(types)} layers, but the model has {layers} with attention",
        )
    parts = parts_of(config, layers)
    if types is None:
        kinds = [_kind_by_fields(part, windows) for part in parts]
    else:
        kinds = [_KINDS.get(kind) for kind in types]
    own: list[Own | None] = [
        None if kind is None else LocalSpan(kind, _size(part, kind)) for kind, part in zip(kinds, parts, strict=True)
    ]
    return [
        _chosen(part) if kind == CHOOSES else one
        for kind, part, one in zip(types or [None] * layers, parts, own, strict=True)
    ]


def parts_of(config: PreTrainedConfig, layers: int) -> list[Any]:
    """The configuration of each layer, first to last: one for all, unless it has fields for single layers."""
    return list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config] * layers


def mentions_native(given: object) -> bool:
    """Whether a pattern for a model, as text or as one for each layer, is made with the model's own."""
    if isinstance(given, str):
        return mentions(given, NAME)
    return isinstance(given, list | tuple) and any(mentions_native(one) for one in given)


def with_native(given: str | Sequence[Pattern | str], own: Sequence[Pattern]) -> list[str]:
    """The text of each layer's pattern, where `native` in what was given stands for the layer's own.

    Raises what `read_patterns` raises, and ConfigurationError for a tree next to `native`: the one counts along paths,
    the other along the row.
    """
    texts = [given] if isinstance(given, str) else [one for one in given if isinstance(one, str)]
    if any(mentions(text, Tree.keyword) and mentions(text, NAME, outside=Tree.keyword) for text in texts):
        raise ConfigurationError(
            "native-outside-tree",
            "native stands outside of the tree, where a window counts the tokens of the row and not those of a path:"
            ' write tree(..., pattern=native), as packed.pattern("native") does for tree_of',
        )
    layers = len(own)
    if isinstance(given, str):
        return [read_patterns(bind(given, NAME, pattern), layers)[number].text for number, pattern in enumerate(own)]
    if len(given) != layers:
        read_patterns([str(one) for one in given], layers)  # which refuses them by their number
    pairs = zip(given, own, strict=True)
    bound = [bind(one, NAME, pattern) if isinstance(one, str) else one.text for one, pattern in pairs]
    return [pattern.text for pattern in read_patterns(bound, layers)]


def require_local(locals_: Sequence[Own | None], model: PreTrainedModel) -> None:
    """Raises ConfigurationError for a model that has no window and no chunks, whose own pattern changes nothing."""
    if not any(locals_):
        whole = "causal()" if is_causal(model, find_attention(model)) else "dense()"
        raise ConfigurationError(
            "no-native-pattern",
            f"{type(model).__name__} requests no masks of windows or chunks (sliding_window, attention_chunk_size): its"
            f' own pattern is {whole}; give it a pattern, use_pattern(model, "window(left=1023)"), or'
            f' use_pattern(model, "{whole}") for the same attention by Asterism\'s kernels',
        )


def check_unchanged(texts: Sequence[str], own: Sequence[Pattern]) -> None:
    """Raises ConfigurationError where the model's own patterns are not those that its pattern was made with."""
    for number, (text, pattern) in enumerate(zip_longest(texts, own)):
        if pattern is None or pattern.text != text:
            now = "nothing" if pattern is None else pattern.text
            raise ConfigurationError(
                "native-changed",
                f"the model's pattern was made with its own, in layer {number} {text}, but the configuration says {now}"
                ' now; take use_pattern(model, "native") for what it says now',
            )


def check_asked(place: Place, asked: int | None, hides_future: bool) -> None:
    """Raises ConfigurationError where a layer's mask is restricted otherwise than its configuration says.

    `asked` is the size that the model gave when it made the mask, which hides the future or not.
    """
    number, local = place.number, place.local
    if hides_future != place.hides_future:
        before, now = ("hid" if place.hides_future else "showed"), ("hides" if hides_future else "shows")
        raise ConfigurationError(
            "native-not-followed",
            f"layer {number} {before} the future when its pattern was made, and its mask {now} it; take"
            ' use_pattern(model, "native") again if that is meant (is_causal in the configuration)',
        )
    local = local if isinstance(local, LocalSpan) else None
    expected = None if local is None else local.size
    if asked != expected:
        said = "no window" if local is None else f"a {local.kind} of {local.size} tokens"
        seen = "no window" if asked is None else f"a window of {asked} tokens"
        raise ConfigurationError(
            "native-not-followed",
            f"layer {number} requests a mask with {seen}, but the configuration has {said}; call"
            ' use_pattern(model, "causal()", native_window="intersect") ("dense()" for an encoder), which follows'
            " the mask",
        )


def _pattern(local: Own | None, hides_future: bool) -> Pattern:
    """
    >>> str(_pattern(LocalSpan("window", 4), True)), str(_pattern(LocalSpan("window", 4), False))
    ('window(left=3)', 'window(left=4, right=4)')
    """
    if local is None:
        return causal() if hides_future else dense()
    if isinstance(local, ChosenBlocks):
        return selected(local.block, local.topk, score="given", first=0, local=local.local) & causal()
    if local.kind == "chunk":
        return blocks(local.size) & causal()
    return window(local.size - 1) if hides_future else window(local.size, local.size)


def _kind_by_fields(config: PreTrainedConfig, windows: bool) -> Kind | None:
    """What a layer without a type is restricted to; `windows`: whether the model makes masks of windows at all."""
    window_size, chunk_size = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    has_window = window_size is not None and windows
    if has_window and chunk_size:
        raise ConfigurationError(
            "window-and-chunks",
            f"the configuration has a sliding_window of {window_size} and an attention_chunk_size of {chunk_size}, and"
            " no layer_types to say which layer has which",
        )
    return "window" if has_window else "chunk" if chunk_size else None


def _chosen(config: PreTrainedConfig) -> ChosenBlocks:
    """What the queries of MiniMax-M3 choose. The blocks near a query win a place, so they must all have one."""
    fields = ("index_block_size", "index_topk_blocks", "index_local_blocks")
    found: list[Any] = [getattr(config, name, None) for name in fields]
    block, topk, local = found
    if not all(type(one) is int for one in found) or block < 16 or block % 16 or not 1 <= local <= topk:
        said = ", ".join(f"{name} {shown(one)}" for name, one in zip(fields, found, strict=True))
        raise ConfigurationError(
            "native-choice",
            "layers choose blocks of a multiple of 16 keys, and the blocks next to a query are among the chosen:"
            f" 1 <= index_local_blocks <= index_topk_blocks; the configuration has {said}",
        )
    return ChosenBlocks(block, topk, local)


def _size(config: PreTrainedConfig, kind: Kind) -> int:
    field = "sliding_window" if kind == "window" else "attention_chunk_size"
    size = getattr(config, field, None)
    if type(size) is not int or size < 1:
        raise ConfigurationError(
            "native-window-size",
            f"{field} of the configuration must be a whole number of at least 1, since layers are restricted by it,"
            f" got {shown(size)}",
        )
    return size
