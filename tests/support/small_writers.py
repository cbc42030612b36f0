"""Tiny encoder-decoders of transformers with a word tokenizer, in a folder, and files of pairs."""

import random
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from asterism.randomness import isolated

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", ".", ":", "short")


def digit_tokenizer(*, starts: bool = True, without: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A token per word; a text ends with </s>, and as BART's begins with <s>. `without` leaves special tokens out."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *DIGITS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names = {name: token for name, token in names.items() if name not in without}
    if "eos_token" in names:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>" if starts else "$A </s>",
            pair="<s> $A </s> $B </s>" if starts else "$A </s> $B </s>",
            special_tokens=[(token, vocabulary[token]) for token in ("<s>", "</s>")],
        )
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


def save_tiny_bart(folder: Path, *, positions: int = 24, width: int = 32, scale: float = 0.2) -> Path:
    """A BART with random weights: a layer on each side, no dropout, and habits of its own in generating."""
    tokenizer = digit_tokenizer()
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=width,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        max_position_embeddings=positions,
        dropout=0.0,
        init_std=scale,
        **{"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    )
    with isolated(1):
        model = BartForConditionalGeneration(config)
    model.generation_config.num_beams = 3
    model.generation_config.min_length = 7
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_t5(folder: Path) -> Path:
    """A T5 with random weights: a layer on each side, no dropout; it says of no length that it ends there."""
    tokenizer = digit_tokenizer(starts=False)
    config = T5Config(
        **{"vocab_size": len(tokenizer), "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
        **{"dropout_rate": 0.0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    )
    with isolated(1), torch.device("cpu"):
        T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def digit_texts(count: int, *, longest: int, seed: int = 0) -> list[str]:
    """Different texts of one to `longest` digits."""
    draw, texts = random.Random(seed), dict[str, None]()
    while len(texts) < count:
        texts[" ".join(draw.choice(DIGITS[:10]) for _ in range(draw.randint(1, longest)))] = None
    return list(texts)
