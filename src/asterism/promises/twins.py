"""Small models with the rule of large ones: the same types of layers, small windows, random weights.

Windows are checked in rows that are longer than they are. A rule shows as well in a window of 5 tokens as in one of
4,096, so a model for which no weights are needed is made small from its configuration.
"""

import inspect
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from asterism.errors import CheckpointError, ConfigurationError, nearest
from asterism.promises.verdicts import first_line
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated

_LAYERS = 6
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim", "encoder_hidden_size")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "encoder_ffn_dim", "ffn_hidden_size")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SIZES: dict[str, Any] = {
    **dict.fromkeys(_WIDTHS, 32),
    **dict.fromkeys(_DEPTHS, _LAYERS),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_INNER, 48),
    **dict.fromkeys(_LENGTHS, 128),
    **dict.fromkeys(_EXPERTS, 4),
    **{"vocab_size": 48, "vocab_size_per_layer_input": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"cls_token_id": 1, "sep_token_id": 2, "decoder_start_token_id": 1},
    **{"num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8, "d_kv": 8, "embedding_size": 16},
    **{"moe_intermediate_size": 16, "intermediate_size_mlp": 48, "shared_expert_intermediate_size": 16},
    **{"num_experts_per_tok": 2, "moe_k": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    **{"first_k_dense_replace": 1, "rotary_dim": 4, "rope_dim": 4, "image_size": 8, "patch_size": 2},
    **{"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    **{"qk_head_dim": 8, "num_mel_bins": 8, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8},
}
"""Fields that say how large a model is, where a configuration has them."""

_WINDOWS = {"sliding_window": 5, "local_attention": 8, "attention_chunk_size": 8, "window_size": 5}
"""Fields that say how far layers read. ModernBERT's counts both sides."""

_SWITCHES = {"use_sliding_window": True, "max_window_layers": 2, "global_attn_every_n_layers": 3}
"""What switches windows on in the default configurations of classes."""

_OPTIONAL = frozenset((*_WINDOWS, "rotary_dim", "q_lora_rank", "num_kv_shared_layers", "hidden_size_per_layer_input"))
"""Fields of which None or 0 means that a model does without."""

_TURNS = ["sliding_attention", "full_attention"] * (_LAYERS // 2)
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("laguna", "mellum", "step3p5"), {"layer_types": _TURNS}),
    "cohere_compass_text": {"layer_types": _TURNS, "rope_parameters": dict.fromkeys(_TURNS, _ROPE)},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2},
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "embedding_gemma2_text"), {"global_head_dim": 8}),
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}},
    ),
    "neomme": {"hidden_size": 64, "head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], _LAYERS // 2]]},
}
"""What single families need."""

_LATENT = {"num_key_value_heads": 4, "head_dim": 4}
"""Where keys come from a latent vector, every head has its own."""

_ROTARY_SECTIONS = [2, 1, 1]
"""Pairs of features of a head of 8 for the three positions of Qwen-VL."""


class Twin(NamedTuple):
    """A small model, and what it has in place of the original's fields, in words."""

    model: PreTrainedModel
    notes: tuple[str, ...]


def small_model(name: str) -> Twin:
    """A small model in evaluation mode, by the name of a class of transformers or the folder of a model.

    Raises CheckpointError for a folder without a configuration, and ConfigurationError for a name that is no class, or
    a class that cannot be built small.
    """
    kind, config = _of_folder(Path(name)) if Path(name).is_dir() else (class_named(name), None)
    config_kind = kind.config_class if config is None else type(config)
    with quiet_transformers(), warnings.catch_warnings(), isolated(0):
        warnings.simplefilter("ignore")
        try:
            fields = _small(config_kind, config)
            model = kind(config_kind(**fields))
            _randomise(model)
        except Exception as error:
            raise ConfigurationError(
                "no-small-model",
                f"cannot build a small {kind.__name__} ({first_line(error)}); build one and call"
                " asterism.promises.check_windows(model)",
            ) from error
    return Twin(model.eval(), tuple(_notes(kind, model.config, config)))


def whole_model(folder: str) -> Twin:
    """The model of a folder with its own weights and windows. Raises CheckpointError where it cannot be loaded."""
    kind, _ = _of_folder(Path(folder))
    with quiet_transformers():
        try:
            model = kind.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise CheckpointError("not-a-model-folder", f"{folder} cannot be loaded: {first_line(error)}") from error
    return Twin(model.eval(), ("with its own weights and windows",))


