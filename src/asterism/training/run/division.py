"""Check once, before a run begins, whether its processes can divide the work, and how much attention would move.

If processes share the tokens of rows, attention moves keys between them. The rows of a task differ in length. Under the
same pattern, a short row may need every key of every process, and a long one only a few. The longest rows decide. A run
that has begun does not end because a row is short.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedConfig

from asterism.compiler.devices import RowShape, Shards, communicate, refusal
from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig
from asterism.models.drop_in.field import read_patterns
from asterism.patterns import Pattern
from asterism.training.run.processes import Processes, compare
from asterism.training.run.setup import Setup
from asterism.training.settings.configuration import TrainingConfig

Layer = tuple[Pattern, Shards, Shards]
"""The pattern of a layer's attention, and the shards of its queries and of its keys."""


_SHARED_OUT = ("llama", "gpt_neox", "bert", "modernbert")
"""Model types of transformers that are tested within `sequence_parallel`."""


def refuse_undivided(setup: Setup, processes: Processes) -> None:
    """Raise ConfigurationError for a run that this number of processes cannot divide, or if they read different
    data.
    """
    if processes.alone:
        return
    config, parts = setup.config, processes.shape.row_parts
    if config.micro_batch_size < parts:
        raise ConfigurationError(
            "batch-divides",
            f"parallel: dp and fsdp cut a batch into {parts} parts, but a slice of it has {config.micro_batch_size}"
            f" sequences: batch_size = {config.batch_size} / gradient_accumulation_steps ="
            f" {config.gradient_accumulation_steps}; give each part at least one, or give processes to cp",
        )
    if processes.shape.fsdp > 1 and getattr(config, "lora", None) is not None:
        raise ConfigurationError(
            "mesh-of-adapter", "parallel: the weights below an adapter (lora) cannot be shared out by fsdp: use dp"
        )
    if processes.shape.cp > 1 and not isinstance(setup.shape, AsterismConfig):
        _refuse_whole_rows(setup)
    refuse_dropout(setup.shape, processes)
    with processes.agreed():
        digest = hashlib.sha256()
        for name, tensor in sorted(setup.objective.batch(setup.corpus, 0).items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    own = {"the corpus": setup.corpus.record()["sha256"], "the first batch": digest.hexdigest()}
    compare(processes, "the SHA-256 of", own)


def _refuse_whole_rows(setup: Setup) -> None:
    """Raise ConfigurationError for a model of transformers whose rows or whose loss cannot be divided."""
    shape, kind = setup.shape, setup.shape.model_type
    if kind not in _SHARED_OUT:
        raise ConfigurationError(
            "mesh-of-model",
            f"parallel: cp divides the tokens of Asterism's models and of {', '.join(_SHARED_OUT)}, not of {kind};"
            " use dp or fsdp, or import the model",
        )
    if getattr(shape, "asterism_pattern", None) is None:
        raise ConfigurationError(
            "mesh-of-model",
            f"parallel: cp divides the tokens of {kind} models only if they attend by a pattern: save the model with"
            ' one, use_pattern(model, "window(left=128, right=128)"), or use dp or fsdp',
        )
    if getattr(setup.config, "task", None) != "tag":
        raise ConfigurationError(
            "mesh-of-task",
            f"parallel: with {kind} models cp divides only a loss per token, so the task must be tag; use dp or fsdp,"
            " or import the model",
        )


def weighed(config: TrainingConfig, shape: PreTrainedConfig, longest: Sequence[int], processes: Processes) -> Processes:
    """Return processes that may compute rows of any length, after checking that no layer of the longest row moves as
    much as dense attention.

    `longest` holds the tokens of the longest row, and of the longest target if the model writes any. Raises
    ConfigurationError if a layer would move as much, unless `dense_exchange` allows it.
    """
    if processes.shape.cp == 1 or processes.dense_exchange:
        return processes
    width = _row_shape(config, shape, processes)
    for pattern, queries, keys in dict.fromkeys(_layers(shape, longest, processes.shape.cp)):
        if (plan := communicate(pattern, queries, keys, width)).is_dense:
            raise ConfigurationError(
                "mesh-unsuitable", f"parallel: {refusal(plan, width)}; or let dp and fsdp divide rows instead"
            )
    return replace(processes, dense_exchange=True)


def refuse_dropout(shape: PreTrainedConfig, processes: Processes) -> None:
    """Raise ConfigurationError for a model with dropout in attention, because every process would need every key."""
    if processes.shape.cp == 1 or processes.dense_exchange:
        return
    for name in ("attention_dropout", "attention_probs_dropout_prob"):
        if getattr(shape, name, None):
            raise ConfigurationError(
                "sharded-dropout-keys",
                f"parallel: {name} depends on the positions of all tokens, so with cp every process needs every key:"
                " set it to 0 in the model, or pass --dense-exchange",
            )


def _layers(shape: PreTrainedConfig, longest: Sequence[int], count: int) -> Iterable[Layer]:
    if not isinstance(shape, AsterismConfig):
        layers: int = shape.num_hidden_layers
        own = Shards.even(longest[0], count)
        return [(pattern, own, own) for pattern in read_patterns(shape.asterism_pattern, layers)]
    if not shape.is_encoder_decoder:
        return _of_stack(shape, longest[0], count)
    source, target = (Shards.even(tokens, count) for tokens in longest)
    return [
        *_of_stack(shape.encoder_config(), longest[0], count),
        *_of_stack(shape.decoder_config(), longest[1], count),
        *((pattern, target, source) for pattern in shape.cross_patterns()),
    ]


def _of_stack(shape: AsterismConfig, tokens: int, count: int) -> list[Layer]:
    front, *rest = Shards.even(tokens, count).sizes
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
    rows = max(1, config.micro_batch_size // processes.shape.row_parts)
    return RowShape(heads, key_heads, *dims, getattr(torch, config.dtype).itemsize, rows)
