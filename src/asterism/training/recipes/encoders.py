"""Masked language models: encoders at their published sizes, and twins that train in minutes on two CPU cores.

The models are those of `models/asterism/published.py`, which gives the source of their sizes. BERT, BigBird and FNet
publish the same settings: Adam at 1e-4, linear warm-up over 10,000 steps, linear decay, dropout 0.1, and 15 of 100
tokens masked (Devlin 2019, appendix A.2; Zaheer 2020, appendix E; Lee-Thorp 2021, section 4.1). Settings that not all
of them publish come from BERT: beta2 0.999, weight decay 0.01 and gradient clip 1.0. Adam's epsilon is PyTorch's 1e-8.
We train each tokenizer on the run's own text, with as many tokens as the published vocabulary. Rows are packed
(`packing.py`).

The twins share only the mixer with their models. A short run needs few tokens, small batches, fast learning and no
dropout. Twins with attention have rotary positions and pre-norm blocks. FNet keeps its positions and its post-norm
blocks, because these norms rescale the unnormalised transform.
"""

from typing import Any

from asterism.training.recipes.shape import full_size, published_shape, ten_minutes
from asterism.training.settings.configuration import RunConfig


def bert_tiny() -> RunConfig:
    """The dense twin, to compare the others with: every token reads all 1,024."""
    return _tiny("bert-tiny", **_ATTENTION)


def bigbird_tiny() -> RunConfig:
    """BigBird for two CPU cores and ten minutes: window, random and global blocks over 1,024 tokens.

    On text that every Python carries, its masked loss falls well below that of the token frequencies.
    """
    return _tiny("bigbird-tiny", **_ATTENTION)


def bigbird_etc_tiny() -> RunConfig:
    """BigBird-ETC for two CPU cores and ten minutes: a window of blocks, and 32 global tokens in front of 1,024."""
    return _tiny("bigbird-etc-tiny", **_ATTENTION)


def longformer_tiny() -> RunConfig:
    """Longformer for two CPU cores and ten minutes: a window, and one global token with projections of its own."""
    return _tiny("longformer-tiny", **_ATTENTION)


def star_tiny() -> RunConfig:
    """A star with a ring for two CPU cores and ten minutes: every token reads its neighbours and the first token."""
    return _tiny("star-tiny", **_ATTENTION)


def fnet_tiny() -> RunConfig:
    """FNet for two CPU cores and ten minutes: Fourier mixing instead of attention."""
    return _tiny("fnet-tiny")


def fnet_hybrid_tiny() -> RunConfig:
    """FNet with attention in the last two layers, for two CPU cores and ten minutes."""
    return _tiny("fnet-hybrid-tiny")


def bert_base() -> RunConfig:
    """BERT, 110M parameters: 1,000,000 steps of 256 pairs of 512 tokens (Devlin 2019, appendix A.2).

    Everything is published except the slices of a batch. The authors take 90% of the steps at 128 tokens; here all have
    512.
    """
    return _pretraining(
        "bert-base", "bpe:30522", 512, batch_size=256, gradient_accumulation_steps=32, next_sentence=True
    )


def bigbird_itc_base() -> RunConfig:
    """BigBird-ITC, 128M parameters: batches of 256 rows of 4,096 tokens (Zaheer 2020, appendix E).

    Inferred: the number of steps. The authors start from RoBERTa; this recipe starts with new weights.
    """
    return _pretraining(
        "bigbird-itc-base", "bpe:50358", 4096, batch_size=256, gradient_accumulation_steps=128, steps=500_000
    )


def bigbird_etc_base() -> RunConfig:
    """BigBird-ETC: 256 global tokens in front of 4,096, else as bigbird-itc-base (Zaheer 2020, appendix E).

    The authors' contrastive prediction of spans (CPC) is left out.
    """
    return _pretraining(
        "bigbird-etc-base", "bpe:50358", 4096, batch_size=256, gradient_accumulation_steps=128, steps=500_000
    )


def bigbird_itc_large() -> RunConfig:
    """BigBird-ITC, 358M parameters: batches of 2,048 rows of 4,096 tokens (Zaheer 2020, appendix E)."""
    return _pretraining(
        "bigbird-itc-large", "bpe:50358", 4096, batch_size=2048, gradient_accumulation_steps=2048, steps=500_000
    )


def longformer_base() -> RunConfig:
    """Longformer, 149M parameters: 65,000 steps of 64 rows of 4,096 tokens (Beltagy 2020, section 5).

    Published: learning rate 3e-5 and a warm-up of 500 steps, to continue from RoBERTa. This recipe starts with new
    weights, so it takes the learning rate and warm-up of BERT.
    """
    return _pretraining(
        "longformer-base", "bpe:50265", 4096, batch_size=64, gradient_accumulation_steps=32, steps=65_000
    )


def star_base() -> RunConfig:
    """A star with a ring over 4,096 tokens, in the shape of BERT. Not published: the settings are BigBird's."""
    return _pretraining("star-base", "bpe:30522", 4096, batch_size=256, gradient_accumulation_steps=128, steps=500_000)


def fnet_base() -> RunConfig:
    """FNet, 83M parameters: 1,000,000 steps of 256 pairs of 512 tokens (Lee-Thorp 2021, section 4.1).

    Inferred: byte-level unigram tokens instead of those of SentencePiece.
    """
    return _pretraining(
        "fnet-base", "unigram:32000", 512, batch_size=256, gradient_accumulation_steps=32, next_sentence=True
    )


def fnet_large() -> RunConfig:
    """FNet, 238M parameters; else as fnet-base (Lee-Thorp 2021, section 4.1)."""
    return _pretraining(
        "fnet-large", "unigram:32000", 512, batch_size=256, gradient_accumulation_steps=64, next_sentence=True
    )


def fnet_hybrid_base() -> RunConfig:
    """FNet with attention in the last two layers, 88M parameters; else as fnet-base (Lee-Thorp 2021, section 4.1)."""
    return _pretraining(
        "fnet-hybrid-base", "unigram:32000", 512, batch_size=256, gradient_accumulation_steps=32, next_sentence=True
    )


_ATTENTION: dict[str, Any] = {
    "block": "pre_norm",
    "position_type": "rotary",
    "initializer_range": None,
    "initializer_gain": 0.354,
    "learning_rate": 6e-3,
}
"""Where twins with attention differ from their published relatives and from the twins of FNet."""


def _tiny(name: str, *, learning_rate: float = 3e-3, **shape: Any) -> RunConfig:
    """A run of ten minutes; vocabulary and positions follow the tokenizer and the context."""
    return ten_minutes(
        name,
        published_shape(
            name, vocab_size=None, max_position_embeddings=None, dropout=0.0, attention_dropout=0.0, **shape
        ),
        every=200,
        objective="mlm",
        tokenizer="bpe:4096",
        learning_rate=learning_rate,
    )


def _pretraining(name: str, tokenizer: str, context: int, *, steps: int = 1_000_000, **settings: Any) -> RunConfig:
    """A run with the settings that all recipes share (see the module docstring)."""
    return full_size(
        name,
        published_shape(name),
        objective="mlm",
        tokenizer=tokenizer,
        context=context,
        steps=steps,
        learning_rate=1e-4,
        warmup_steps=10_000,
        schedule="linear",
        **settings,
    )
