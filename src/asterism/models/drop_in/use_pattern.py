"""Give a model of transformers a pattern, and take it away again."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar

from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.drop_in.cache import install_hooks
from asterism.models.drop_in.field import (
    IMPLEMENTATION,
    NativeWindow,
    read_native_window,
    read_patterns,
    write_native_window,
    write_patterns,
)
from asterism.patterns import Pattern, Schedule, require_causal

Model = TypeVar("Model", bound=PreTrainedModel)


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
) -> Model:
    """Let a pattern say who reads whom in a model of transformers: Llama, Qwen, Mistral, GPT-2, BERT, ModernBERT, ...

        model = use_pattern(AutoModelForCausalLM.from_pretrained(path), "window(left=1023) | sinks()")

    The model is changed in place and returned. `pattern` is a Pattern, a Schedule, the text of one (such as
    "interleave(a, b)"), or a list with one pattern per layer. Left out, it is the one that the configuration names;
    None removes the pattern, as `drop_pattern` does.

    - The weights stay as they are; only the mask changes: the pattern says who reads whom, in every layer.
    - That holds for layers with a window of their own, too (Mistral; five of six layers of Gemma 3): by default,
      `native_window="replace"`, the pattern takes its place, so that `sinks(4, 508)` reads the sinks. With
      `native_window="intersect"` a query reads what both the pattern and the window allow: what was trained on short
      distances keeps them, and nothing beyond the window is read. The choice is saved with the pattern.
    - Causal models need a pattern that is causal and prefix-stable; encoders take any.
    - To the pattern, positions count the real tokens of a row, whatever side padding is on. A pattern that depends on
      the length, such as `bigbird`, is laid over each row's own length. So padding changes no real token, unless the
      model's own positions do: with padding on the left, models with absolute positions (GPT-2, BERT) count it unless
      `position_ids` say where the real tokens stand, as `generate` does.
    - `generate` and `use_cache=True` keep only the keys that the pattern can still read.
    - `save_pretrained` writes the pattern to config.json. After `import asterism.models`, `from_pretrained` of
      transformers gives the model with its pattern; without that import transformers refuses to build the model. The
      cache of a model that was restored so keeps every key, until `use_pattern(model)` is called: then it forgets.
    - A call with `attn_implementation` or `set_attn_implementation` still selects another attention, for comparison.

    Raises PatternError for a pattern that the model cannot use and ConfigurationError for a model that cannot follow
    one; nothing has changed then. Later calls raise ConfigurationError for what a pattern does not say and kernels do
    not know: attention dropout in training, masks [batch, heads, queries, keys], packed sequences, soft-capped scores,
    attention sinks, position biases, cross-attention, attention weights as an output, and caches of other kinds.
    """
    if pattern is None:
        return drop_pattern(model)
    config = _check_model(model)
    modules = _attention_modules(model)
    before = dict(vars(config))
    try:
        if pattern is not _AsConfigured.AS_CONFIGURED:
            config.asterism_pattern = write_patterns(pattern)
            write_native_window(config, "replace")
        if native_window is not None:
            write_native_window(config, native_window)
        read_native_window(config)
        for module, rule in zip(modules, read_patterns(config.asterism_pattern, len(modules)), strict=True):
            rule.check_heads(config.num_attention_heads)
            if module.is_causal and getattr(config, "is_causal", True):
                require_causal(rule)
        config._attn_implementation = "eager"
        model.set_attn_implementation(IMPLEMENTATION)
        if config._attn_implementation != IMPLEMENTATION:
            raise ConfigurationError(
                f"{type(model).__name__} computes attention itself, not through the AttentionInterface of transformers;"
                " no pattern can be given to it"
            )
    except Exception:
        vars(config).clear()
        vars(config).update(before)
        raise
    for module in modules:
        install_hooks(module)
    return model


def drop_pattern(model: Model) -> Model:
    """Undo `use_pattern`: attention is dense again, by transformers' default implementation. Returns the model."""
    model.config.asterism_pattern = None
    model.set_attn_implementation(model.get_correct_attn_implementation(None, is_init_check=True))
    return model


def _check_model(model: PreTrainedModel) -> PreTrainedConfig:
    """The model's configuration; ConfigurationError for kinds of models that no pattern fits."""
    if not isinstance(model, PreTrainedModel):
        raise ConfigurationError(
            f"use_pattern needs a model of transformers (PreTrainedModel), got a {type(model).__name__};"
            " give it the model inside"
        )
    config = model.config
    parts = [name for name in config.sub_configs if getattr(config, name, None) is not None]
    for name, meaning in (
        *((name, "is made of several models") for name in parts),
        ("is_encoder_decoder", "is an encoder with a decoder"),
        ("add_cross_attention", "has cross-attention"),
        ("attention_chunk_size", "attends in chunks"),
        ("num_kv_shared_layers", "shares keys between layers"),
    ):
        if getattr(config, name, None):
            raise ConfigurationError(
                f"{type(model).__name__} {meaning} ({name} in its configuration);"
                " use_pattern takes models of one stack of layers of self-attention"
            )
    return config


def _attention_modules(model: PreTrainedModel) -> list[Any]:
    """The attention of each layer, first to last; ConfigurationError unless there is one for each."""
    parts: Iterator[Any] = model.modules()
    modules: dict[int, Any] = {
        module.layer_idx: module
        for module in parts
        if isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "is_causal")
    }
    layers = model.config.num_hidden_layers
    if sorted(modules) != list(range(layers)) or any(m.config is not model.config for m in modules.values()):
        raise ConfigurationError(
            f"{type(model).__name__} has {layers} layers, and attention that knows its layer (layer_idx, is_causal)"
            f" was found in {sorted(modules) or 'none'}; use_pattern needs it in each"
        )
    return [modules[number] for number in range(layers)]
