"""What a run will cost, without weights and without training: parameters, FLOPs, memory.

The model is laid out on the meta device, attention is counted by the plans of its patterns, and the products with
weights and what the backward pass needs are found by running models of one and two layers on fake tensors, which have
shapes and no data. Nothing here repeats how a layer is built, so nothing here can go out of date with it.
"""

from collections import Counter
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from asterism.compiler import compile_pattern
from asterism.kernels import matrix_rates
from asterism.models import AsterismConfig
from asterism.patterns import Mixer, Pattern
from asterism.training.objectives import OBJECTIVES
from asterism.training.objectives.pretraining import Pretraining
from asterism.training.run.arithmetic import loss_of, settled, weights_dtype
from asterism.training.run.configuration import RunConfig
from asterism.training.run.optimizer import moment_bytes, parameter_groups


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Costs of a run. A step is one step of the optimiser, forward and backward; `unit` says what its tokens are.

    `mixing_flops_per_step` is the part of `flops_per_step` in which tokens read one another: attention, whose pattern
    decides, pairs that it does not allow not counted; persistent vectors; and Fourier transforms, 2.5 n log2 n for n
    real numbers as is usual. Adaptive spans count as if they had all grown to the largest. Memory is in bytes, on one
    device: what is kept during a step, the compiled patterns (`plan_memory`) included. Buffers inside operations come
    on top. `dtype` is what products and attention are computed in, on this machine where that is left open.
    `seconds_per_step` is what the FLOPs take at the rate of matrix products of this machine's processor, which no step
    exceeds; None where runs are trained on a GPU.
    """

    mixers: str | list[str]
    dtype: str
    parameters: int
    unit: str
    tokens_per_step: int
    steps: int
    flops_per_step: int
    mixing_flops_per_step: int
    seconds_per_step: float | None
    weight_memory: int
    gradient_memory: int
    optimizer_memory: int
    activation_memory: int
    plan_memory: int

    @property
    def flops_per_token(self) -> float:
        """Operations to train on one token or byte."""
        return self.flops_per_step / self.tokens_per_step

    @property
    def memory(self) -> int:
        """All memory together."""
        kept = self.weight_memory + self.gradient_memory + self.optimizer_memory
        return kept + self.activation_memory + self.plan_memory


_WEIGHT_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
"""What linear layers call; products of two activations are batched."""


def estimate(config: RunConfig, own: Path | None = None) -> Estimate:
    """The costs of a run; `own` is the newest checkpoint of one that goes on.

    Raises ConfigurationError or PatternError for a model that cannot be built.
    """
    config = settled(config)
    objective, shape = _foundations(config, own)
    with torch.device("meta"):
        model = objective.model_class(config)(shape)
        model.to(weights_dtype(config.dtype))  # type: ignore[arg-type]  # transformers hides self
    size = weights_dtype(config.dtype).itemsize
    parameters = model.num_parameters()
    products, activations = _products_and_activations(config, objective, shape)
    mixing, plan_memory = _mixing(config, objective, shape)
    # Each product with weights takes two more in the backward pass, and one again when it is recomputed.
    flops = (4 if config.gradient_checkpointing else 3) * products + mixing
    rate = (
        None
        if torch.accelerator.is_available()
        else matrix_rates()["bfloat16" if config.dtype == "bfloat16" else "float32"]
    )
    return Estimate(
        mixers=shape.mixers,
        dtype=config.dtype,
        parameters=parameters,
        unit=objective.unit,
        tokens_per_step=config.batch_size * config.context,
        steps=config.steps,
        flops_per_step=flops,
        mixing_flops_per_step=mixing,
        seconds_per_step=None if rate is None else flops / rate,
        weight_memory=size * parameters,
        gradient_memory=size * parameters,
        optimizer_memory=moment_bytes(parameter_groups(model, config)),
        activation_memory=activations,
        plan_memory=plan_memory,
    )


def _foundations(config: RunConfig, own: Path | None) -> tuple[type[Pretraining[Any]], AsterismConfig]:
    """The objective and the model's configuration."""
    objective = OBJECTIVES.load(config.objective)
    assert issubclass(objective, Pretraining)  # as the configuration's kind says
    return objective, objective.foundations(config, own)[2]


def _target(config: RunConfig, objective: type[Pretraining[Any]]) -> int:
    """How many tokens the decoder of an encoder-decoder reads."""
    return objective.blank_batch(config, 1)["labels"].shape[1]


