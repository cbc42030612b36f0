"""What attention moves where the processes of a run share the tokens of rows: weighed once, before the run begins.

The rows of a task differ in length, and by the same pattern a short one may need every key of every process where a
long one needs few. The longest rows decide; a run that has begun is not ended because a row is short.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedConfig

from asterism.compiler.devices import RowShape, Shards, communicate, refusal
from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig
from asterism.models.drop_in.field import read_patterns
from asterism.patterns import Pattern
from asterism.training.run.processes import Processes
from asterism.training.settings.configuration import TrainingConfig

Layer = tuple[Pattern, Shards, Shards]
"""The pattern of a layer's attention, and who holds its queries and its keys."""


def weighed(config: TrainingConfig, shape: PreTrainedConfig, longest: Sequence[int], processes: Processes) -> Processes:
    """Processes that compute rows of any length, where in the longest no layer moves as much as dense attention.

    `longest`: tokens of the longest row, and of the longest target, if the model writes any. Raises ConfigurationError
    where a layer would move as much, unless that was asked for.
    """
    if processes.shape.cp == 1 or processes.dense_exchange:
        return processes
    width = _row_shape(config, shape, processes)
    for pattern, queries, keys in dict.fromkeys(_layers(shape, longest, processes.shape.cp)):
        if (plan := communicate(pattern, queries, keys, width)).is_dense:
            raise ConfigurationError(f"parallel: {refusal(plan, width)}; or let dp and fsdp divide rows instead")
    return replace(processes, dense_exchange=True)


def refuse_dropout(shape: PreTrainedConfig, processes: Processes) -> None:
    """Raises ConfigurationError for a model that drops pairs in training, for which every process needs every key."""
    if processes.shape.cp == 1 or processes.dense_exchange:
        return
    for name in ("attention_dropout", "attention_probs_dropout_prob"):
        if getattr(shape, name, None):
            raise ConfigurationError(
                f"parallel: {name} goes by the numbers of all tokens, so with cp every process needs every key: set it"
                " to 0 in the model, or ask for it: --dense-exchange"
            )


def _layers(shape: PreTrainedConfig, longest: Sequence[int], devices: int) -> Iterable[Layer]:
    if not isinstance(shape, AsterismConfig):
        layers: int = shape.num_hidden_layers
        own = Shards.even(longest[0], devices)
        return [(pattern, own, own) for pattern in read_patterns(shape.asterism_pattern, layers)]
    if not shape.is_encoder_decoder:
        return _of_stack(shape, longest[0], devices)
    source, target = (Shards.even(tokens, devices) for tokens in longest)
    return [
        *_of_stack(shape.encoder_config(), longest[0], devices),
        *_of_stack(shape.decoder_config(), longest[1], devices),
        *((pattern, target, source) for pattern in shape.cross_patterns()),
    ]


def _of_stack(shape: AsterismConfig, tokens: int, devices: int) -> list[Layer]:
    front, *rest = Shards.even(tokens, devices).sizes
    own = Shards.of_sizes((front + shape.global_tokens, *rest))
    mixers = shape.layer_mixers() if shape.relative_span is None else shape.layer_patterns()
    return [(mixer, own, own) for mixer in mixers if isinstance(mixer, Pattern)]


def _row_shape(config: TrainingConfig, shape: PreTrainedConfig, processes: Processes) -> RowShape:
    heads = shape.num_attention_heads
    key_heads = getattr(shape, "num_key_value_heads", None) or heads
    if isinstance(shape, AsterismConfig):
        dims = shape.query_key_dim // heads, shape.value_dim // heads
    else:
        dims = (getattr(shape, "head_dim", None) or shape.hidden_size // heads,) * 2
    rows = max(1, config.micro_batch_size // processes.shape.readers)
    return RowShape(heads, key_heads, *dims, getattr(torch, config.dtype).itemsize, rows)
