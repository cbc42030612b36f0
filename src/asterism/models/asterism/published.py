"""Models of the literature at their published sizes, and twins of them that train in minutes on two CPU cores.

Every function returns a complete AsterismConfig; `published(name)` finds it by name. Common to the encoders: the norm
last in each block, a norm on the embeddings, dropout 0.1, inside attention too (FNet apart), matrices from N(0, 0.02),
the decoder of the masked LM tied to the embedding (Devlin 2019). Vocabularies are those of the published checkpoints:
another tokenizer brings its own `vocab_size`. What a paper does not say, or what differs here, stands in the docstring.
Parameters are counted with the head of the masked language model; of encoder-decoders, with the last layer, which is
the embedding, too.

A tiny twin has four layers (of each stack) of width 192 and three heads, a vocabulary of 8,192 and 1,024 positions. Its
blocks and windows are smaller, and so are the sets of global and random tokens, so that at 512 to 1,024 tokens its
pattern is sparse too.
"""

import math
from collections.abc import Callable
from typing import Any

from asterism.errors import ConfigurationError, nearest
from asterism.models.asterism.configuration import AsterismConfig

BASE: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
TINY: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "vocab_size": 8192,
    "max_position_embeddings": 1024,
}


def bert_base() -> AsterismConfig:
    """BERT, the dense baseline: 110M parameters (Devlin 2019, section 3).

    Published: 12 layers, width 768, 12 heads, 512 positions, two token types, a vocabulary of 30,522.
    """
    return _bert("dense()", **BASE, vocab_size=30522, max_position_embeddings=512)


def bert_tiny() -> AsterismConfig:
    """The twin of bert-base."""
    return _bert("dense()", **TINY)


def bigbird_itc_base() -> AsterismConfig:
    """BigBird with global tokens of the text itself (Zaheer 2020, appendix E).

    Published: blocks of 64, a window of 3 blocks, 3 random blocks, 2 global blocks (first and last), 4,096 positions,
    the shape of BERT. Random blocks differ by head and layer, as in the authors' code. The paper prints no size; the
    released checkpoint (google/bigbird-roberta-base, vocabulary 50,358) has 128M parameters, which this one has too.
    """
    return _bigbird(_bigbird_layers(12, heads=12), **BASE)


def bigbird_itc_large() -> AsterismConfig:
    """The large BigBird-ITC: 24 layers, width 1,024, 16 heads (Zaheer 2020, appendix E).

    The size, 358M parameters, is that of the released checkpoint (google/bigbird-roberta-large).
    """
    return _bigbird(_bigbird_layers(24, heads=16), **LARGE)


def bigbird_genomics_base() -> AsterismConfig:
    """BigBird for DNA: bigbird-itc-base with a vocabulary of 32,000 (Zaheer 2020, appendix F, table 21).

    Published: all but the size, which follows from that of bigbird-itc-base: 114M parameters.
    """
    return _bigbird(_bigbird_layers(12, heads=12), **BASE, vocab_size=32000)


def bigbird_tiny() -> AsterismConfig:
    """The twin of bigbird-itc-base: blocks of 32, a window of 3 blocks, 1 random block and 2 global ones."""
    return _bigbird(_bigbird_layers(4, heads=3, block=32, random=1), **TINY)


def bigbird_etc_base() -> AsterismConfig:
    """BigBird with 256 global tokens in front of the text (Zaheer 2020, appendix E).

    Published: blocks of 84, a window of 3 blocks, no random blocks, 256 global tokens. Inferred: absolute positions
    (the paper's are relative), for 4,096 tokens of text besides the global ones; no size is published.
    """
    return _bigbird("bigbird_etc(block=84, globals=256)", **BASE, global_tokens=256)


def bigbird_etc_tiny() -> AsterismConfig:
    """The twin of bigbird-etc-base: blocks of 32, 32 global tokens."""
    return _bigbird("bigbird_etc(block=32, globals=32)", **TINY, global_tokens=32)


def longformer_base() -> AsterismConfig:
    """Longformer, 149M parameters (Beltagy 2020; size of the released checkpoint allenai/longformer-base-4096).

    Published: the shape and vocabulary of RoBERTa, 4,096 positions, a window of 512 in every layer, no dilation,
    projections of their own for global tokens. Inferred: the first token alone is global, as in classification;
    question answering makes the question global too.
    """
    return _longformer(512, **BASE, vocab_size=50265, max_position_embeddings=4096)


