"""Estimate the memory of a run and the products with weights in a step, without weights and without training.

Models of a layer or two of each kind are laid out without data: on the meta device for their parameters, on fake
tensors for what the backward pass needs. Layers of one kind are alike, so the rest is arithmetic, and ten million of
them take no longer than two. Nothing here repeats how a layer is built, so nothing here can go out of date with it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedConfig

from asterism.errors import CheckpointError, ConfigurationError
from asterism.files import read_json
from asterism.memory import amount, heaviest_size, least_model_memory, least_token_memory, machine_memory, shortage
from asterism.models import AsterismConfig
from asterism.patterns import Pattern, as_schedule
from asterism.patterns.selected import bounds_of
from asterism.training.run.arithmetic import loss_of, weights_dtype
from asterism.training.run.device import uses_cuda
from asterism.training.run.optimizer import moment_bytes, parameter_groups
from asterism.training.settings.configuration import FineTuneConfig, RunConfig, TrainingConfig

if TYPE_CHECKING:
    from asterism.training.objectives.pretraining import Pretraining

_WEIGHT_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
"""The operations of linear layers; products of two activations are batched."""

_NEARLY_ALL = 0.8
"""The share of a machine's memory above which a run gets a note."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one device, without buffers inside operations, and forward FLOPs of the products with weights."""

    parameters: int
    products: int
    weights: int
    moments: int
    activations: int

    @property
    def gradients(self) -> int:
        """Bytes of the gradients, one for each weight."""
        return self.weights

    @property
    def memory(self) -> int:
        """All memory together."""
        return self.weights + self.gradients + self.moments + self.activations


def require_memory(config: RunConfig, objective: "type[Pretraining[Any]]", shape: PreTrainedConfig) -> list[str]:
    """Notes for a run that needs most of this machine's memory.

    Raises ConfigurationError for a run that needs more than the machine has. In a run of several processes, each counts
    an equal part of everything except the weights, which each process draws. It may need more.
    """
    _require_least(config, vars(shape), config.context)  # which no large number makes slow, or impossible to lay out
    if not isinstance(shape, AsterismConfig) or _ROOM * _about(config, shape) < machine_memory():
        return []  # how models of transformers are built is not known here
    found = footprint(config, objective, shape)
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    needed = found.weights + (found.memory - found.weights) // processes
    there = machine_memory()
    reason = shortage(found.weights, "this run", there)  # they are drawn on the host, whatever the device
    if uses_cuda():
        there = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if reason := reason or shortage(needed, "this run", there):
        parts = {name: getattr(found, name) for name in ("weights", "gradients", "moments", "activations")}
        listed = ", ".join(f"{name} {amount(size, 'B')}" for name, size in parts.items())
        raise ConfigurationError("too-much-memory", f"{reason} ({listed}): {_REMEDY}")
    if needed <= _NEARLY_ALL * there:
        return []
    return [f"a step needs at least {amount(needed, 'B')} of memory, and there are {amount(there, 'B')}"]


def _about(config: RunConfig, shape: AsterismConfig) -> int:
    """A rough estimate of a run's bytes, which shows at once which runs need no closer look."""
    stacks = [shape.num_hidden_layers, shape.num_decoder_layers or 0]
    width = shape.hidden_size + (shape.intermediate_size or 0) + shape.persistent_vectors * shape.num_attention_heads
    vocabulary, layers = shape.vocab_size or 0, sum(stacks)
    weights = (vocabulary + shape.type_vocab_size) * shape.hidden_size + layers * shape.hidden_size * width
    return 4 * (weights + config.micro_batch_size * config.context * (layers * width + vocabulary))


_ROOM = 30
"""The factor by which a run may exceed `_about`; all recipes need 0.1 to 3 times as much."""


def require_memory_to_tune(config: FineTuneConfig, folder: Path) -> None:
    """Raise ConfigurationError if the model in a folder, or its batches, need more memory than the machine has, and
    CheckpointError if it names too many labels to read quickly."""
    document = _document(folder)
    _require_least(config, document, 1)
    _refuse_labels(document, f"model: {folder}")


