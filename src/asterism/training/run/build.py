"""From a run's configuration, or its folder, to its model; and the arithmetic it runs in."""

from dataclasses import asdict

import torch
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, AsterismForPreTraining
from asterism.randomness import derive, isolated
from asterism.training.data.tokenization import Vocabulary, vocabulary
from asterism.training.run.checkpoint import load_weights
from asterism.training.run.configuration import Dtype, RunConfig
from asterism.training.run.folder import RunFolder
from asterism.training.run.start import UNUSED, going_on, start_config, start_folder, tokenizer_name

BYTES = Vocabulary(256, None)
"""What a causal model predicts; none of them pads."""


def model_config(config: RunConfig) -> AsterismConfig:
    """The configuration of the run's model: the vocabulary of its tokenizer, and positions for one context.

    Raises ConfigurationError for a vocabulary or context that the model has no room for, and what `vocabulary` raises;
    CheckpointError for a start that cannot be one.
    """
    tokens = BYTES if config.objective == "causal" else vocabulary(tokenizer_name(config))
    if (folder := start_folder(config)) is not None:
        return start_config(config, folder, model_class(config).__name__, tokens)
    shape = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config.model).items()}
    for name, needed, what in (
        ("vocab_size", tokens.size, f"the tokens of {config.tokenizer}"),
        ("max_position_embeddings", config.context, "the context"),
    ):
        shape[name] = needed if shape[name] is None else shape[name]
        if shape[name] < needed:
            raise ConfigurationError(f"model.{name} is {shape[name]:,}, too few for {what}: {needed:,}")
    return AsterismConfig(pad_token_id=tokens.padding, **shape)


def model_class(config: RunConfig) -> type[PreTrainedModel]:
    """The class of the run's model: the head that its objective needs."""
    if config.objective == "causal":
        return AsterismForCausalLM
    return AsterismForPreTraining if config.next_sentence else AsterismForMaskedLM


def build_model(config: RunConfig, device: torch.device) -> PreTrainedModel:
    """The model that a run begins with, in float32; no global generator is touched.

    New weights are drawn on the CPU from the run's seed. Raises ConfigurationError or PatternError for a shape or
    pattern that cannot work, CheckpointError for a start that cannot be one.
    """
    with isolated(derive(config.seed)):
        model = model_class(config)(model_config(config))
    if (folder := start_folder(config)) is not None:
        load_weights(folder, model, unused=UNUSED)
    return model.to(device)


def load_model(folder: RunFolder) -> tuple[RunConfig, PreTrainedModel]:
    """The configuration of a run and its finished model, or that of its newest checkpoint, ready to be used.

    The model is on the GPU if there is one. Raises CheckpointError if the folder is no run or is damaged.
    """
    config, weights = folder.read_config(), folder.weights()
    model = build_model(going_on(config, weights), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    load_weights(weights, model)
    return config, model.eval()


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is for float32, autocast for bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")