def longformer_tiny() -> AsterismConfig:
    """The twin of longformer-base: a window of 64."""
    return _longformer(64, **TINY)


def star_base() -> AsterismConfig:
    """An encoder whose attention is a star with a ring: token 0 reads all and is read by all (Guo 2019).

    It has the fewest connections with which both universality theorems hold (Zaheer 2020, Yun 2020). No such model of
    this size is published: shape and vocabulary are those of bert-base, with 4,096 positions.
    """
    return _bert("star_transformer()", **BASE, vocab_size=30522, max_position_embeddings=4096)


def star_tiny() -> AsterismConfig:
    """The twin of star-base."""
    return _bert("star_transformer()", **TINY)


def fnet_base() -> AsterismConfig:
    """FNet, 83M parameters (Lee-Thorp 2021, table 1).

    Published: Fourier mixing in 12 layers of width 768, feed-forward layers of 3,072, 512 positions, four token types,
    a vocabulary of 32,000. From the authors' code: a linear layer between embeddings and blocks.
    """
    return _fnet("fourier()", **BASE, vocab_size=32000, max_position_embeddings=512)


def fnet_large() -> AsterismConfig:
    """The large FNet, 238M parameters: 24 layers of width 1,024 (Lee-Thorp 2021, table 1)."""
    return _fnet("fourier()", **LARGE, vocab_size=32000, max_position_embeddings=512)


def fnet_hybrid_base() -> AsterismConfig:
    """FNet with attention in the last two layers (Lee-Thorp 2021, section 4.1).

    The size follows from those of FNet-base and of an attention layer of width 768: 83M + 2 * 2.4M = 88M.
    """
    return _fnet(["fourier()"] * 10 + ["dense()"] * 2, **BASE, vocab_size=32000, max_position_embeddings=512)


def fnet_tiny() -> AsterismConfig:
    """The twin of fnet-base."""
    return _fnet("fourier()", **TINY)


def fnet_hybrid_tiny() -> AsterismConfig:
    """The twin of fnet-hybrid-base: attention in the last two of four layers.

    As there, an even number of Fourier layers: their norms stand behind, where the transform is hundreds of times
    larger than what it is added to, so an odd number leaves frequencies, in which attention finds no word.
    """
    return _fnet(["fourier()"] * 2 + ["dense()"] * 2, **TINY)


def transformer_base(vocab_size: int = 41_100, **sizes: Any) -> AsterismConfig:
    """The Transformer, dense: 65M parameters (Vaswani 2017, table 3, "base").

    Published: 6 layers of each stack, width 512, 8 heads, 2,048 inside, sinusoidal positions, norms behind, ReLU, no
    bias in attention, one matrix for all embeddings and the last layer, dropout 0.1. Inferred: the 41,100 tokens.
    The ten sizes that table 3 prints of this model and its variations (all but "big") agree to the last digit with
    41,004 to 41,208 tokens; the "about 37,000" of section 5.1 would make 63.0M, 3% less. Norms have PyTorch's epsilon.
    """
    shape = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8} | sizes
    return _encoder_decoder(
        "dense()",
        block="post_norm",
        vocab_size=vocab_size,
        attention_bias=False,
        hidden_act="relu",
        position_type="sinusoidal",
        initializer_range=shape["hidden_size"] ** -0.5,
        embedding_scale=math.sqrt(shape["hidden_size"]),
        **shape,
    )


def transformer_tiny() -> AsterismConfig:
    """The twin of transformer-base."""
    return transformer_base(**TINY, decoder_max_position_embeddings=256)


def bigbird_roberta_base_summarization() -> AsterismConfig:
    """BigBird base as an encoder-decoder, 155M parameters (Zaheer 2020, section 4.1 and appendix E.5).

    Published: the encoder of bigbird-itc-base, a full decoder of the same weights, and cross attention in each of its
    layers. The size follows: 127M without the head of the masked language model, and 12 cross attentions of 2.4M.
    The activation is that of the checkpoint from which the authors start.
    """
    return _bigbird_summarization(_bigbird_layers(12, heads=12), **BASE, vocab_size=50358, max_position_embeddings=4096)


def bigbird_roberta_summarization_tiny() -> AsterismConfig:
    """The twin of bigbird-roberta-base-summarization: blocks of 32, a window of 3 blocks, 1 random one, 2 global."""
    return _bigbird_summarization(_bigbird_layers(4, heads=3, block=32, random=1), **TINY)


