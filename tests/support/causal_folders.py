"""Folders of small causal models with a tokenizer, and a finished run of bytes."""

from pathlib import Path

import torch
from small_checkpoints import draw_weights, undone
from tiny_run import TEXT
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from asterism.evaluation.words import ADJECTIVES, NOUNS
from asterism.training import ModelConfig, RunConfig, train
from asterism.training.data.corpora.tokenization import make_tokenizer

WINDOW = 24
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def begins(tokenizer: PreTrainedTokenizerFast, template: str) -> processors.TemplateProcessing:
    """What puts special tokens around a text."""
    numbers = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    return processors.TemplateProcessing(single=template, special_tokens=numbers)


def save_causal(folder: Path, *, windowed: bool = True, positions: int = 2048) -> Path:
    """A Mistral with a window of 24 keys, or a Llama without one, in float64, with a byte-level tokenizer."""
    documents = [" ".join(ADJECTIVES), " ".join(NOUNS), "The grass is green. 0 1 2 3 4 5 6 7 8 9"]
    tokenizer = make_tokenizer("bpe:400", documents, positions)
    tokenizer.add_special_tokens({"bos_token": "[CLS]", "eos_token": "[SEP]"})
    tokenizer.backend_tokenizer.post_processor = begins(tokenizer, "[CLS] $A")
    fields = {"vocab_size": len(tokenizer), "num_key_value_heads": 2, "max_position_embeddings": positions, **_SIZES}
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id, "pad_token_id": 0}
    with undone():
        if windowed:
            model = MistralForCausalLM(MistralConfig(sliding_window=WINDOW, **fields, **ends))
        else:
            model = LlamaForCausalLM(LlamaConfig(**fields, **ends))
        with torch.no_grad():
            draw_weights(model)
    model.double().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_bytes(folder: Path, *, context: int = 512, steps: int = 2, dtype: str = "float32") -> Path:
    """A run of a few steps on bytes."""
    data = folder.with_suffix(".txt")
    data.write_bytes(TEXT)
    model = ModelConfig(
        mixers="fixed(stride=16, summary=4)",
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        position_type="learned",
    )
    sizes = {"context": context, "batch_size": 2, "steps": steps, "warmup_steps": 1, "report_bytes": 1000}
    config = RunConfig(recipe="small", model=model, data=str(data), dtype=dtype, **sizes)
    train(config, folder, progress=False)
    return folder
