"""Adapters of low rank, by PEFT: put on a base model, stored without it, and merged into it.

A run with an adapter stores PEFT's own files, adapter_config.json and adapter_model.safetensors. They hold the pattern
of the model, and the SHA-256 of the base weights. The base stays where it was, and is read from there again.
"""

import hashlib
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from asterism.errors import CheckpointError, ConfigurationError
from asterism.files import read_json
from asterism.models.drop_in.adapters import BASE_FIELD
from asterism.presence import require_package
from asterism.system import sha256_of
from asterism.training.settings.lora import ALL, Lora

WEIGHTS = "adapter_model.safetensors"
CONFIGURATION = "adapter_config.json"
_NAME = "default"
"""The name that transformers gives to the one adapter of a model."""


def require_peft() -> None:
    """Raise ConfigurationError if PEFT is not installed."""
    require_package("peft", "peft", "lora", "an adapter")


def add_adapter(model: PreTrainedModel, lora: Lora, base: Path) -> None:
    """Put a new adapter on a model with the weights in the folder `base`; from now on only the adapter learns.

    A is drawn from torch's global generator, and B is 0. Raises ConfigurationError for layers that the model lacks.
    """
    require_peft()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft

    config: Any = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.scale,  # type: ignore[arg-type]  # PEFT takes any number
        lora_dropout=lora.dropout,
        target_modules=ALL if lora.targets == ALL else lora.layers,
    )
    vars(config)[BASE_FIELD] = digest_of(base)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT tells what it adapts itself to, such as the layers of GPT-2
            model.add_adapter(config)
        config.target_modules = sorted(config.target_modules)  # PEFT has a set, whose order differs in each process
    except ValueError as error:
        raise ConfigurationError(
            "lora-targets", f"lora: targets={lora.targets!r} fit no layer: {' '.join(str(error).split())[:200]}"
        ) from error


def has_adapter(model: nn.Module) -> bool:
    """Whether an adapter was put on the model."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def adapter_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters of the model's adapter, by their names in its file."""
    return {_name_in_file(name): one for name, one in model.named_parameters() if one.requires_grad}


def _name_in_file(name: str) -> str:
    return f"base_model.model.{name.replace(f'.{_NAME}.', '.')}"


def name_in_model(name: str) -> str:
    """The name of an adapter's tensor in the model's `state_dict`."""
    path, _, last = name.removeprefix("base_model.model.").rpartition(".")
    return f"{path}.{_NAME}.{last}"


def refuse_other_base(folder: Path, model: PreTrainedModel) -> None:
    """Raise CheckpointError if the adapter in a folder was trained on other weights than those of the model."""
    document = read_json(folder / CONFIGURATION)
    configs: Any = model.peft_config
    if not isinstance(document, dict) or document.get(BASE_FIELD) != vars(configs[_NAME])[BASE_FIELD]:
        raise CheckpointError(
            "adapter-of-other-base",
            f"{folder / CONFIGURATION}: the adapter was trained on another base than the weights in"
            f" {configs[_NAME].base_model_name_or_path} (their SHA-256 differs); put the base of the run back there",
        )


def save_beside_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Write the configurations of the model, which transformers leaves out next to an adapter."""
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def merge_adapter(model: PreTrainedModel) -> None:
    """Add the adapter to the weights of its base, in place; the model is then one without an adapter.

    Raises CheckpointError for a sum that is not finite.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            try:
                layer.merge(safe_merge=True)
            except ValueError as error:
                raise CheckpointError(
                    "weights-not-finite", f"merging {name} gives weights that are not finite"
                ) from error
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, layer.get_base_layer())
    model._hf_peft_config_loaded = False
    del model.peft_config


def digest_of(folder: Path) -> str:
    """The SHA-256 of all weights in a model folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + sha256_of(path))
    return digest.hexdigest()