def bigbird_pegasus_large() -> AsterismConfig:
    """BigBird-Pegasus, 577M parameters (Zaheer 2020, appendix E.5; size of google/bigbird-pegasus-large-arxiv).

    Published: 16 layers of each stack, width 1,024, 16 heads, norms in front; in the authors' scripts: ReLU, no bias in
    attention, embeddings times sqrt(1024), 4,096 positions. The authors keep the table of positions at sines; here it
    is learned, as in the released checkpoint.
    """
    shape = {"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16}
    return _bigbird_pegasus(_bigbird_layers(16, heads=16), **shape, vocab_size=96103, max_position_embeddings=4096)


def bigbird_pegasus_tiny() -> AsterismConfig:
    """The twin of bigbird-pegasus-large: blocks of 32, a window of 3 blocks, 1 random block and 2 global ones."""
    layers = _bigbird_layers(4, heads=3, block=32, random=1)
    return _bigbird_pegasus(layers, **TINY, decoder_max_position_embeddings=256)


def led_base() -> AsterismConfig:
    """LED, 162M parameters: BART base with the attention of Longformer (Beltagy 2020, section 7).

    Published: 6 layers of each stack, 16,384 positions of the source and 1,024 of the target, a window of 1,024 in
    every layer, the first token global, with projections of its own (size of allenai/led-base-16384).
    """
    shape = BASE | {"num_hidden_layers": 6}
    positions = {"max_position_embeddings": 16_384, "decoder_max_position_embeddings": 1024}
    return _led(1024, **shape, **positions, vocab_size=50265)


def led_tiny() -> AsterismConfig:
    """The twin of led-base: a window of 64."""
    return _led(64, **TINY, decoder_max_position_embeddings=256)


def all_attention_enwik8_small() -> AsterismConfig:
    """The small all-attention model of bytes, 38-39M parameters, 1.01 bits per byte (Sukhbaatar 2019, enwik8).

    Published in the authors' scripts: 18 layers of width 512, 8 heads, 1,024 persistent vectors per head, adaptive
    spans up to 8,192, dropout 0.3. A causal model. See `all_attention_enwik8_large`.
    """
    return _all_attention(18, 1024, span=8192, dropout=0.3)


def all_attention_enwik8_large() -> AsterismConfig:
    """The large all-attention model of bytes, 114M parameters, 0.98 bits per byte (Sukhbaatar 2019, enwik8).

    Published in the authors' scripts: 36 layers, 2,048 persistent vectors per head, adaptive spans up to 8,192, dropout
    0.4, penalty 1e-7. As there, a token reads the tokens before it and not itself. Inferred: the initialisation of
    matrices. A vocabulary of all 256 bytes, where enwik8 has 205.
    """
    return _all_attention(36, 2048, span=8192, dropout=0.4)


def all_attention_tiny() -> AsterismConfig:
    """The twin of the all-attention models: four layers of width 192, 256 persistent vectors, spans up to 256."""
    return _all_attention(4, 256, span=256, dropout=0.0, hidden_size=192, num_attention_heads=3)


def _encoder(mixers: str | list[str], **fields: Any) -> AsterismConfig:
    """What all encoders share (module docstring)."""
    shared = {
        "block": "post_norm",
        "embedding_norm": True,
        "dropout": 0.1,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    }
    return AsterismConfig(mixers=mixers, **(shared | fields))


def _bert(mixers: str, **fields: Any) -> AsterismConfig:
    shape = {"attention_dropout": 0.1} | fields
    return _encoder(mixers, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12, **shape)


def _bigbird(mixers: str | list[str], **fields: Any) -> AsterismConfig:
    shape = {"vocab_size": 50358, "max_position_embeddings": 4096, "attention_dropout": 0.1} | fields
    return _encoder(mixers, type_vocab_size=2, hidden_act="gelu_new", layer_norm_eps=1e-12, **shape)


def _bigbird_layers(layers: int, heads: int, block: int = 64, random: int = 3) -> list[str]:
    """Random blocks drawn anew in every layer and for every head."""
    return [f"bigbird({block=}, {random=}, seed={layer}, {heads=})" for layer in range(layers)]


def _longformer(window: int, **fields: Any) -> AsterismConfig:
    return _encoder(
        f"longformer({window=}, globals=(0,))",
        global_projections=[0],
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        attention_dropout=0.1,
        **fields,
    )


def _fnet(mixers: str | list[str], **fields: Any) -> AsterismConfig:
    return _encoder(
        mixers,
        embedding_size=fields["hidden_size"],
        type_vocab_size=4,
        hidden_act="gelu_new",
        layer_norm_eps=1e-12,
        **fields,
    )


def _encoder_decoder(mixers: str | list[str], **fields: Any) -> AsterismConfig:
    """What all encoder-decoders share: a full decoder, dropout 0.1, one matrix for embeddings and the last layer."""
    shared = {"decoder_mixers": "causal()", "dropout": 0.1, "initializer_range": 0.02, "tie_word_embeddings": True}
    return AsterismConfig(mixers=mixers, **(shared | fields))


def _bigbird_summarization(mixers: list[str], **fields: Any) -> AsterismConfig:
    return _encoder_decoder(
        mixers,
        block="post_norm",
        embedding_norm=True,
        type_vocab_size=2,
        tie_encoder_decoder=True,
        hidden_act="gelu_new",
        layer_norm_eps=1e-12,
        attention_dropout=0.1,
        **fields,
    )


def _bigbird_pegasus(mixers: list[str], **fields: Any) -> AsterismConfig:
    scale = math.sqrt(fields["hidden_size"])
    return _encoder_decoder(mixers, attention_bias=False, hidden_act="relu", embedding_scale=scale, **fields)


def _led(window: int, **fields: Any) -> AsterismConfig:
    return _encoder_decoder(
        f"longformer({window=}, globals=(0,))",
        block="post_norm",
        embedding_norm=True,
        global_projections=[0],
        hidden_act="gelu",
        **fields,
    )


def _all_attention(layers: int, vectors: int, span: int, dropout: float, **fields: Any) -> AsterismConfig:
    shape = {"hidden_size": 512, "num_attention_heads": 8} | fields
    return AsterismConfig(
        mixers=f"window(left={span}) & ~window()",
        block="all_attention",
        num_hidden_layers=layers,
        persistent_vectors=vectors,
        position_type="relative",
        relative_span=span,
        max_position_embeddings=span,
        adaptive_span=True,
        attention_bias=False,
        dropout=dropout,
        **shape,
    )


PUBLISHED: dict[str, Callable[[], AsterismConfig]] = {
    "bert-base": bert_base,
    "bert-tiny": bert_tiny,
    "bigbird-itc-base": bigbird_itc_base,
    "bigbird-itc-large": bigbird_itc_large,
    "bigbird-genomics-base": bigbird_genomics_base,
    "bigbird-tiny": bigbird_tiny,
    "bigbird-etc-base": bigbird_etc_base,
    "bigbird-etc-tiny": bigbird_etc_tiny,
    "longformer-base": longformer_base,
    "longformer-tiny": longformer_tiny,
    "star-base": star_base,
    "star-tiny": star_tiny,
    "fnet-base": fnet_base,
    "fnet-large": fnet_large,
    "fnet-tiny": fnet_tiny,
    "fnet-hybrid-base": fnet_hybrid_base,
    "fnet-hybrid-tiny": fnet_hybrid_tiny,
    "transformer-base": transformer_base,
    "transformer-tiny": transformer_tiny,
    "bigbird-roberta-base-summarization": bigbird_roberta_base_summarization,
    "bigbird-roberta-summarization-tiny": bigbird_roberta_summarization_tiny,
    "bigbird-pegasus-large": bigbird_pegasus_large,
    "bigbird-pegasus-tiny": bigbird_pegasus_tiny,
    "led-base": led_base,
    "led-tiny": led_tiny,
    "all-attention-enwik8-small": all_attention_enwik8_small,
    "all-attention-enwik8-large": all_attention_enwik8_large,
    "all-attention-tiny": all_attention_tiny,
}


def published(name: str) -> AsterismConfig:
    """The configuration of a published model or of a twin, by name.

    Raises ConfigurationError for an unknown name, with the nearest known one.
    """
    if name not in PUBLISHED:
        raise ConfigurationError(
            "unknown-published-model",
            f"unknown published model {name!r}.{nearest(name, PUBLISHED)} Known: {', '.join(PUBLISHED)}",
        )
    return PUBLISHED[name]()
