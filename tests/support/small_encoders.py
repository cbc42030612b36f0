"""A tiny BERT with a word tokenizer, in a folder, and files of examples that it can learn."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from asterism.models import AsterismConfig, AsterismForMaskedLM
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *("the", "a", "lamp", "coin", "book", "is", "in", "at", "cellar", "attic", "garden", "red", "blue", "green"),
    *("good", "bad", "where", "what", "anna", "ben", "of", "paris", "rome", "."),
)

THINGS, PLACES = ("lamp", "coin", "book"), ("cellar", "attic", "garden")
REVIEWS = [
    {"text": f"the {thing} is {word}", "label": "good" if word in ("red", "good") else "bad"}
    for thing in THINGS
    for word in ("red", "blue", "good", "bad")
]
TAGGED = [
    {"tokens": ["the", thing, "of", name], "tags": ["O", "O", "O", "B-PER" if name in ("anna", "ben") else "B-LOC"]}
    for thing in THINGS
    for name in ("paris", "rome", "anna", "ben")
]
QUESTIONS = [
    {
        "context": f"the {thing} is in {place} . anna is red .",
        "question": f"where is the {thing}",
        "answers": [{"text": place, "answer_start": len(f"the {thing} is in ")}],
    }
    for thing in THINGS
    for place in PLACES
]


def word_tokenizer(words: Iterable[str] = WORDS) -> PreTrainedTokenizerFast:
    """One token per word or mark, lower case, with BERT's special tokens."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def save_tiny_bert(folder: Path, *, positions: int = 32) -> Path:
    """A model folder with random weights: one layer, width 32, no dropout."""
    tokenizer = word_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    with isolated(1), torch.device("cpu"):
        BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def base_tokenizer() -> PreTrainedTokenizerFast:
    """One token per base, with BERT's special tokens."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *"ACGTN"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names)


def save_bases_model(folder: Path, *, positions: int = 64) -> Path:
    """One of our encoders of bases, in a folder: random weights, two layers of width 32, a window of 4 on each side."""
    tokenizer = base_tokenizer()
    config = AsterismConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=positions,
        mixers="window(left=4, right=4)",
        position_type="rotary",
        initializer_gain=0.5,
        pad_token_id=0,
    )
    with isolated(1), quiet_transformers():
        AsterismForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
