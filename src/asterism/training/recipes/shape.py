"""The shape of a published model, as a recipe needs it."""

from dataclasses import fields
from typing import Any

from asterism.training.run.configuration import ModelConfig


def published_shape(name: str, **changes: Any) -> ModelConfig:
    """The model called `name` in `asterism.models.published`, some of its fields changed.

    Sizes that follow from others are left to follow, so that a flag that changes one changes them all.
    """
    from asterism.models.published import AsterismConfig, published  # takes seconds to import

    config = published(name)
    derived = AsterismConfig(hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads)
    values = {field.name: getattr(config, field.name) for field in fields(ModelConfig)}
    for size in ("num_key_value_heads", "query_key_dim", "intermediate_size"):
        if values[size] == getattr(derived, size):
            values[size] = None
    frozen = {field: tuple(value) if isinstance(value, list) else value for field, value in values.items()}
    return ModelConfig(**(frozen | changes))