def require_memory_to_load(folder: Path, what: str) -> None:
    """Raise CheckpointError if the model in a folder needs more memory than the machine has, or has too many labels."""
    document = _document(folder)
    if reason := shortage(least_model_memory(document), f"{what}a model of the sizes in {folder}/config.json"):
        raise CheckpointError("too-much-memory", reason)
    _refuse_labels(document, f"{what}{folder}")


_MOST_LABELS = 2**20
"""The most labels. transformers names missing labels one by one, in two dictionaries; this many take a second."""


def _refuse_labels(document: Mapping[str, object], what: str) -> None:
    """Raises CheckpointError, which begins with `what`, for a configuration with more labels than that."""
    labels = document.get("num_labels")
    if isinstance(labels, int) and labels > _MOST_LABELS:
        raise CheckpointError(
            "too-many-labels",
            f"{what} has num_labels {labels:,} in its config.json, but may have at most {_MOST_LABELS:,}",
        )


def _require_least(config: TrainingConfig, document: Mapping[str, object], tokens: int) -> None:
    """Raises ConfigurationError if weights, their gradients, and rows of so many tokens need more than there is."""
    kept = config.micro_batch_size * least_token_memory(document) + 8 * config.batch_size
    weights = 2 * least_model_memory(document)
    if reason := shortage(weights, "this run"):
        raise ConfigurationError("too-much-memory", f"{reason}, most of it for {heaviest_size(document)}: {_REMEDY}")
    if reason := shortage(weights + kept * tokens, "this run"):
        raise ConfigurationError("too-much-memory", f"{reason}: {_REMEDY}")


def _document(folder: Path) -> Mapping[str, object]:
    """The contents of config.json; empty if it cannot be read, because the code that needs it raises the error."""
    with suppress(CheckpointError):
        document = read_json(folder / "config.json")
        if isinstance(document, dict):
            return document
    return {}


_REMEDY = (
    "make the model, batch_size or context smaller, raise gradient_accumulation_steps, or set gradient_checkpointing"
)


def footprint(config: RunConfig, objective: "type[Pretraining[Any]]", shape: AsterismConfig) -> Footprint:
    """The footprint of a run with the model of this configuration.

    Raises ConfigurationError or PatternError for a model that cannot be built.
    """
    shape.check()
    try:
        parameters, moments = _grown(partial(_parameters, config, objective, shape), shape, shape.tie_encoder_decoder)[
            0
        ]
        whole, outside, largest = _grown(partial(_step, config, objective, shape), shape, False)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise ConfigurationError(
            "too-much-memory", f"this model or batch has tensors of more than 2**63 bytes: {_REMEDY}"
        ) from error
    size = weights_dtype(config.dtype).itemsize
    products, activations = whole
    if config.gradient_checkpointing:
        tokens = shape.num_hidden_layers * (config.context + shape.global_tokens)
        if shape.num_decoder_layers is not None:
            tokens += shape.num_decoder_layers * target_length(config, objective)
        between = size * config.micro_batch_size * tokens * shape.hidden_size
        activations = between + largest[1] + outside[1]
    return Footprint(
        parameters=parameters,
        products=config.gradient_accumulation_steps * products,
        weights=size * parameters,
        moments=moments,
        activations=activations,
    )


def target_length(config: RunConfig, objective: "type[Pretraining[Any]]") -> int:
    """The number of tokens that the decoder of an encoder-decoder reads."""
    return objective.blank_batch(config, 1)["labels"].shape[1]


_Figures = list[int]