def _mixing(config: RunConfig, objective: type[Pretraining[Any]], model: AsterismConfig) -> tuple[int, int]:
    """FLOPs of all mixing in a step, of both stacks where there are two, and bytes of all plans."""
    tokens = model.global_tokens + config.context
    readings: list[tuple[Mixer, int, int]] = [(mixer, tokens, tokens) for mixer in model.layer_mixers()]
    if model.decoder_mixers is not None:
        target = _target(config, objective)
        readings += [(pattern, target, target) for pattern in model.decoder_config().layer_patterns()]
        readings += [(pattern, target, tokens) for pattern in model.cross_patterns()]
    flops = memory = 0
    for (mixer, queries, keys), layers in Counter(readings).items():
        if isinstance(mixer, Pattern):
            plan = compile_pattern(mixer, queries, keys, query_offset=0)
            memory += plan.bytes
            once = _attention(
                model, plan.pairs * (model.num_attention_heads // plan.heads), queries, config.gradient_checkpointing
            )
        else:
            numbers = tokens * model.hidden_size
            # The gradient of the transform is the transform of the gradient.
            once = round(2.5 * numbers * log2(numbers)) * (3 if config.gradient_checkpointing else 2)
        flops += once * layers * config.batch_size
    return flops, memory


def _attention(model: AsterismConfig, pairs: int, tokens: int, recompute: bool) -> int:
    """FLOPs of one layer over one sequence, `pairs` of all heads: two products forward and five backward.

    One of the two has the width of queries and keys, the other that of values. Relative positions take a product more,
    and two backward.
    """
    asked, read = (width // model.num_attention_heads for width in (model.query_key_dim, model.value_dim))
    own = tokens * model.persistent_vectors * model.num_attention_heads
    forward = 2 * (pairs + own) * (asked + read)
    positions = 2 * pairs * asked if model.position_type == "relative" else 0
    again = forward + positions if recompute else 0
    return forward * 7 // 2 + 3 * positions + again


def _products_and_activations(
    config: RunConfig, objective: type[Pretraining[Any]], model: AsterismConfig
) -> tuple[int, int]:
    """FLOPs forward of all products with weights in a step, and bytes kept for the backward pass of one slice.

    Layers with the same kind of mixer cost the same.
    """
    sequences = config.micro_batch_size
    kinds: dict[type, list[str]] = {}
    for mixer in model.layer_mixers():
        kinds.setdefault(type(mixer), []).append(str(getattr(mixer, "text", mixer)))
    products = activations = 0
    largest = 0
    for texts in kinds.values():
        one, two = (_run(config, objective, model, [texts[0]] * layers) for layers in (1, 2))
        layer, rest = two - one, 2 * one - two
        products += layer[0] * len(texts)
        activations += layer[1] * len(texts)
        largest = max(largest, layer[1])
    between = model.num_hidden_layers * (config.context + model.global_tokens)
    if model.num_decoder_layers is not None:
        layer = _run(config, objective, model, [texts[0]], decoder_layers=2) - one
        rest = rest - layer
        products += layer[0] * model.num_decoder_layers
        activations += layer[1] * model.num_decoder_layers
        largest = max(largest, layer[1])
        between += model.num_decoder_layers * _target(config, objective)
    if config.gradient_checkpointing:
        activations = weights_dtype(config.dtype).itemsize * sequences * between * model.hidden_size + largest
    return config.gradient_accumulation_steps * int(products + rest[0]), int(activations + rest[1])


def _run(
    config: RunConfig,
    objective: type[Pretraining[Any]],
    model: AsterismConfig,
    mixers: list[str],
    decoder_layers: int = 1,
) -> np.ndarray:
    """FLOPs of products with weights, forward, and bytes of all tensors, other than parameters, that autograd keeps.

    Of one slice through a model with these mixers alone, and a decoder, if it has one, of so many layers: int64 [2].
    """
    changes: dict[str, Any] = {"mixers": mixers, "num_hidden_layers": len(mixers), "adaptive_span": False}
    if model.decoder_mixers is not None:
        causal, across = model.decoder_config().layer_patterns()[0].text, model.cross_patterns()[0].text
        changes |= {"decoder_mixers": [causal] * decoder_layers, "cross_mixers": [across] * decoder_layers}
        # Stacks that share weights must be equally deep, and sharing changes neither figure.
        changes |= {"num_decoder_layers": decoder_layers, "tie_encoder_decoder": False}
    shallow = AsterismConfig(**model.to_dict() | changes)
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
    return np.array([products, sum(size for storage, size in storages.items() if storage not in own)])
