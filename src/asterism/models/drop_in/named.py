"""A model of transformers by its folder or by its name, without its weights: a configuration, and modules on "meta"."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, nearest, shown
from asterism.files import DAMAGED, LOCAL, read_json, why_unread
from asterism.memory import least_model_memory, shortage

_KINDS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_MAPPING,
)
"""Where the class of a model is looked for first that its configuration does not name."""


def is_name(text: str) -> bool:
    """Whether a text is the name of a class or a family of transformers, such as "mistral" or "MistralConfig"."""
    return _family(text) is not None


def configuration_in(folder: Path) -> PreTrainedConfig:
    """The configuration in a folder. Its weights are not read, and code in the folder is not run.

    Raises CheckpointError for a folder without one, for a damaged one, and for a family that transformers lacks.
    """
    if not (folder / "config.json").exists():
        raise CheckpointError("not-a-model-folder", f"{folder} is not the folder of a model: it has no config.json")
    read_json(folder / "config.json")
    try:
        return AutoConfig.from_pretrained(folder, **LOCAL)
    except (OSError, *DAMAGED) as error:
        raise CheckpointError(
            "damaged-configuration", f"{folder / 'config.json'} cannot be read: {why_unread(error)}"
        ) from error


def configuration_named(text: str) -> PreTrainedConfig:
    """The default configuration of a class or a family. Raises ConfigurationError for another name."""
    family = _family(text)
    if family is None:
        raise ConfigurationError(
            "unknown-model",
            f"{shown(text)} is neither a folder nor a class or family of transformers." + nearest(text, CONFIG_MAPPING),
        )
    try:
        return CONFIG_MAPPING[family]()
    except Exception as error:  # some have no defaults, each fails in its own way
        raise ConfigurationError(
            "no-default-configuration", f"{text} has no default configuration: {why_unread(error)}; give a folder"
        ) from error


def model_class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that a configuration names, or else that of its family that predicts tokens.

    Raises ConfigurationError where neither is there.
    """
    registered = list(_registered(type(config)))
    for name in getattr(config, "architectures", None) or ():
        found: Any = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, PreTrainedModel) and found.config_class is type(config):
            return found
        # A class of ours is only registered; a MistralForCausalLM with types of layers is a MinistralForCausalLM.
        _, of, head = str(name).rpartition("For")
        if of and (alike := [kind for kind in registered if kind.__name__.endswith(of + head)]):
            return alike[0]
    if registered:
        return registered[0]
    raise ConfigurationError(
        "no-model-class", f"transformers has no class of models for {type(config).__name__}; give one that has one"
    )


def _registered(kind: type[PreTrainedConfig]) -> Iterator[type[PreTrainedModel]]:
    """The classes of a family that the Auto classes name; those that predict tokens come first."""
    others = (mapping for name, mapping in vars(modeling_auto).items() if name.endswith("_MAPPING"))
    for mapping in (*_KINDS, *others):
        if kind in mapping:
            try:
                classes: Any = mapping[kind]
            except ValueError:  # a class that transformers names and does not have
                continue
            yield from classes if isinstance(classes, tuple) else (classes,)


def without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    """The modules of a model, whose tensors have shapes and no numbers.

    Raises ConfigurationError for a configuration of which no model can be made.
    """
    layers = getattr(config, "num_hidden_layers", 0)
    layers = layers if isinstance(layers, int) else 0  # some have several stacks
    if reason := shortage(least_model_memory({"num_layers": layers}), f"a model of {layers:,} layers"):
        raise ConfigurationError("field-refused", reason)
    kind = model_class_of(config)
    try:
        with torch.device("meta"):
            return kind(config)
    except AsterismError:
        raise
    except Exception as error:  # what a field that does not fit the others leads to depends on the family
        raise ConfigurationError(
            "no-such-model", f"no {kind.__name__} can be made of this configuration: {why_unread(error)}"
        ) from error


def _family(text: str) -> str | None:
    """The `model_type` that a name stands for."""
    for name in (text, text.replace("-", "_"), text.replace("_", "-")):
        if name in CONFIG_MAPPING:
            return name
    found: Any = getattr(transformers, text, None) if text.isidentifier() and text[:1].isupper() else None
    family = getattr(getattr(found, "config_class", found), "model_type", None)
    return family if family in CONFIG_MAPPING else None
