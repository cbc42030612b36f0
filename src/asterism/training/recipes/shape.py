"""The common parts of recipes: the shape of a published model, and the settings of short and of long runs."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from asterism.shape import ModelConfig
from asterism.training.settings.configuration import RunConfig

_FOLLOWS = {
    "num_decoder_layers": "num_hidden_layers",
    "decoder_max_position_embeddings": "max_position_embeddings",
}


def published_shape(name: str, **changes: Any) -> ModelConfig:
    """The model called `name` in `asterism.models.asterism.published`, with some fields changed.

    Sizes that follow from other sizes stay open, so that one flag changes them all.
    """
    from asterism.models import AsterismConfig  # takes seconds to import
    from asterism.models.asterism.published import published

    config = published(name)
    derived = AsterismConfig(hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads)
    values = {field.name: getattr(config, field.name) for field in fields(ModelConfig)}
    for size in ("num_key_value_heads", "query_key_dim", "value_dim", "intermediate_size"):
        if values[size] == getattr(derived, size):
            values[size] = None
    for of_decoder, of_encoder in _FOLLOWS.items():
        if values[of_decoder] == values[of_encoder]:
            values[of_decoder] = None
    frozen = {field: tuple(value) if isinstance(value, list) else value for field, value in values.items()}
    shape: dict[str, Any] = frozen | changes
    return ModelConfig(**shape)


def taps(keys_before: Iterable[int], wide: Sequence[str]) -> str:
    """Heads that read one token each, `keys_before` tokens before their own, and heads with patterns of their own."""
    single = [f"window(left={far}) & ~window(left={far - 1})" for far in keys_before]
    return f"per_head([{', '.join([*single, *wide])}])"


def ten_minutes(recipe: str, model: ModelConfig, *, every: int, **settings: Any) -> RunConfig:
    """A run of ten minutes on two CPU cores: small batches and Muon; scored and saved every `every` steps."""
    return RunConfig(
        recipe=recipe,
        model=model,
        context=1024,
        batch_size=4,
        steps=20_000,
        minutes=10.0,
        optimizer="muon",
        warmup_steps=50,
        weight_decay=0.1,
        log_every=20,
        evaluation_every=every,
        checkpoint_every=every,
        **settings,
    )


def full_size(recipe: str, model: ModelConfig, **settings: Any) -> RunConfig:
    """A run at a published size: blocks are recomputed in the backward pass, and AdamW has beta2 0.999."""
    return RunConfig(
        recipe=recipe,
        model=model,
        gradient_checkpointing=True,
        beta2=0.999,
        weight_decay=0.01,
        gradient_clip=1.0,
        log_every=50,
        evaluation_every=1_000,
        evaluation_bytes=1_000_000,
        checkpoint_every=1_000,
        **settings,
    )
