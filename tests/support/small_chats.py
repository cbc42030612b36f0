"""Tiny causal models with a tokenizer of one token per character, and examples to continue."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from asterism.randomness import isolated

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
LETTERS = "abcdefgh"
CHARACTERS = "abcdefghijklmnopqrstuvwxyzSUA0123456789 +=:>?.\n"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As tokenizers of Qwen and SmolLM have it."""
THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}>>{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""One that puts something in front of the last answer alone, as those of thinking models do."""


def character_tokenizer(template: str | None = None, **without: None) -> PreTrainedTokenizerFast:
    """A token per character; a text begins with <s>. A special token that is given as None is left out."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names = {name: token for name, token in names.items() if name not in without}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=["<|im_start|>", "<|im_end|>"], **names
    )
    made.chat_template = template
    return made


def save_tiny_llama(folder: Path, *, template: str | None = None, width: int = 32, positions: int = 128) -> Path:
    """A Llama of two layers with random weights."""
    tokenizer = character_tokenizer(template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    )
    with isolated(1), torch.device("cpu"):
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def words(count: int, *, longest: int = 4, seed: int = 0) -> list[str]:
    """Different words of one to `longest` letters."""
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found["".join(draw.choices(LETTERS, k=draw.randint(1, longest)))] = None
    return list(found)


def completions(texts: list[str]) -> list[dict[str, str]]:
    """Words to reverse."""
    return [{"prompt": f"{text}>", "completion": text[::-1]} for text in texts]


def conversation(*contents: str, system: str | None = None) -> dict[str, list[dict[str, str]]]:
    """A record of messages, of the user and the assistant in turn."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate(contents)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *turns]}


def chats(texts: list[str]) -> list[dict[str, list[dict[str, str]]]]:
    """Conversations of which the last answer is the word of the question, reversed."""
    return [conversation(text, text[::-1]) for text in texts]
