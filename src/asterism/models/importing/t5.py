"""T5 (Raffel 2020), v1.0 and v1.1: pre-norm blocks with RMSNorm and without biases, positions as buckets of distances.

v1.1 has a gate in its feed-forward layer, and a last layer of its own, before which nothing is scaled.
"""

import math
from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing.architecture import activation
from asterism.models.importing.encoder_decoder import EncoderDecoder, positions, tokens

_TRAINED_LENGTH = 512
"""How many tokens T5 was trained with, which config.json may leave out: nothing ends there."""

_FEED_FORWARD = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}


def _modules() -> dict[str, str]:
    branches = {
        "encoder": [("SelfAttention", "mixer"), ("DenseReluDense", "feed_forward")],
        "decoder": [
            ("SelfAttention", "mixer"),
            ("EncDecAttention", "cross_attention"),
            ("DenseReluDense", "feed_forward"),
        ],
    }
    found = {}
    for stack, parts in branches.items():
        found[f"{stack}.embed_tokens"] = f"{stack}.embed_tokens"
        found[f"{stack}.block.*.layer.0.SelfAttention.relative_attention_bias"] = f"{stack}.relative"
        found[f"{stack}.final_layer_norm"] = f"{stack}.norm"
        for number, (theirs, ours) in enumerate(parts):
            layer, block = f"{stack}.block.*.layer.{number}", f"{stack}.layers.*"
            inside = _FEED_FORWARD if ours == "feed_forward" else _ATTENTION
            found |= {f"{layer}.{theirs}.{name}": f"{block}.{ours}.{own}" for name, own in inside.items()}
            found[f"{layer}.layer_norm"] = f"{block}.{ours.removesuffix('_attention')}_norm"
    return found


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    length = getattr(config, "n_positions", None) or _TRAINED_LENGTH
    scales = config.scale_decoder_outputs
    return {
        "block": "pre_norm",
        "norm": "rms",
        "layer_norm_eps": config.layer_norm_epsilon,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "num_attention_heads": config.num_heads,
        "query_key_dim": config.num_heads * config.d_kv,
        "value_dim": config.num_heads * config.d_kv,
        "attention_scale": 1.0,
        "attention_bias": False,
        "intermediate_size": config.d_ff,
        "feed_forward_bias": False,
        "gated_feed_forward": config.is_gated_act,
        "hidden_act": activation(config, "dense_act_fn"),
        "dropout": config.dropout_rate,
        "logit_scale": 1 / math.sqrt(config.d_model) if scales else 1.0,
        **positions(length, length),
        "position_type": "buckets",
        "relative_buckets": config.relative_attention_num_buckets,
        "relative_max_distance": config.relative_attention_max_distance,
        **tokens(config),
    }


class _T5(EncoderDecoder):
    def _may_differ(self, shared: bool, tied: bool) -> bool:
        """transformers writes v1.1 down as tied, too, and reads the last layer that the file has."""
        return shared


T5 = _T5(class_prefix="T5", prefix="", backbone=_modules(), fields=_fields)
