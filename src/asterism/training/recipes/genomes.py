"""Models of genomes: BigBird's at its published size, and one that predicts each base and trains in minutes.

Both need `data`, a file or folder of sequences (docs/howto/genomes.md).
"""

from dataclasses import replace

from asterism.shape import ModelConfig
from asterism.training.recipes.shape import full_size, published_shape, taps, ten_minutes
from asterism.training.settings.configuration import RunConfig


def bigbird_genomics_base() -> RunConfig:
    """BigBird on DNA: 1,000,000 steps of 256 pairs of 4,096 tokens, 1.12 bits per base (Zaheer 2020, appendix F).

    Published: 32,000 pieces learned from the genome, documents of ten passes, and two tasks: masked tokens, and whether
    the second half of a row follows the first. Adam at 1e-4 has a warm-up of 10,000 steps and linear decay; dropout is
    0.1. Inferred: slices of two rows, and the settings that bigbird-itc-base takes from BERT. A row is divided between
    two tokens, not between two sentences, because sentences end at random here.
    """
    return full_size(
        "bigbird-genomics-base",
        published_shape("bigbird-genomics-base"),
        objective="mlm",
        next_sentence=True,
        modality="genome(reverse_complement=False)",
        tokenizer="dna-bpe:32000",
        context=4096,
        batch_size=256,
        gradient_accumulation_steps=128,
        steps=1_000_000,
        learning_rate=1e-4,
        warmup_steps=10_000,
        schedule="linear",
    )


def dna_tiny() -> RunConfig:
    """Each base from those before it, for two CPU cores and ten minutes.

    Our own: three layers of width 128, so that a run reads a genome of millions of bases several times. Twelve of the
    16 heads read one base each, 1 to 12 before the latest one, so the model need not learn to find its context. Four
    read more: the latest 16 and 64 bases; every third of the latest 384, the phase of codons; and every 64th base of
    all. Its bits per base are those of a compressor, and it writes sequences (`asterism generate`).
    """
    wide = ["window(left=15)", "window(left=63)", "stride(period=3) & window(left=383)", "strided(stride=64)"]
    shape = ModelConfig(
        mixers=taps(range(1, 13), wide),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=16,
        position_type="rotary",
        initializer_gain=0.354,
    )
    return replace(
        ten_minutes("dna-tiny", shape, every=400, learning_rate=6e-3, evaluation_bytes=65_536),
        modality="genome()",
        context=4096,
        batch_size=1,
    )
