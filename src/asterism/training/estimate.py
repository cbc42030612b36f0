"""What a run will cost, without weights and without training: parameters, FLOPs, memory.

The model is laid out on the meta device, attention is counted by the plans of its patterns, and what the backward pass
needs is found by running models of one and two layers on fake tensors, which have shapes and no data. Nothing here
repeats how a layer is built, so nothing here can go out of date with it.
"""

from collections import Counter
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from asterism.compiler import compile_pattern
from asterism.models import AsterismForCausalLM
from asterism.training.build import arithmetic, model_config
from asterism.training.configuration import RunConfig
from asterism.training.optimizer import moment_bytes, parameter_groups


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Costs of a run. A step is one step of the optimiser, forward and backward, over `bytes_per_step` bytes.

    `attention_flops_per_step` is the part of `flops_per_step` that the patterns decide; pairs that a pattern does not
    allow are not counted. Memory is in bytes, on one device: what is kept during a step, the compiled patterns
    (`plan_memory`) included. Buffers inside operations come on top.
    """

    parameters: int
    bytes_per_step: int
    steps: int
    flops_per_step: int
    attention_flops_per_step: int
    weight_memory: int
    gradient_memory: int
    optimizer_memory: int
    activation_memory: int
    plan_memory: int

    @property
    def flops_per_byte(self) -> float:
        """Operations to train on one byte."""
        return self.flops_per_step / self.bytes_per_step

    @property
    def memory(self) -> int:
        """All memory together."""
        kept = self.weight_memory + self.gradient_memory + self.optimizer_memory
        return kept + self.activation_memory + self.plan_memory


def estimate(config: RunConfig) -> Estimate:
    """The costs of a run. Raises ConfigurationError or PatternError for a model that cannot be built."""
    with torch.device("meta"):
        model = AsterismForCausalLM(model_config(config))
    parameters = model.num_parameters()
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    bytes_per_step = config.batch_size * config.context
    attention, plan_memory = _attention(config)
    # A product with a weight matrix takes two operations per weight and byte, and its backward pass two products more.
    products = 4 if config.recompute else 3
    return Estimate(
        parameters=parameters,
        bytes_per_step=bytes_per_step,
        steps=config.steps,
        flops_per_step=products * 2 * weights * bytes_per_step + attention,
        attention_flops_per_step=attention,
        weight_memory=4 * parameters,
        gradient_memory=4 * parameters,
        optimizer_memory=moment_bytes(parameter_groups(model, config)),
        activation_memory=_activations(config),
        plan_memory=plan_memory,
    )


def _attention(config: RunConfig) -> tuple[int, int]:
    """FLOPs of all attention in a step, and bytes of all plans."""
    model = model_config(config)
    flops = memory = 0
    for pattern, layers in Counter(model.layer_patterns()).items():
        plan = compile_pattern(pattern, config.context)
        heads = model.num_attention_heads // plan.heads
        # Half of the products have the width of queries and keys, half that of values.
        for width in (model.query_key_dim or model.hidden_size, model.hidden_size):
            head_dim = width // model.num_attention_heads
            once = plan.flops(head_dim, backward=True) + (plan.flops(head_dim) if config.recompute else 0)
            flops += once * heads * layers * config.batch_size // 2
        memory += plan.bytes
    return flops, memory


def _activations(config: RunConfig) -> int:
    """Bytes kept for the backward pass of one slice of a batch."""
    one, two = _kept(config, 1), _kept(config, 2)
    layer, rest = two - one, 2 * one - two
    if not config.recompute:
        return rest + config.model.num_hidden_layers * layer
    between_layers = 4 * config.batch_size // config.accumulation * config.context * config.model.hidden_size
    return rest + config.model.num_hidden_layers * between_layers + layer


def _kept(config: RunConfig, layers: int) -> int:
    """Bytes of all tensors, other than parameters, that autograd keeps for one slice through so many layers."""
    shallow = replace(config, model=replace(config.model, num_hidden_layers=layers))
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with FakeTensorMode():
        model = AsterismForCausalLM(model_config(shallow))
        rows = torch.zeros(config.batch_size // config.accumulation, config.context + 1, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with arithmetic(config.dtype, rows.device):
                logits = model(input_ids=rows[:, :-1]).logits
            F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    # Views share a storage, which is kept once.
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in kept}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return sum(size for storage, size in storages.items() if storage not in own)
