"""Causal models of bytes with sparse attention, after Child et al. 2019 (arXiv 1904.10509).

All recipes share the published settings: Adam, linear warm-up over 5,000 steps, cosine decay, gradient clip 1.0 and
weight decay 0.01 (section 6). Attention and feed-forward blocks are recomputed in the backward pass (section 5.4).

The paper leaves some settings open. We chose the batch size, which also decides how many steps the published epochs
are, and Adam's betas. Weight decay is decoupled and acts on matrices only. The authors compute in float16 with dynamic
loss scaling; we use bfloat16 on machines that multiply it faster. The docstring of each recipe lists what else is
inferred.
"""

from dataclasses import replace
from typing import Any

from asterism.shape import ModelConfig
from asterism.training.recipes.shape import full_size, taps, ten_minutes
from asterism.training.settings.configuration import RunConfig


def bytes_small() -> RunConfig:
    """A small byte model for two CPU cores and ten minutes, on text that every Python carries.

    Our own: four layers of width 192 over a context of 1,024. A byte reads the latest 256 bytes and the last eighth of
    every block of 64. The fixed pattern of Child 2019 has such summary cells, but its blocks forget the line before
    them. A short run needs a small model, small batches and fast learning. So this one has rotary positions, Muon, and
    the larger of the two readings of the paper's initialisation.
    """
    shape = ModelConfig(
        mixers="window(left=255) | columns(period=64, first=56, count=8) & causal()",
        hidden_size=192,
        num_attention_heads=3,
        position_type="rotary",
        initializer_gain=0.354,
    )
    return ten_minutes("bytes-small", shape, every=400, learning_rate=6e-3, evaluation_bytes=65_536)


def cifar_tiny() -> RunConfig:
    """Pictures of 32 x 32 in colours, value by value, for two CPU cores and half an hour.

    Our own: 1.8M parameters and one picture per step, because a short run needs many steps. Twelve of the 16 heads read
    one value each: 2 to 6, 9, 93, 96 to 99 or 192 values before the predicted one. (The same channel lies 3, 6 and 9
    values before in the pixels to the left, and 96 before in the pixel above.) These heads are the taps of a masked
    convolution, so the model need not learn to find them. After one minute it needs 4.4 bits per value; with
    strided(stride=96) in all of six heads it needs 5.5.

    The other four heads read more: the latest values, both rows around the pixels above, a whole row, and strided. They
    hardly choose among their keys, so queries and keys have 8 numbers per head.
    """
    keys_before = (1, 2, 3, 4, 5, 8, 92, 95, 96, 97, 98, 191)
    wide = ["window(left=8)", "window(left=104) & ~window(left=86)", "window(left=99)", "strided(stride=96)"]
    shape = ModelConfig(
        mixers=taps(keys_before, wide),
        hidden_size=192,
        num_attention_heads=16,
        query_key_dim=128,
        value_dim=256,
        position_type="factorised",
        position_shape=(32, 32, 3),
        initializer_gain=0.354,
        tie_word_embeddings=True,
    )
    return replace(
        ten_minutes("cifar-tiny", shape, every=1_000, learning_rate=8e-3, evaluation_bytes=196_608),
        modality="images(width=32, height=32)",
        context=3_072,
        batch_size=1,
        minutes=30.0,
        steps=50_000,
        warmup_steps=100,
        log_every=50,
    )


def sound_tiny() -> RunConfig:
    """Recordings of speech, sample by sample at 8 kHz, for two CPU cores and twenty minutes.

    Our own: 1.9M parameters, and one window of 4,096 samples (half a second) per step, because a short run needs many
    steps. Twelve of the 16 heads read one sample each, 1 to 12 before the latest one. They are the taps of a linear
    predictor, so the model need not learn to find them. Three heads read the latest 16, 64 and 256 samples, where
    rotary positions find the period of a voice. The last head reads 256 samples and the first token, which may be a
    class. Queries and keys have 8 numbers per head.
    """
    wide = ["window(left=15)", "window(left=63)", "window(left=255)", "window(left=255) | global_keys(0) & causal()"]
    shape = ModelConfig(
        mixers=taps(range(1, 13), wide),
        hidden_size=192,
        num_attention_heads=16,
        query_key_dim=128,
        value_dim=256,
        position_type="rotary",
        initializer_gain=0.354,
    )
    return replace(
        ten_minutes("sound-tiny", shape, every=500, learning_rate=6e-3, evaluation_bytes=131_072),
        modality="audio(rate=8000)",
        context=4_096,
        batch_size=1,
        steps=50_000,
        minutes=20.0,
    )


