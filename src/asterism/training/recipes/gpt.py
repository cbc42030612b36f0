"""Causal models of tokens: GPT-2 small with sparse layers, and a twin that trains in minutes on two CPU cores.

Of four layers, three read the 128 latest tokens and the last one reads the whole document, as in language models in
use (Gemma 3 has five windows for each full layer, Command R7B three). The tokenizer is trained on the text at hand.
"""

from dataclasses import replace

from asterism.shape import ModelConfig
from asterism.training.recipes.shape import full_size, ten_minutes
from asterism.training.settings.configuration import RunConfig

_THREE_WINDOWS = f"interleave({', '.join(['window(left=127)'] * 3)}, causal())"


def gpt_tiny() -> RunConfig:
    """A small model of tokens for two CPU cores and ten minutes, on text that every Python carries.

    Our own: the layers of bytes-small, and the settings of the other twins that read tokens. It is compared with
    bytes-small in bits per byte.
    """
    shape = ModelConfig(
        mixers=_THREE_WINDOWS,
        hidden_size=192,
        num_attention_heads=3,
        position_type="rotary",
        initializer_gain=0.354,
        tie_word_embeddings=True,
    )
    run = ten_minutes("gpt-tiny", shape, every=400, learning_rate=3e-3, tokenizer="bpe:4096", evaluation_bytes=65_536)
    return replace(run, context=512)


def gpt_small() -> RunConfig:
    """GPT-2 small with sparse layers, 124M parameters (Radford 2019, table 2), for 10 billion tokens.

    Published: sizes, 50,257 tokens, learned positions, context 1,024, 512 sequences a step (Radford 2019, section 2.3),
    weights of standard deviation 0.02; learning rate, betas, weight decay and gradient clip of GPT-3 small (Brown 2020,
    table 2.1 and appendix B). Ours: the pattern, the number of steps, no dropout.
    """
    shape = ModelConfig(
        mixers=_THREE_WINDOWS,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        hidden_act="gelu_new",
        initializer_range=0.02,
        tie_word_embeddings=True,
    )
    run = full_size(
        "gpt-small",
        shape,
        tokenizer="bpe:50257",
        context=1024,
        batch_size=512,
        gradient_accumulation_steps=64,
        steps=19_073,
        learning_rate=6e-4,
        warmup_steps=715,
    )
    return replace(run, beta2=0.95, weight_decay=0.1)
