"""From a model whose layers follow windows to a folder that transformers reads as a class of its own.

The weights are the same tensors, mostly under the same names; the windows become fields of the configuration. The
output appears whole or not at all, and only after it has computed the logits of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import save_torch_state_dict
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asterism.errors import CheckpointError, ConfigurationError, nearest
from asterism.files import DAMAGED, LOCAL, check_model_folder, replacing, why_unread
from asterism.models.drop_in.layers import followed
from asterism.models.drop_in.named import configuration_in, model_class_of, without_weights
from asterism.models.drop_in.native import mentions_native, native_locals, patterns_of
from asterism.models.drop_in.places import find_attention, is_causal
from asterism.models.drop_in.use_pattern import use_pattern
from asterism.models.exporting.check import Checked, compare, dtype_for, expected, inputs_for
from asterism.models.exporting.families import FAMILIES, Family, refusals, targets_of
from asterism.models.exporting.ours import FAMILY, as_llama, llama_tensors
from asterism.models.exporting.tokens import token_files
from asterism.models.importing.source import read_generation, read_weights
from asterism.patterns import Pattern
from asterism.patterns.sides import sides_of

_HEADS = ("ForCausalLM", "ForMaskedLM", "ForTokenClassification", "Model")
"""Ends of the names of classes that are exported: those that compute something for each token."""

_MOST_TOLD = 4
"""Reasons that a message gives."""

_OF_TYPE = {True: "sliding_attention", False: "full_attention"}
"""Types of layers, by whether they have a window."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export.

    source, model   the classes, such as "LlamaForCausalLM" and "MistralForCausalLM"
    patterns        of each layer, first to last
    windows         the fields of the configuration that say them
    tokenizer       its files; none if the model has no tokenizer
    checked         how the logits of the folder compare with those of the model
    """

    folder: str
    source: str
    model: str
    parameters: int
    patterns: list[str]
    windows: dict[str, Any]
    tokenizer: list[str]
    checked: Checked


@dataclass(frozen=True)
class _Source:
    """A model to export.

    kind    name of its class, which begins with `prefix`
    family  the stock family whose words `fields` are, and whose names its tensors get
    bases   rotary parameters of each layer, where the family defines them by the type of a layer
    """

    config: PreTrainedConfig
    kind: str
    family: str
    fields: dict[str, Any]
    prefix: str
    patterns: tuple[Pattern, ...]
    bases: tuple[Any, ...] | None


def export_native(
    path: str | Path, output: str | Path, *, pattern: str | Sequence[str] | None = None, to: str | None = None
) -> Exported:
    """Write the model in the folder `path` to the folder `output` as a class of transformers with windows.

    pattern  pattern of its layers, a schedule, or one text per layer, in place of the model's own windows; "native & P"
             stays within them. By default the pattern that is saved with the model, or else its own windows.
    to       the family to write, such as "mistral"; by default the first that fits of those that compute the same

    The model may be of transformers, or an AsterismForCausalLM that is a Llama but for its pattern. Dtypes of weights
    stay as they are. In a new process without Asterism, transformers loads the folder before it gets its name, and its
    logits must be those of the model: within 1e-5 of the largest, by eager attention and by SDPA.

    Raises ConfigurationError for what a stock configuration cannot say, layer by layer; PatternError for a pattern that
    cannot be read or used; CheckpointError for folders that are missing, damaged or taken, and where logits differ.
    """
    path, output = Path(path), Path(output)
    _refuse_taken(path, output)
    check_model_folder(path)
    source = _describe(path, configuration_in(path), pattern)
    target = _choose(source, to)
    config = _configuration(source, target)
    kind = _class_name(source, config)
    window = max(sides.left or 0 for one in source.patterns if (sides := sides_of(one)) is not None)
    wanted, inputs, parameters = _run(path, source, pattern, window)
    tokenizer = token_files(path, target)
    with replacing(output) as temporary:
        _write(path, source, config, temporary)
        for name, content in tokenizer.items():
            (temporary / name).write_bytes(content)
        checked = compare(temporary, kind, inputs, wanted)
    return Exported(
        folder=str(output),
        source=source.kind,
        model=kind,
        parameters=parameters,
        patterns=[str(one) for one in source.patterns],
        windows=_windows(source, target),
        tokenizer=list(tokenizer),
        checked=checked,
    )


def _refuse_taken(path: Path, output: Path) -> None:
    """Raises CheckpointError for what is no folder, and for an output that holds something."""
    if not path.is_dir():
        raise CheckpointError("not-a-model-folder", f"{path} is not a folder; give one with config.json and weights")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise CheckpointError(
            "output-not-empty", f"{output} exists and is not an empty folder; choose another one for the export"
        )


def _describe(path: Path, config: PreTrainedConfig, pattern: str | Sequence[str] | None) -> _Source:
    """What is exported. Raises ConfigurationError for a model of a kind that is not."""
    kind = model_class_of(config).__name__
    refuse_quantised(config)
    if config.model_type == FAMILY:
        if pattern is not None:
            raise ConfigurationError(
                "pattern-of-run",
                "the layers of an Asterism model were trained with its own pattern; leave --pattern out",
            )
        llama = as_llama(config, kind)
        return _Source(config, kind, "llama", llama, "Asterism", tuple(config.layer_patterns()), None)
    if not kind.endswith(_HEADS):
        raise ConfigurationError(
            "head-not-exported", f"{kind} is not exported; classes that end in {', '.join(_HEADS)} are"
        )
    targets = targets_of(config.model_type)
    if not targets:
        raise ConfigurationError(
            "family-not-exported",
            f"{kind}: no stock configuration is known that holds windows for the weights of {config.model_type}; known"
            f" are those of llama, olmo2, {', '.join(FAMILIES)}",
        )
    if getattr(config, "is_heterogeneous", False):
        raise ConfigurationError(
            "layers-configured-apart", f"{path} has fields for single layers (per_layer_config), which are not exported"
        )
    model = without_weights(config)
    if pattern is not None:
        give(model, pattern)
    modules = find_attention(model)
    own = patterns_of(native_locals(model, modules), is_causal(model, modules))
    if model.config.asterism_pattern is not None:
        own = tuple(one for one in followed(model, own)[0] if one is not None)
    fields = {name: value for name, value in config.to_dict().items() if not name.startswith("asterism_")}
    bases = None
    if config.model_type in FAMILIES and FAMILIES[config.model_type].base_by_type:
        bases = tuple(config.rope_parameters[kind] for kind in config.layer_types)
    return _Source(config, kind, config.model_type, fields, _prefix(config), own, bases)


def refuse_quantised(config: PreTrainedConfig) -> None:
    """Raises ConfigurationError for weights that another library packed."""
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigurationError(
            "quantised-weights",
            "the model is quantised (quantization_config); export the weights that it was made from",
        )


def give(model: PreTrainedModel, pattern: str | Sequence[str]) -> None:
    """Give a model a pattern, which takes the place of its own windows unless it names them."""
    use_pattern(model, pattern, native_window=None if mentions_native(pattern) else "replace")


def _choose(source: _Source, to: str | None) -> str:
    """The family to write. Raises ConfigurationError, layer by layer, where none fits."""
    targets = targets_of(source.family)
    if to is not None and to not in targets:
        raise ConfigurationError(
            "target-unfit",
            f"{source.kind} cannot be written as {to}; it can be as {', '.join(targets)}.{nearest(to, targets)}",
        )
    sides = [sides_of(one) for one in source.patterns]
    if all(one is not None and one.left is None for one in sides):
        raise ConfigurationError(
            "no-windows",
            f"every layer of {source.kind} reads {source.patterns[0]}, so there is no window to write; give --pattern",
        )
    tried = [to] if to is not None else list(targets)
    found = {target: _refused(source, target) for target in tried}
    for target, refused in found.items():
        if not refused:
            return target
    best = min(found, key=lambda target: len(found[target]))
    raise ConfigurationError("schedule-unfit", _told(source, found[best]))


def _told(source: _Source, refused: Mapping[int, str]) -> str:
    """Refusals in one line, those of layers with equal patterns together."""
    alike: dict[str, list[int]] = {}
    for number, reason in refused.items():
        text = reason if number < 0 else f"{source.patterns[number]}: {reason}"
        alike.setdefault(text, []).append(number)
    parts = []
    for text, numbers in list(alike.items())[:_MOST_TOLD]:
        layers = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: "
        parts.append(text if numbers[0] < 0 else layers + text)
    more = f"; and {len(alike) - _MOST_TOLD} other reasons" if len(alike) > _MOST_TOLD else ""
    return "; ".join(parts) + more


def _refused(source: _Source, target: str) -> dict[int, str]:
    """Why a family does not fit, by layer, or by -1 for what is not of a layer."""
    family = FAMILIES[target]
    found = refusals(source.patterns, target)
    biased = [name for name in ("attention_bias", "mlp_bias") if source.fields.get(name)]
    if biased and not family.biases:
        found[-1] = f"{target} has no biases in its projections ({biased[0]} of {source.kind})"
    if family.base_by_type and source.bases is not None and not found:
        found |= _bases_unfit(source, source.bases)
    return found


def _bases_unfit(source: _Source, bases: Sequence[Any]) -> dict[int, str]:
    """Layers whose rotary positions would change with their type."""
    first: dict[bool, Any] = {}
    found = {}
    for number, (has_window, base) in enumerate(zip(_has_window(source), bases, strict=True)):
        if first.setdefault(has_window, base) != base:
            what = "with a window" if has_window else "without a window"
            found[number] = (
                f"its rotary positions ({_theta(base)}) are not those of other layers {what}"
                f" ({_theta(first[has_window])}), and {source.family} defines them by the type of a layer"
            )
    return found


def _theta(base: Any) -> str:
    return f"base {base['rope_theta']:g}" if base["rope_type"] == "default" else f"{base}"


def _has_window(source: _Source) -> list[bool]:
    return [(sides := sides_of(one)) is not None and sides.left is not None for one in source.patterns]


def _windows(source: _Source, target: str) -> dict[str, Any]:
    """The fields of a configuration that say the windows of a schedule which fits."""
    family: Family = FAMILIES[target]
    left = next(
        sides.left for one in source.patterns if (sides := sides_of(one)) is not None and sides.left is not None
    )
    found = {**family.always, family.width: family.width_of(left)}
    if family.by_layer:
        found["layer_types"] = [_OF_TYPE[has] for has in _has_window(source)]
    return found


def _configuration(source: _Source, target: str) -> PreTrainedConfig:
    """The configuration that is written."""
    kind = CONFIG_MAPPING[target]
    ours = dict(source.fields)
    ours.pop("sliding_window", None)  # where another field says the width, it would contradict it
    if target != source.family:
        known = {one.name for one in fields(kind)} | {"head_dim"}
        ours = {name: value for name, value in ours.items() if name in known}
    ours |= _windows(source, target)
    if FAMILIES[target].base_by_type:
        bases = source.bases or [source.fields["rope_parameters"]] * len(source.patterns)
        ours["rope_parameters"] = {
            _OF_TYPE[has]: dict(base) for has, base in zip(_has_window(source), bases, strict=True)
        }
    if target == "smollm3" and source.family != target:
        ours["no_rope_layers"] = [1] * len(source.patterns)
    try:
        config = kind.from_dict(ours)
    except DAMAGED as error:
        raise ConfigurationError(
            "stock-configuration-refused", f"{kind.__name__} refuses the model's fields: {why_unread(error)}"
        ) from error
    config.architectures = [_class_name(source, config)]
    return config


def _class_name(source: _Source, config: PreTrainedConfig) -> str:
    """The class of transformers that computes the export. Raises ConfigurationError where there is none."""
    prefix = source.prefix if type(config) is type(source.config) else _prefix(config)
    name = prefix + source.kind.removeprefix(source.prefix)
    if not hasattr(transformers, name):
        raise ConfigurationError("no-stock-class", f"transformers has no class {name} for a {source.kind}")
    return name


def _prefix(config: PreTrainedConfig) -> str:
    """
    >>> _prefix(transformers.Gemma3TextConfig())
    'Gemma3'
    """
    kind = model_class_of(type(config)()).__name__
    return next(kind.removesuffix(head) for head in _HEADS if kind.endswith(head))


def _run(
    path: Path, source: _Source, pattern: str | Sequence[str] | None, window: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """The logits that the export must have, for which inputs, and the number of parameters."""
    kind = model_class_of(source.config)
    parameters = sum(one.numel() for one in without_weights(source.config).parameters())
    dtype = dtype_for(parameters)
    try:
        model = kind.from_pretrained(path, **LOCAL, dtype=dtype)
    except (OSError, RuntimeError, *DAMAGED) as error:
        raise CheckpointError("unreadable-model", f"{path} cannot be read: {why_unread(error)}") from error
    if pattern is not None:
        give(model, pattern)
    elif source.config.model_type != FAMILY and model.config.asterism_pattern is None:
        use_pattern(model, "native")
    inputs = inputs_for(source.config.vocab_size, window, source.config.pad_token_id or 0)
    return expected(model, inputs), inputs, parameters


def _write(path: Path, source: _Source, config: PreTrainedConfig, folder: Path) -> None:
    """Write configuration, weights and settings of generation."""
    tensors: Mapping[str, torch.Tensor] = read_weights(path, allow_pickle=False)
    if source.config.model_type == FAMILY:
        tensors = llama_tensors(tensors)
    config.dtype = source.config.dtype
    config.save_pretrained(folder)
    save_torch_state_dict(dict(tensors), str(folder), safe_serialization=True)
    if (path / "generation_config.json").exists():
        read_generation(path, source.config).save_pretrained(folder)