def sparse_transformer_enwik8() -> RunConfig:
    """Enwik8 in bytes, 95M parameters, 0.99 bits per byte (Child 2019, section 7).

    Published: context 12,288, 30 layers, 8 heads, width 512, dropout 0.40, and 80 epochs over the first 90 MB. The
    pattern is fixed, with stride 128 and 32 summary cells; the summary cells of merged heads are distinct sub-blocks.
    Positions are the row and column of a matrix as wide as the stride. Inferred: the learning rate, which is that of
    CIFAR-10.
    """
    context, batch_size = 12_288, 16
    return _child_2019(
        "sparse-transformer-enwik8",
        ModelConfig(
            mixers="fixed(stride=128, summary=32, heads=8)",
            hidden_size=512,
            num_hidden_layers=30,
            num_attention_heads=8,
            position_type="factorised",
            position_shape=(96, 128),
            dropout=0.40,
        ),
        context=context,
        batch_size=batch_size,
        steps=80 * 90_000_000 // (context * batch_size),
    )


def sparse_transformer_cifar10() -> RunConfig:
    """CIFAR-10 in bytes, 59M parameters, 2.80 bits per byte (Child 2019, section 7).

    Published: context 3,072 (one picture), 128 layers, 2 heads, width 256, and queries, keys and feed-forward layers of
    half size. The pattern is strided, and positions are row, column and channel. Dropout is 0.25, the learning rate
    3.5e-4, and training takes 120 epochs over 48,000 pictures. Inferred: that the two parts of the pattern are merged,
    and the stride of 96, one row of pixels. The stride is in the authors' later code, not in the paper.

    Data: the binary batches, or folders of pictures. We divide the training pictures 95/5; the paper held out 2,000.
    """
    context, batch_size = 3_072, 32
    return _child_2019(
        "sparse-transformer-cifar10",
        ModelConfig(
            mixers="strided(stride=96)",
            hidden_size=256,
            num_hidden_layers=128,
            num_attention_heads=2,
            query_key_dim=128,
            intermediate_size=512,
            position_type="factorised",
            position_shape=(32, 32, 3),
            dropout=0.25,
        ),
        modality="images(width=32, height=32)",
        context=context,
        batch_size=batch_size,
        steps=120 * 48_000 // batch_size,
    )


def sparse_transformer_imagenet64() -> RunConfig:
    """ImageNet at 64 x 64 in bytes, 152M parameters, 3.44 bits per byte (Child 2019, section 7).

    Published: context 12,288 (one picture), 48 layers, 16 heads, width 512, the strided pattern with stride 128,
    positions by row, column and channel, dropout 0.01, and 70 epochs over 1,281,167 pictures. Inferred: the learning
    rate, which is that of CIFAR-10, and that the two parts of the pattern are merged. Data: the .npz files of the
    downsampled ImageNet, or folders of pictures.
    """
    context, batch_size = 12_288, 64
    return _child_2019(
        "sparse-transformer-imagenet64",
        ModelConfig(
            mixers="strided(stride=128)",
            hidden_size=512,
            num_hidden_layers=48,
            num_attention_heads=16,
            position_type="factorised",
            position_shape=(64, 64, 3),
            dropout=0.01,
        ),
        modality="images(width=64, height=64)",
        context=context,
        batch_size=batch_size,
        gradient_accumulation_steps=4,
        steps=70 * 1_281_167 // batch_size,
    )


def sparse_transformer_music() -> RunConfig:
    """Classical music, 12 kHz in 8-bit mu-law, 152M parameters, 1.97 bits per byte (Child 2019, section 7).

    Published: context 65,536, a strided pattern, 152M parameters. All else is inferred. Width 512 and 48 layers of 16
    heads are the shape of the ImageNet recipe, which has the published number of parameters. The stride of 256 is the
    square root of the context (section 4 advises a stride near it). Positions are the row and column of a matrix as
    wide as the stride. The learning rate is that of CIFAR-10, without dropout, for 100,000 steps of 8 clips. Data: a
    folder of recordings, from which clips are cut at random.
    """
    context = 65_536
    return _child_2019(
        "sparse-transformer-music",
        ModelConfig(
            mixers="strided(stride=256)",
            hidden_size=512,
            num_hidden_layers=48,
            num_attention_heads=16,
            position_type="factorised",
            position_shape=(256, 256),
        ),
        modality="audio(rate=12000)",
        context=context,
        batch_size=8,
        gradient_accumulation_steps=4,
        steps=100_000,
    )


def _child_2019(recipe: str, model: ModelConfig, **settings: Any) -> RunConfig:
    """A run with the settings that all recipes of Child 2019 share (see the module docstring)."""
    return full_size(recipe, model, learning_rate=3.5e-4, warmup_steps=5_000, **settings)