def class_named(name: str) -> type[PreTrainedModel]:
    """The class of transformers with a name. Raises ConfigurationError if there is no such model."""
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel) and found.config_class is not None):
        known = [one for one in dir(transformers) if one.endswith(("Model", "LM"))]
        raise ConfigurationError(
            "no-such-model",
            f"transformers {transformers.__version__} has no model class {name!r}.{nearest(name, known)}",
        )
    return found


def _of_folder(folder: Path) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """The class and the configuration of a model in a folder; no code of the folder runs."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            "not-a-model-folder", f"{folder}: its config.json cannot be read: {line[:160]}"
        ) from error
    names = getattr(config, "architectures", None) or []
    if not names:
        raise ConfigurationError(
            "no-architecture", f"{folder}: config.json names no class of a model (architectures); add it"
        )
    return class_named(names[0]), config


def _small(kind: type[PreTrainedConfig], given: PreTrainedConfig | None) -> dict[str, Any]:
    """Fields of a small configuration: those that were given, or else the defaults with all windows on."""
    reference = _default(kind) if given is None else given
    known = set(inspect.signature(kind.__init__).parameters) | set(vars(reference) if reference is not None else ())
    renamed = getattr(kind, "attribute_map", {})
    fields = _kept(given) if given is not None else {}
    sizes = _SIZES | _WINDOWS | (_SWITCHES if given is None else {})
    for name, value in sizes.items():
        if name not in known | set(renamed) or (name in renamed and renamed[name] in sizes):
            continue
        own = _value(reference, name)
        is_off = name in _OPTIONAL and not own and (given is not None or name not in _WINDOWS)
        if not is_off and not (given is not None and name in _WINDOWS and own <= value):
            fields[name] = value
    if "kv_lora_rank" in known:
        fields |= {name: value for name, value in _LATENT.items() if name in fields}
    if given is not None:
        _shorten(fields, given)
    else:
        fields |= _FAMILIES.get(kind.model_type, {})
    for name, part in getattr(kind, "sub_configs", {}).items():
        own = getattr(reference, name, None)
        if reference is None or own is not None:
            real = type(own) if own is not None else part
            if real.__name__ != "AutoConfig":
                fields[name] = _small(real, own if given is not None else None)
                fields[name] |= {"model_type": real.model_type} if real.model_type else {}
    return fields


def _value(config: Any, name: str) -> Any:
    """A field; None where there is none, or another one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def _default(kind: type[PreTrainedConfig]) -> PreTrainedConfig | None:
    try:
        return kind()
    except Exception:
        return None  # it needs fields of its own, which the sizes may be


def _kept(given: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a configuration without what speaks of its file, weights or parts."""
    dropped = {"architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path"}
    dropped |= {"quantization_config", *getattr(type(given), "sub_configs", {})}
    return {name: value for name, value in given.to_dict().items() if name not in dropped and name[0] != "_"}


def _shorten(fields: dict[str, Any], given: PreTrainedConfig) -> None:
    """As many layers as show every type, in lists of one entry per layer, and rotations for small heads."""
    layers = getattr(given, "num_hidden_layers", None)
    types = getattr(given, "layer_types", None) or getattr(given, "attention_layers", None) or ["all"]
    fewest = max(min(2, layers or 2), 1 + max(list(types).index(kind) for kind in set(types)))
    for name, value in fields.items():
        if isinstance(value, list | tuple) and layers and len(value) == layers:
            fields[name] = list(value)[:fewest]
        elif name in _DEPTHS:
            fields[name] = fewest
    rotary = fields.get("rope_parameters")
    for part in (rotary, *rotary.values()) if isinstance(rotary, dict) else ():
        if isinstance(part, dict):
            for name, value in part.items():
                if isinstance(value, list):
                    part[name] = _ROTARY_SECTIONS if name == "mrope_section" else value[:4]


def _randomise(model: nn.Module) -> None:
    """Weights large enough that every token matters, and experts that compute in every dtype."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.2, generator=generator)


def _notes(kind: type, small: Any, given: PreTrainedConfig | None) -> list[str]:
    """What the small model has, and what the original had."""
    text, original = small.get_text_config(), None if given is None else given.get_text_config()
    notes = [f"a small {kind.__name__} of {text.num_hidden_layers} layers with random weights"]
    for name in _WINDOWS:
        now, before = _value(text, name), _value(original, name)
        if type(now) is int and (original is None or now != before):
            notes.append(f"{name} is {now}" + (f" in place of {before:,}" if type(before) is int else ""))
    return notes
