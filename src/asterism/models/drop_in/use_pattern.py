"""Give a model of transformers a pattern, and take it away again."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.drop_in.cache import check_masks, install_hooks, spare_caches
from asterism.models.drop_in.field import (
    IMPLEMENTATION,
    INCLUDED,
    OWN_FIELD,
    POSITIONS_FIELD,
    WINDOW_FIELD,
    NativeWindow,
    Positions,
    read_native_window,
    read_patterns,
    read_positions,
    write_native_window,
    write_patterns,
    write_positions,
)
from asterism.models.drop_in.native import (
    NAME,
    check_unchanged,
    mentions_native,
    native_locals,
    native_patterns,
    parts_of,
    patterns_of,
    require_local,
    with_native,
)
from asterism.models.drop_in.own_configuration import own_configuration
from asterism.models.drop_in.places import find_attention, is_causal, set_places
from asterism.models.drop_in.positions import check_positions, set_rotations
from asterism.models.drop_in.sharded import install_sharding
from asterism.models.drop_in.trees import check_depths, check_tree_pattern, trees_of
from asterism.patterns import Pattern, Schedule, require_causal, require_self_attention
from asterism.patterns.selected import require_static

Model = TypeVar("Model", bound=nn.Module)


Given = Pattern | Schedule | str | Sequence[Pattern | str]
"""A pattern for all layers, a schedule, the text of one, or one pattern per layer."""


class _AsConfigured(Enum):
    """Stands for the pattern that the configuration names."""

    AS_CONFIGURED = "as configured"


def use_pattern(
    model: Model,
    pattern: Given | _AsConfigured | None = _AsConfigured.AS_CONFIGURED,
    *,
    native_window: NativeWindow | None = None,
    positions: Positions | None = None,
) -> Model:
    """Give a model of transformers a sparse pattern: Llama, Qwen, Mistral, GPT-2, BERT, ModernBERT, ...

        model = use_pattern(AutoModelForCausalLM.from_pretrained(path), "window(left=1023) | sinks()")

    The model is changed in place and returned. `pattern` is a Pattern, a Schedule, the text of one (such as
    "interleave(a, b)"), or a list with one pattern per layer. In a text, `native` means the layer's own pattern, from
    the windows or chunks in its configuration: "native" computes the same as transformers, over fewer pairs, and
    "native | sinks(first=4, window=1)" adds to it. By default the pattern is the one saved in the configuration, or
    else "native". None removes the pattern, as `drop_pattern` does.

    - The weights do not change, only the mask: the pattern decides who reads whom, in every layer.
    - The model gets a copy of its configuration. Other models of the same configuration object do not change.
    - Layers with their own window (Mistral; five of six layers of Gemma 3) need `native_window`, or the first call
      raises ConfigurationError. With "intersect" a query reads where both the pattern and the window allow: layers
      trained on short distances keep them, and `causal()` (`dense()` for encoders) changes nothing. With "replace" the
      pattern replaces the window, so that `sinks(4, 508)` reads the sinks. The choice is saved with the pattern.
    - `positions="cache"` shows rotary models the keys of `sinks` where they stand among those that are read (Xiao 2023,
      section 3.2) instead of in the text ("original"). Keys take twice the room. The choice is saved with the pattern.
    - Causal models need a pattern that is causal and prefix-stable; encoders take any.
    - To the pattern, positions count the real tokens of a row, whatever side padding is on. A pattern that depends on
      the length, such as `bigbird`, uses the length of each row. So padding changes no real token through the pattern.
      The model's own positions may: with padding on the left, models with absolute positions (GPT-2, BERT) count it
      unless you pass `position_ids` of the real tokens, as `generate` does.
    - `generate` and `use_cache=True` keep only the keys that the pattern can still read.
    - `save_pretrained` writes the pattern to config.json. After `import asterism.models`, `from_pretrained` of
      transformers loads the model with its pattern; without that import transformers refuses to build the model.
    - A model of PEFT works too: its base model follows the pattern, which is saved with the adapter.
    - For comparison, `from_pretrained(..., attn_implementation="sdpa")` and `set_attn_implementation("sdpa")` select
      another attention. The pattern is then inactive: `use_pattern(model)` selects it again, and a model saved without
      that has no pattern.
    - Documents packed into a row, marked by `position_ids` that restart or by `cu_seq_lens_q`, follow the pattern
      separately. That needs use_cache=False.
    - Attention dropout in training follows the configuration. Every layer draws a seed from torch's generator, like
      every other dropout of the model, so torch.manual_seed, gradient checkpointing and a resumed Trainer drop the same
      pairs.
    - A tree (`packed.pattern()` of `tree_of`) needs position_ids=packed.position_ids and use_cache=False. A model's own
      windows then count along the paths: `packed.pattern("native")`.
    - Within `sequence_parallel` the model takes one shard from asterism.parallel.shard, without a cache; positions and
      the loss of tokens are those of the whole sequence.
    - One graph of torch.compile serves all lengths, also with fullgraph=True; it makes no cache by itself.

    Raises PatternError for a pattern that the model cannot use and ConfigurationError for a model that cannot follow
    one; nothing has changed then. docs/reference/zoo.md lists the families that can. Later calls raise
    ConfigurationError for features without a pattern: masks [batch, heads, queries, keys], attention weights as an
    output, caches of other kinds.
    """
    if pattern is None:
        return drop_pattern(model)
    base = _base(model)
    modules = find_attention(base)
    own_configuration(model, base)
    before = dict(vars(base.config))
    try:
        _write(base, modules, pattern, native_window, positions)
        _check_patterns(base, modules)
        set_rotations(base, modules)
        _select(base)
    except Exception:
        vars(base.config).clear()
        vars(base.config).update(before)
        raise
    _prepare(base, modules)
    return model


def restore_pattern(model: PreTrainedModel) -> None:
    """Prepare a model that was built from a configuration with a pattern. Raises as `use_pattern` does."""
    modules = find_attention(model)
    _check_patterns(model, modules)
    set_rotations(model, modules)
    _prepare(model, modules)


def drop_pattern(model: Model) -> Model:
    """Undo `use_pattern`: attention is dense again, by transformers' default implementation. Returns the model."""
    base = _base(model)
    own_configuration(model, base)
    base.config.asterism_pattern = None
    base.set_attn_implementation(base.get_correct_attn_implementation(None, is_init_check=True))
    return model


