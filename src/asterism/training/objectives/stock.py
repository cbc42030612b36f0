"""Causal models of transformers' own classes, from a folder: whole, without pickle, and by a pattern."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.files import DAMAGED, LOCAL, why_unread
from asterism.models import use_pattern
from asterism.models.cache.naming import cache_in
from asterism.models.drop_in.places import find_attention, is_causal
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated
from asterism.training.objectives.footprint import require_memory_to_load
from asterism.training.tasks.models import ends, longest


def load_causal(
    folder: Path, dtype: str | torch.dtype, shape: PreTrainedConfig | None = None, what: str = ""
) -> PreTrainedModel:
    """Load the causal model in a folder, with weights of this dtype ("auto": those of the folder).

    `shape` replaces its configuration. Raises CheckpointError for a folder without a whole model in safetensors, and
    ConfigurationError for one that reads the future; `what` begins messages.
    """
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            "safetensors-missing", f"{what}{folder} holds no weights as safetensors; no other format is read"
        )
    require_memory_to_load(folder, what)
    with isolated(0), quiet_transformers(), readable(folder, what):
        config = causal_shape(folder, what) if shape is None else shape
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, **LOCAL, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
    model: PreTrainedModel = loaded[0]
    _refuse_incomplete(folder, model, loaded[1], what)
    return model


def causal_shape(folder: Path, what: str = "", **changes: Any) -> PreTrainedConfig:
    """The configuration of the causal model in a folder. Raises as `load_causal` does."""
    with readable(folder, what):
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL, **changes)
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise ConfigurationError(
            "model-not-causal",
            f"{what}{folder} holds a {config.model_type} model, which reads the future; give a causal one",
        )
    return config


def followed_shape(folder: Path, pattern: str | None, context: int, what: str) -> PreTrainedConfig:
    """The configuration of a causal model that follows a pattern, for weights in float32: by default the one saved with
    it, or that of its own windows ("native"), or "causal()".

    Raises what `use_pattern` raises, and ConfigurationError for a model that reads fewer tokens than `context`.
    """
    config = causal_shape(folder, what, dtype="float32")
    with readable(folder, what), torch.device("meta"), quiet_transformers():
        model = AutoModelForCausalLM.from_config(config)
    follow(model, pattern)
    most = longest(config)
    if ends(config) and most is not None and most < context:
        raise ConfigurationError(
            "context-beyond-model",
            f"{what}{folder} reads {most:,} tokens, too few for context={context:,}; give a shorter context",
        )
    shape: PreTrainedConfig = model.config
    return shape


def follow(model: PreTrainedModel, pattern: str | None) -> None:
    """Give a model of transformers the pattern, or else that of its configuration, its windows, or all pairs."""
    if pattern is not None:
        use_pattern(model, pattern)
        return
    try:
        use_pattern(model)
    except ConfigurationError as error:
        if error.code != "no-native-pattern":
            raise
        use_pattern(model, "causal()" if is_causal(model, find_attention(model)) else "dense()")


def new_causal(shape: PreTrainedConfig) -> PreTrainedModel:
    """A model of this configuration with new weights, in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    return model


def without_cache(model: PreTrainedModel) -> PreTrainedModel:
    """Have a model make no cache unless `generate` asks for one: rows of packed documents cannot be continued."""
    model.register_forward_pre_hook(_make_none, with_kwargs=True)
    return model


def _make_none(
    model: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    silent = named.get("use_cache") is None and cache_in(named) is None
    return (arguments, named | {"use_cache": False}) if silent else None


def _refuse_incomplete(folder: Path, model: PreTrainedModel, found: Mapping[str, Any], what: str) -> None:
    """Raises CheckpointError for weights that are missing, and for those of layers that the configuration leaves out.

    Other weights that a causal model does not read, such as those of another head, are no fault.
    """
    kinds = {_kind(name) for name in model.state_dict()}
    if left := sorted(name for name in found["unexpected_keys"] if _kind(name) in kinds):
        raise CheckpointError(
            "more-weights-than-model",
            f"{what}{folder} has {len(left)} tensors more than its config.json describes, such as {left[0]}",
        )
    missing = sorted([*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])])
    if missing:
        raise CheckpointError(
            "incomplete-weights",
            f"{what}{folder} lacks {len(missing)} tensors of its model, or has them in another shape, such as"
            f" {missing[0]}",
        )


def _kind(name: str) -> str:
    """
    >>> _kind("model.layers.11.mlp.weight")
    'model.layers.*.mlp.weight'
    """
    return re.sub(r"\.\d+(?=\.)", ".*", name)


@contextmanager
def readable(folder: Path, what: str = "") -> Iterator[None]:
    """Within the body, errors of transformers about an unreadable folder become a CheckpointError of one line."""
    try:
        yield
    except AsterismError:
        raise
    except (AssertionError, OSError, ImportError, RuntimeError, SafetensorError, *DAMAGED) as error:
        raise CheckpointError(
            "unreadable-model", f"{what}{folder} holds no readable causal model and tokenizer: {why_unread(error)}"
        ) from error
