"""From a run's configuration, or its folder, to its model; and the arithmetic it runs in."""

from dataclasses import asdict

import torch

from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.training.checkpoint import load_weights
from asterism.training.configuration import Dtype, RunConfig
from asterism.training.folder import RunFolder
from asterism.training.randomness import derive, isolated


def model_config(config: RunConfig) -> AsterismConfig:
    """The configuration of the run's model: a vocabulary of bytes, and positions for one context."""
    return AsterismConfig(vocab_size=256, max_position_embeddings=config.context, **asdict(config.model))


def build_model(config: RunConfig, device: torch.device) -> AsterismForCausalLM:
    """A new model in float32, initialised on the CPU from the run's seed; no global generator is touched.

    Raises ConfigurationError or PatternError for a shape or pattern that cannot work.
    """
    with isolated(derive(config.seed)):
        model = AsterismForCausalLM(model_config(config))
    return model.to(device)


def load_model(folder: RunFolder) -> tuple[RunConfig, AsterismForCausalLM]:
    """The configuration of a run and its finished model, or that of its newest checkpoint, ready to be used.

    The model is on the GPU if there is one. Raises CheckpointError if the folder is no run or is damaged.
    """
    config = folder.read_config()
    model = build_model(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    load_weights(folder.weights(), model)
    return config, model.eval()


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is for float32, autocast for bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")