def _base(model: object) -> PreTrainedModel:
    """The model of transformers that is meant: itself, or the base model of an adapter of PEFT."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(base, PreTrainedModel):
        raise ConfigurationError(
            "not-a-model",
            "use_pattern needs a model of transformers (PreTrainedModel), or one of PEFT around it, got"
            f" {type(model).__name__}; pass the model inside",
        )
    return base


def _write(
    model: PreTrainedModel, modules: list[Any], given: Any, native_window: str | None, positions: str | None
) -> None:
    """Keep in the configuration what was asked for."""
    config = model.config
    as_configured = given is _AsConfigured.AS_CONFIGURED
    if as_configured and config.asterism_pattern is None:
        as_configured, given = False, NAME
    if not as_configured:
        vars(config).pop(POSITIONS_FIELD, None)
    if mentions_native(given):
        _write_native(model, modules, given, native_window)
    elif not as_configured:
        config.asterism_pattern = write_patterns(given)
        vars(config).pop(WINDOW_FIELD, None)
        vars(config).pop(OWN_FIELD, None)
    if native_window is not None:
        write_native_window(config, native_window)
    if positions is not None:
        write_positions(config, positions)


def _write_native(model: PreTrainedModel, modules: list[Any], given: Any, native_window: str | None) -> None:
    """Keep patterns that are made with those which the layers have by themselves."""
    if native_window is not None:
        raise ConfigurationError(
            "native-twice",
            f"native_window={native_window!r} was given with a pattern built from the model's own window; leave it"
            ' out, or write "native & ..." for what both allow',
        )
    locals_ = native_locals(model, modules)
    require_local(locals_, model)
    own = patterns_of(locals_, is_causal(model, modules))
    model.config.asterism_pattern = with_native(given, own)
    vars(model.config)[OWN_FIELD] = [pattern.text for pattern in own]
    write_native_window(model.config, INCLUDED)


def _check_patterns(model: PreTrainedModel, modules: list[Any]) -> None:
    """Raises PatternError for a pattern that the model cannot use, ConfigurationError for what is said of windows."""
    config = model.config
    heads = [part.num_attention_heads for part in parts_of(config, len(modules))]
    chosen = [pattern if pattern.chooses else None for pattern in native_patterns(model)]
    for number, rule in enumerate(read_patterns(config.asterism_pattern, len(modules))):
        rule.check_heads(heads[number])
        require_self_attention(rule, type(model).__name__)
        if (at := chosen[number]) is None:
            require_static(rule, type(model).__name__)
        elif rule != at:
            raise ConfigurationError(
                "choosing-layer",
                f"queries of layer {number} of {type(model).__name__} choose blocks by themselves, so its pattern is"
                f" {at}, got {rule}: take use_pattern(model)",
            )
        hides_future = is_causal(model, modules)
        check_tree_pattern(rule, model, hides_future, read_native_window(config) == "intersect")
        if hides_future:
            require_causal(rule)
    if read_positions(config) == "cache":
        check_positions(read_patterns(config.asterism_pattern, len(modules)), read_native_window(config))
    if read_native_window(config) == INCLUDED and (texts := vars(config).get(OWN_FIELD)) is not None:
        check_unchanged(texts, patterns_of(native_locals(model, modules), is_causal(model, modules)))
    if read_native_window(config) == "intersect" and getattr(config, "attention_chunk_size", None):
        raise ConfigurationError(
            "attention-chunks",
            f"{type(model).__name__} attends in chunks (attention_chunk_size in its configuration), which a pattern can"
            ' replace but not intersect: leave native_window at "replace"',
        )


def _select(model: PreTrainedModel) -> None:
    """Select attention by the pattern. Raises ConfigurationError for a model that keeps its own."""
    model.config._attn_implementation = "eager"
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise ConfigurationError(
            "own-attention",
            f"{type(model).__name__} computes attention itself, not through the AttentionInterface of transformers;"
            " it cannot take a pattern",
        )


def _prepare(model: PreTrainedModel, modules: list[Any]) -> None:
    spare_caches(model)
    check_masks(model)
    if any(trees_of(rule) for rule in read_patterns(model.config.asterism_pattern, len(modules))):
        check_depths(model)
    has_own = read_native_window(model.config) == INCLUDED
    set_places(modules, native_locals(model, modules) if has_own else None, is_causal(model, modules))
    install_sharding(model)
    for module in modules:
        install_hooks(module)
