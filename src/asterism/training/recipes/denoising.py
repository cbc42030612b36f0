"""Encoder-decoders that restore parts left out of a text, for two CPU cores and ten minutes.

Both have a window in the encoder, a full decoder, and sequences of 512 tokens (Raffel 2020, section 3.1.1; Zhang 2020,
section 6.1). Like the other twins they have rotary positions and pre-norm blocks.
"""

from dataclasses import replace
from typing import Any

from asterism.shape import ModelConfig
from asterism.training.recipes.shape import ten_minutes
from asterism.training.settings.configuration import RunConfig


def span_corruption_tiny() -> RunConfig:
    """Span corruption as in T5: 15 of 100 tokens, in spans of 3 on average, are left out; the decoder writes them."""
    return _tiny("span-corruption-tiny", batch_size=12, objective="span_corruption")


def gap_sentences_tiny() -> RunConfig:
    """Gap sentences as in Pegasus: the most telling 3 of 10 sentences are left out; the decoder writes them."""
    return _tiny("gap-sentences-tiny", batch_size=8, objective="gap_sentences")


def _tiny(recipe: str, batch_size: int, **settings: Any) -> RunConfig:
    """The time of the optimiser does not depend on the tokens of a step: the more tokens, the smaller its part."""
    model = ModelConfig(
        mixers="window(left=64, right=64)",
        decoder_mixers="causal()",
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=3,
        position_type="rotary",
        hidden_act="gelu",
        initializer_gain=0.354,
        tie_word_embeddings=True,
    )
    run = ten_minutes(recipe, model, every=200, learning_rate=0.003, tokenizer="bpe:4096", **settings)
    return replace(run, context=512, batch_size=batch_size)
