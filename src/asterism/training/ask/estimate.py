"""Estimate the cost of a run, without weights and without training: parameters, FLOPs and memory.

Attention is counted from the plans of its patterns. Everything else comes from `footprint.py`, which needs no data.
"""

from collections import Counter
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from asterism.compiler import compile_pattern
from asterism.compiler.blocks import pairs_read
from asterism.errors import ConfigurationError
from asterism.kernels.choice.prices import expected_rates
from asterism.models import AsterismConfig
from asterism.patterns import Mixer, Pattern, mixer_counts
from asterism.patterns.selected import bounds_of
from asterism.training.data.corpora.tokenization import Vocabulary
from asterism.training.objectives.footprint import footprint, target_length
from asterism.training.objectives.pretraining import Pretraining
from asterism.training.run.arithmetic import settled
from asterism.training.run.device import device_of_runs
from asterism.training.settings.configuration import RunConfig
from asterism.training.settings.registry import OBJECTIVES


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of a run. A step is one step of the optimiser, forward and backward. `unit` names its tokens.

    `mixing_flops_per_step` is the part of `flops_per_step` in which tokens read one another. It counts attention over
    the allowed pairs, persistent vectors, and Fourier transforms (2.5 n log2 n for n real numbers, as usual). Adaptive
    spans count as if all had grown to the largest. Memory is in bytes on one device: everything that is kept during a
    step, including the compiled patterns (`plan_memory`), without buffers inside operations. `dtype` is the one of
    products and attention; if the configuration leaves it open, the one that this machine chooses. `seconds_per_step`
    is a lower bound: the time of the FLOPs at this machine's rate of matrix products. It is None if runs are trained on
    a GPU. `is_measured` is False if the rate is a guess from the class of processor.
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
    is_measured: bool
    weight_memory: int
    gradient_memory: int
    optimizer_memory: int
    activation_memory: int
    plan_memory: int

    @property
    def memory(self) -> int:
        """All memory together."""
        kept = self.weight_memory + self.gradient_memory + self.optimizer_memory
        return kept + self.activation_memory + self.plan_memory


def estimate(config: RunConfig, own: Path | None = None) -> Estimate:
    """Estimate the cost of a run. `own` is the newest checkpoint of a run that is resumed.

    Raises ConfigurationError or PatternError for a model that cannot be built.
    """
    config = settled(config)
    objective, vocabulary, shape = _foundations(config, own)
    found = footprint(config, objective, shape)
    mixing, plan_memory = _mixing(config, objective, shape)
    # Each product with weights takes two more in the backward pass, and one again when it is recomputed.
    flops = (4 if config.gradient_checkpointing else 3) * found.products + mixing
    rates = expected_rates() if device_of_runs().type == "cpu" else None
    rate = None if rates is None else rates.by_dtype["bfloat16" if config.dtype == "bfloat16" else "float32"]
    return Estimate(
        mixers=shape.mixers,
        dtype=config.dtype,
        parameters=found.parameters,
        unit=objective.counts_in(vocabulary),
        tokens_per_step=config.batch_size * config.context,
        steps=config.steps,
        flops_per_step=flops,
        mixing_flops_per_step=mixing,
        seconds_per_step=None if rate is None else flops / rate,
        is_measured=rates is not None and rates.measured,
        weight_memory=found.weights,
        gradient_memory=found.gradients,
        optimizer_memory=found.moments,
        activation_memory=found.activations,
        plan_memory=plan_memory,
    )


def _foundations(config: RunConfig, own: Path | None) -> tuple[type[Pretraining[Any]], Vocabulary, AsterismConfig]:
    """The objective, its vocabulary, and the model's configuration."""
    objective = OBJECTIVES.load(config.objective)
    assert issubclass(objective, Pretraining)  # as the configuration's kind says
    _, vocabulary, shape = objective.foundations(config, own)
    if not isinstance(shape, AsterismConfig):
        raise ConfigurationError(
            "estimate-of-stock",
            f"init_from: a dry run counts models of ours only, not {shape.model_type} models: leave --dry-run out, and"
            " end a trial with --steps",
        )
    return objective, vocabulary, shape


def _mixing(config: RunConfig, objective: type[Pretraining[Any]], model: AsterismConfig) -> tuple[int, int]:
    """FLOPs of all mixing in a step, of both stacks if there are two, and bytes of all plans."""
    tokens = model.global_tokens + config.context
    readings: Counter[tuple[Mixer, int, int]] = Counter()
    readings.update({(mixer, tokens, tokens): layers for mixer, layers in model.mixer_counts().items()})
    if model.num_decoder_layers is not None:
        target, layers = target_length(config, objective), model.num_decoder_layers
        decoder = model.decoder_config()
        for mixer, some in decoder.mixer_counts().items():
            readings[decoder.pattern_of(mixer), target, target] += some
        for mixer, some in mixer_counts(model.cross_mixers, layers).items():
            readings[mixer, target, tokens] += some
    flops = memory = 0
    for (mixer, queries, keys), layers in readings.items():
        if isinstance(mixer, Pattern):
            if mixer.chooses:
                pairs = pairs_read(mixer, queries, keys, 0) * model.num_attention_heads
            else:
                plan = compile_pattern(mixer, queries, keys, query_offset=0)
                pairs = plan.pairs * (model.num_attention_heads // plan.heads)
                memory += plan.bytes
            once = _attention(model, pairs, queries, config.gradient_checkpointing)
            if mixer.chooses and model.index_dim:
                once += index_flops(model, mixer, queries)
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


def index_flops(model: AsterismConfig, pattern: Pattern, tokens: int) -> int:
    """FLOPs of the loss of one layer's index branch over one sequence, in a step.

    It computes attention's scores of all pairs once, and scores of blocks forward and twice backward: of a block's
    mean, of its least and greatest values, or of each key, which is then computed once more.
    """
    teacher = 2 * tokens**2 * model.query_key_dim
    chosen = bounds_of(pattern).chosen
    blocks = -(-tokens // chosen.block)
    scored, times = {"mean": (blocks, 3), "minmax": (2 * blocks, 3), "max": (blocks * chosen.block, 4)}[chosen.score]
    return teacher + 2 * tokens * scored * model.num_key_value_heads * model.index_dim * times
