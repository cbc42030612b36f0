"""Models small enough for tests, in float64, with weights large enough that every token matters."""

from typing import Any

import torch
from torch import nn

from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForConditionalGeneration

CAUSAL_MIXERS = (
    "causal()",
    "window(left=5)",
    "window(left=3, dilation=2)",
    "blocks(size=7) & causal()",
    "strided(stride=6)",
    "fixed(stride=8, summary=2)",
    "fixed(stride=8, summary=2, heads=4)",
    "bigbird_causal(block=4, window_blocks=3, random=1, globals=(0,))",
    "bigbird_causal(block=4, window_blocks=3, random=1, heads=4)",
    "sinks(first=2, window=6)",
    "star() & causal()",
    "longformer(window=8, globals=(0, 3)) & causal()",
    "yun_strided(w=5) & causal()",
    "yun_fixed(w=5) & causal()",
    "yun_window(w=4) & causal()",
    "random_blocks(block=4, count=1, earlier=True) & causal() | window(left=2)",
    "interleave(window(left=5), stride(period=6) & causal())",
    "merge(window(left=5), stride(period=6) & causal())",
    "split_heads(window(left=5), stride(period=6) & causal(), heads=4)",
    "interleave(split_heads(window(left=2), causal(), heads=4), fixed(stride=8), shifted(causal(), 3) | window())",
)
"""Every causal pattern of the literature, and schedules that interleave, merge and split over heads."""

VOCABULARY = 40


def small_config(mixers: str | list[str] = "fixed(stride=8, summary=2)", **fields: Any) -> AsterismConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    return AsterismConfig(mixers=mixers, max_position_embeddings=64, **(sizes | fields))


def small_model(mixers: str | list[str] = "fixed(stride=8, summary=2)", **fields: Any) -> AsterismForCausalLM:
    model = AsterismForCausalLM(small_config(mixers, **fields)).double().eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        spread = 1.0 if "embed_tokens" in name or "positions" in name else 0.3
        torch.nn.init.normal_(parameter, mean=float(name.endswith("norm.weight")), std=spread, generator=generator)
    return model


def random_tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def encoder_config(mixers: str | list[str], **fields: Any) -> AsterismConfig:
    """Small, in the manner of BERT."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    manner = {"block": "post_norm", "embedding_norm": True, "hidden_act": "gelu", "initializer_range": 0.02}
    return AsterismConfig(mixers=mixers, max_position_embeddings=64, **(sizes | manner | fields))


def randomise(model: nn.Module) -> nn.Module:
    """The model in float64 and evaluation mode, with weights, biases and norms that all matter."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        is_scale = name.endswith("norm.weight")
        spread = 1.0 if parameter.ndim == 2 and "embed" in name or "positions" in name else 0.3
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.1 if is_scale else spread, generator=generator)
    return model


def seq2seq_config(
    mixers: str | list[str] = "window(left=3, right=3)", decoder_mixers: str | list[str] = "causal()", **fields: Any
) -> AsterismConfig:
    """An encoder-decoder, small, with 4 heads in each stack."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
    manner = {"max_position_embeddings": 64, "initializer_range": 0.02}
    return AsterismConfig(mixers=mixers, decoder_mixers=decoder_mixers, **(sizes | tokens | manner | fields))


def small_seq2seq(*mixers: str | list[str], **fields: Any) -> AsterismForConditionalGeneration:
    """With weights that all matter, in float64 and evaluation mode."""
    model = randomise(AsterismForConditionalGeneration(seq2seq_config(*mixers, **fields)))
    assert isinstance(model, AsterismForConditionalGeneration)
    return model
