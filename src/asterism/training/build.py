"""From a run's configuration to its model."""

from dataclasses import asdict

from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.training.randomness import derive, isolated
from asterism.training.recipes import RunConfig


def model_config(config: RunConfig) -> AsterismConfig:
    """The configuration of the run's model: a byte vocabulary, and positions for one context."""
    return AsterismConfig(vocab_size=256, max_position_embeddings=config.context, **asdict(config.model))


def build_model(config: RunConfig) -> AsterismForCausalLM:
    """A new model in float32, initialised from the run's seed; no global generator is touched.

    Raises ConfigurationError or PatternError for a shape or pattern that cannot work.
    """
    with isolated(derive(config.seed)):
        model = AsterismForCausalLM(model_config(config))
    if config.recompute:
        model.gradient_checkpointing_enable()
    return model