def _grown(
    measure: Callable[[list[str], int], _Figures], shape: AsterismConfig, tied: bool
) -> tuple[_Figures, _Figures, _Figures]:
    """Figures of the whole model, of what is outside of its layers, and of its largest layer.

    `measure` gives them for these mixers, one a layer, and so many layers of the decoder, if there is one.
    """
    counts: dict[tuple[bool, bool], tuple[str, int]] = {}
    for mixer, count in shape.mixer_counts().items():
        branches = isinstance(mixer, Pattern) and mixer.chooses and shape.index_dim > 0
        kind = isinstance(mixer, Pattern), branches  # layers differ in nothing else
        text, before = counts.get(kind, (mixer.text, 0))
        counts[kind] = text, before + count
    texts = [text for text, _ in counts.values()]
    least = measure(texts, 1)
    if tied:  # stacks that share weights are equally deep
        kinds = [(_difference(measure(2 * texts, 2), least), shape.num_hidden_layers)]
    else:
        kinds = [(_difference(measure([*texts, text], 1), least), count) for text, count in counts.values()]
        if shape.num_decoder_layers is not None:
            kinds.append((_difference(measure(texts, 2), least), shape.num_decoder_layers))
    outside = least
    for layer, _ in kinds:
        outside = _difference(outside, layer)
    whole = [sum(layer[i] * count for layer, count in kinds) + rest for i, rest in enumerate(outside)]
    return whole, outside, [max(layer[i] for layer, _ in kinds) for i in range(len(least))]


def _difference(one: _Figures, other: _Figures) -> _Figures:
    return [a - b for a, b in zip(one, other, strict=True)]


def _shallow(shape: AsterismConfig, mixers: list[str], decoder_layers: int, **changes: Any) -> AsterismConfig:
    """The same model with these layers alone."""
    changes |= {"mixers": mixers, "num_hidden_layers": len(mixers)}
    if shape.decoder_mixers is not None:
        causal = as_schedule(shape.decoder_mixers).layer(0).text
        across = as_schedule(shape.cross_mixers).layer(0).text
        changes |= {"decoder_mixers": [causal] * decoder_layers, "cross_mixers": [across] * decoder_layers}
        changes |= {"num_decoder_layers": decoder_layers}
    return AsterismConfig(**shape.to_dict() | changes)


def _parameters(
    config: RunConfig,
    objective: "type[Pretraining[Any]]",
    shape: AsterismConfig,
    mixers: list[str],
    decoder_layers: int,
) -> _Figures:
    """The number of parameters, and the bytes that the optimiser keeps for them."""
    with torch.device("meta"):
        model = objective.model_class(config)(_shallow(shape, mixers, decoder_layers))
        model.to(weights_dtype(config.dtype))  # type: ignore[arg-type]  # transformers hides self
    return [model.num_parameters(), moment_bytes(parameter_groups(model, config))]


def _step(
    config: RunConfig,
    objective: "type[Pretraining[Any]]",
    shape: AsterismConfig,
    mixers: list[str],
    decoder_layers: int,
) -> _Figures:
    """FLOPs of products with weights, forward, and bytes of all tensors, other than parameters, that autograd keeps.

    Of one slice of a batch. Sharing weights changes neither figure.
    """
    texts = [_static(text) for text in mixers]
    shallow = _shallow(shape, texts, decoder_layers, adaptive_span=False, tie_encoder_decoder=False, index_dim=0)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with FakeTensorMode():
        network = objective.model_class(config)(shallow)
        for parameter in network.parameters():  # fake tensors cannot be exchanged by `to`
            parameter.data = parameter.data.to(weights_dtype(config.dtype))
        batch = objective.blank_batch(config, config.micro_batch_size)
        with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss_of(network, batch, config.dtype, seed=0)
    products = sum(
        count for operation, count in counter.get_flop_counts()["Global"].items() if operation in _WEIGHT_PRODUCTS
    )
    # Views share a storage, which is kept once.
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in kept}
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    activations = sum(size for storage, size in storages.items() if storage not in own)
    # What an index branch projects: a query and a key of its own for each key head.
    tokens = config.micro_batch_size * (config.context + shape.global_tokens)
    projected = (
        tokens
        * 2
        * shape.num_key_value_heads
        * shape.index_dim
        * sum(a != b for a, b in zip(texts, mixers, strict=True))
    )
    return [
        products + 2 * shape.hidden_size * projected,
        activations + weights_dtype(config.dtype).itemsize * projected,
    ]


def _static(text: str) -> str:
    """A mixer's text, of all that it may read where it chooses: fake tensors have no numbers to choose by."""
    mixer = as_schedule(text).layer(0)
    return bounds_of(mixer).most.text if isinstance(mixer, Pattern) and mixer.chooses else text
