"""Encoder-decoders at their published sizes, and twins that train in minutes on two CPU cores.

The models are those of `models/asterism/published.py`. A recipe pretrains one (`asterism train --recipe NAME`). The
settings that the papers fine-tune it with are in `fine_tuning.py` (`asterism finetune --recipe NAME`). Where a paper
starts from the checkpoint of another model, the recipe takes the settings of that model or of a related one, and its
docstring says so. Each tokenizer is trained on the run's own text, with as many tokens as the published vocabulary,
sentinels of span corruption included.

The twins read 1,024 tokens. Like those of the encoders they share only the mixers with their models, and have rotary
positions and pre-norm blocks.
"""

from dataclasses import replace
from typing import Any

from asterism.training.recipes.shape import full_size, published_shape, ten_minutes
from asterism.training.settings.configuration import RunConfig


def transformer_base() -> RunConfig:
    """The Transformer, 65M parameters, by span corruption (Vaswani 2017, table 3).

    Published: Adam with beta2 0.98, 100,000 steps, and 4,000 steps of warm-up to 512^-0.5 * 4000^-0.5, followed by the
    inverse square root of the step (section 5). The authors do not pretrain. To translate as they do, use `asterism
    finetune --recipe transformer-base --from-scratch`: it keeps the tokenizer and shape of this run and initialises new
    weights.
    """
    run = _pretraining(
        "transformer-base",
        tokenizer="bpe:41071",
        context=512,
        batch_size=128,
        gradient_accumulation_steps=4,
        steps=100_000,
        learning_rate=7e-4,
        warmup_steps=4_000,
        schedule="inverse_sqrt",
    )
    return replace(run, beta2=0.98, weight_decay=0.0)


def transformer_tiny() -> RunConfig:
    """The dense twin, for two CPU cores and ten minutes: span corruption of rows of 1,024 tokens."""
    return _tiny("transformer-tiny")


def bigbird_roberta_base_summarization() -> RunConfig:
    """BigBird base as an encoder-decoder of shared weights, 155M parameters, by span corruption of 4,096 tokens.

    Published: batch, learning rate and warm-up of bigbird-itc-base (Zaheer 2020, appendix E). The authors start from
    that encoder; here encoder and decoder start together with new weights. Inferred: objective and number of steps.
    """
    return _pretraining(
        "bigbird-roberta-base-summarization",
        tokenizer="bpe:50130",
        context=4096,
        batch_size=256,
        gradient_accumulation_steps=256,
        steps=500_000,
        learning_rate=1e-4,
        warmup_steps=10_000,
        schedule="linear",
    )


def bigbird_roberta_summarization_tiny() -> RunConfig:
    """BigBird as an encoder-decoder of shared weights, for two CPU cores and ten minutes."""
    return _tiny("bigbird-roberta-summarization-tiny")


def bigbird_pegasus_large() -> RunConfig:
    """BigBird-Pegasus, 577M parameters, by gap sentences: 3,072 tokens of text, 256 of target.

    Published for fine-tuning: the lengths, Adafactor, and a warm-up of 10,000 steps to 1e-4, followed by the inverse
    square root of the step (Zaheer 2020, appendix E.5). The authors start from Pegasus, which learnt gap sentences of
    512 tokens in 500,000 steps (Zhang 2020, section 6). This recipe starts with new weights and reads the lengths of
    fine-tuning.
    """
    run = _pretraining(
        "bigbird-pegasus-large",
        objective="gap_sentences",
        tokenizer="unigram:96103",
        context=3072,
        target_length=256,
        batch_size=256,
        gradient_accumulation_steps=256,
        steps=500_000,
        learning_rate=1e-4,
        warmup_steps=10_000,
        schedule="inverse_sqrt",
        optimizer="adafactor",
    )
    return replace(run, weight_decay=0.0)


def bigbird_pegasus_tiny() -> RunConfig:
    """BigBird-Pegasus for two CPU cores and ten minutes: gap sentences, 1,024 tokens of text and 256 of target."""
    return _tiny("bigbird-pegasus-tiny", objective="gap_sentences", target_length=256)


def led_base() -> RunConfig:
    """LED, 162M parameters, by span corruption of 4,096 tokens (Beltagy 2020, section 7).

    The authors start from BART and do not pretrain further, so no settings are published. Batch and steps are those of
    longformer-base.
    """
    return _pretraining(
        "led-base",
        tokenizer="bpe:50037",
        context=4096,
        batch_size=64,
        gradient_accumulation_steps=64,
        steps=65_000,
        learning_rate=1e-4,
        warmup_steps=10_000,
        schedule="linear",
    )


def led_tiny() -> RunConfig:
    """LED for two CPU cores and ten minutes: a window, and one global token with projections of its own."""
    return _tiny("led-tiny")


def _tiny(name: str, *, objective: str = "span_corruption", **settings: Any) -> RunConfig:
    """A run of ten minutes; vocabulary and positions follow the tokenizer and the context."""
    shape = published_shape(
        name,
        block="pre_norm",
        vocab_size=None,
        max_position_embeddings=None,
        decoder_max_position_embeddings=None,
        position_type="rotary",
        embedding_scale=1.0,
        initializer_range=None,
        initializer_gain=0.354,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return ten_minutes(
        name, shape, every=200, learning_rate=3e-3, tokenizer="bpe:4096", objective=objective, **settings
    )


def _pretraining(name: str, *, objective: str = "span_corruption", **settings: Any) -> RunConfig:
    return full_size(name, published_shape(name), objective=objective, **settings)
