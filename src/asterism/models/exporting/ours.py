"""Models of Asterism in the words of Llama: which can be written so, and the names of their tensors there.

A pre-norm block with RMSNorm, rotary positions and a gated feed-forward layer is a block of Llama. Every field that
makes a model something else is named when it is refused.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError

FAMILY = "asterism"

_NEEDED: dict[str, tuple[Any, str]] = {
    "decoder_mixers": (None, "a stock model of one stack has no decoder next to an encoder"),
    "block": ("pre_norm", "blocks of Llama normalise before each branch"),
    "norm": ("rms", "Llama has RMSNorm"),
    "position_type": ("rotary", "Llama has rotary positions"),
    "gated_feed_forward": (True, "the feed-forward layer of Llama has a gate"),
    "type_vocab_size": (0, "Llama has no token types"),
    "embedding_size": (None, "Llama has no projection of embeddings"),
    "embedding_norm": (False, "Llama has no norm of embeddings"),
    "embedding_scale": (1.0, "Llama does not scale embeddings"),
    "global_tokens": (0, "no stock model has learned tokens in front"),
    "index_dim": (0, "Llama has no index branch"),
    "global_projections": (None, "no stock model has projections of global tokens"),
    "logit_scale": (1.0, "Llama does not scale logits"),
    "lm_head_bias": (False, "the last layer of Llama has no bias"),
}
"""What fields must hold, and why."""

_NAMES = (
    (r"\.mixer_norm\.", ".input_layernorm."),
    (r"\.mixer\.query\.", ".self_attn.q_proj."),
    (r"\.mixer\.key\.", ".self_attn.k_proj."),
    (r"\.mixer\.value\.", ".self_attn.v_proj."),
    (r"\.mixer\.output\.", ".self_attn.o_proj."),
    (r"\.feed_forward_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.(gate|up|down)_proj\.", r".mlp.\1_proj."),
)
"""Ours, as regular expressions, and Llama's."""


def as_llama(config: PreTrainedConfig, kind: str) -> dict[str, Any]:
    """The fields of a LlamaConfig for a model of Asterism, whose class is `kind`.

    Raises ConfigurationError for one that is no Llama, with all that differs.
    """
    told = [
        f"{name} is {getattr(config, name)!r}, and {reason}"
        for name, (needed, reason) in _NEEDED.items()
        if getattr(config, name) != needed
    ]
    width = config.query_key_dim // config.num_attention_heads
    if config.query_key_dim != config.value_dim:
        told.append(f"value_dim is {config.value_dim}, and values of Llama are as wide as queries")
    if config.attention_scale is not None and not math.isclose(config.attention_scale, width**-0.5):
        told.append(f"attention_scale is {config.attention_scale:g}, and that of Llama is 1 / sqrt({width})")
    if kind != "AsterismForCausalLM":
        told.insert(0, f"it is {kind}, and only AsterismForCausalLM has a stock counterpart")
    if told:
        raise ConfigurationError("no-stock-counterpart", f"the model is no Llama: {'; '.join(told)}")
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "max_position_embeddings", "hidden_act", "attention_bias", "tie_word_embeddings"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "dtype"),
    )
    return {
        **{name: getattr(config, name) for name in same},
        "head_dim": width,
        "rms_norm_eps": config.layer_norm_eps,
        "mlp_bias": config.feed_forward_bias,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }


def llama_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors, of any shapes [...] and dtypes, under the names of Llama."""
    return {_llama_name(name): tensor for name, tensor in tensors.items()}


def _llama_name(name: str) -> str:
    """
    >>> _llama_name("model.layers.3.feed_forward.gate_proj.weight")
    'model.layers.3.mlp.gate_proj.weight'
    """
    for ours, llama in _NAMES:
        name = re.sub(ours, llama, name)
    return name
