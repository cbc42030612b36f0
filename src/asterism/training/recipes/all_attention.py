"""Causal models of bytes without feed-forward parts: persistent memory (Sukhbaatar et al. 2019, arXiv 1907.01470).

The models are those of `models/asterism/published.py`. The authors' scripts publish 64 sequences in blocks of 512
bytes, each of which reads a cache of earlier bytes; Adagrad at 0.07 with a warm-up over 32,000 steps and gradient clip
0.03; 200,000 steps, and 10,000 more at a tenth of the learning rate.

Here a sequence is as long as the largest span, a step has as many bytes as theirs, and the optimiser is Adam. Inferred:
its learning rate, betas and decay.
"""

from asterism.training.recipes.shape import full_size, published_shape, ten_minutes
from asterism.training.settings.configuration import RunConfig


def all_attention_tiny() -> RunConfig:
    """Bytes without feed-forward parts, for two CPU cores and ten minutes: the settings of bytes-small."""
    name = "all-attention-tiny"
    shape = published_shape(name, max_position_embeddings=None)
    return ten_minutes(name, shape, every=400, learning_rate=3e-3, evaluation_bytes=65_536)


def all_attention_enwik8_small() -> RunConfig:
    """Enwik8 in bytes, 38M parameters, 1.01 bits per byte (Sukhbaatar 2019, table 2)."""
    return _enwik8("all-attention-enwik8-small", steps=480_000)


def all_attention_enwik8_large() -> RunConfig:
    """Enwik8 in bytes, 114M parameters, 0.98 bits per byte (Sukhbaatar 2019, table 2)."""
    return _enwik8("all-attention-enwik8-large", steps=210_000)


def _enwik8(name: str, steps: int) -> RunConfig:
    """A run with the settings that both share (see the module docstring)."""
    return full_size(
        name,
        published_shape(name),
        context=8192,
        batch_size=4,
        gradient_accumulation_steps=4,
        steps=steps,
        learning_rate=3.5e-4,
        warmup_steps=32_000,
    )
