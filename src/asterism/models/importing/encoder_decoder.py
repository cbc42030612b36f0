"""An encoder-decoder of Hugging Face for the import, and the common part of BART and its relatives.

The tensors decide which embeddings are one: those of both stacks and the last layer may each stand in the file, or only
`shared`. Where the configuration says that they are tied, tensors that differ are refused.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig

from asterism.errors import CheckpointError
from asterism.layers import SinusoidalPositions
from asterism.models.importing.architecture import Architecture, activation, special_tokens

HEAD = "ForConditionalGeneration"
HEADS = {HEAD: {"final_logits_bias": "lm_head", "lm_head": "lm_head"}}
"""The one class that is imported: an encoder-decoder that generates."""

_SHARED, _ENCODER, _DECODER, _LAST = (
    f"{module}.weight" for module in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
)
_BIAS = "final_logits_bias"
_TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Architecture):
    """One kind of checkpoint with a decoder; `fields` gives all fields of its configuration that no tensor decides."""

    pooler: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: HEADS)

    def head_of(self, config: PreTrainedConfig, tensors: Iterable[str]) -> str:
        """As of every architecture; but a tied backbone, as BART was published, is all of a model that generates."""
        backbone = f"{self.class_prefix}Model"
        if config.tie_word_embeddings and config.architectures and config.architectures[0] == backbone:
            return HEAD
        return super().head_of(config, tensors)

    def prepare(self, config: PreTrainedConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Names without prefix, and every embedding under each of its names; no table of sines, no bias of zeros."""
        found = {name.removeprefix(self.prefix): tensor for name, tensor in tensors.items()}
        shared = found.pop(_SHARED, None)
        if shared is None:
            shared = next((found[name] for name in (_ENCODER, _DECODER) if name in found), None)
        if shared is not None:
            found = {_ENCODER: shared, _DECODER: shared} | found
            if config.tie_word_embeddings:
                found.setdefault(_LAST, found[_DECODER])
        bias = found.pop(_BIAS, None)
        if bias is not None and bias.any():
            found[f"{_BIAS}.bias"] = bias.flatten()
        if self.fields(config, HEAD)["position_type"] == "sinusoidal":
            for name in _TABLES:
                _check_sines(name, found.pop(name, None))
        return found

    def configuration(self, config: PreTrainedConfig, head: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The fields of AsterismConfig. Raises CheckpointError for what has no counterpart."""
        shared, tied = (_equal(tensors, name, _DECODER) for name in (_ENCODER, _LAST))
        if config.tie_word_embeddings and not self._may_differ(shared, tied):
            raise CheckpointError(
                "tied-tensors-differ",
                f"config.json ties the embeddings, but {_ENCODER if tied else _LAST} differs from {_DECODER}; write"
                ' "tie_word_embeddings": false into it',
            )
        return self.fields(config, head) | {
            "share_embeddings": shared,
            "tie_word_embeddings": tied,
            "lm_head_bias": f"{_BIAS}.bias" in tensors,
        }

    def _may_differ(self, shared: bool, tied: bool) -> bool:
        """Whether embeddings may be like this where the configuration says that they are tied."""
        return shared and tied


def _equal(tensors: Mapping[str, torch.Tensor], first: str, second: str) -> bool:
    """Whether both are equal; also where one is missing, which is reported later."""
    one, other = tensors.get(first), tensors.get(second)
    return one is None or other is None or one is other or torch.equal(one, other)


def _check_sines(name: str, table: torch.Tensor | None) -> None:
    """Raises CheckpointError for a table [P, C] of positions that are not the sines that the model computes."""
    if table is None:
        return
    if table.ndim == 2 and table.numel() and table.is_floating_point():
        sines = SinusoidalPositions(table.shape[1])(torch.arange(len(table), device=table.device))
        # Rounded as often as it was saved; sines of large angles differ by the rounding of the frequency.
        if (table.double() - sines.double()).abs().max() <= 4 * max(torch.finfo(table.dtype).eps, 1e-5):
            return
    raise CheckpointError(
        "positions-not-sines",
        f"{name} differs from the sinusoidal positions of its model_type, which Asterism computes itself",
    )


_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}


def modules(*, norms: Mapping[str, str], sparse: str | None = None) -> dict[str, str]:
    """Modules of BART and its kin, and ours.

    norms   norms of each stack outside its layers, and ours
    sparse  what holds the projections of self-attention in a layer of a sparse encoder, such as "self_attn.self"
    """
    own = {f"self_attn.{theirs}": f"mixer.{ours}" for theirs, ours in _ATTENTION.items()}
    of_encoder = own
    if sparse is not None:
        of_encoder = {f"{sparse}.{part}": f"mixer.{part}" for part in ("query", "key", "value")}
        of_encoder["self_attn.output"] = "mixer.output"
    cross = {f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()}
    rest = {
        "self_attn_layer_norm": "mixer_norm",
        "fc1": "feed_forward.up_proj",
        "fc2": "feed_forward.down_proj",
        "final_layer_norm": "feed_forward_norm",
    }
    blocks = {
        "encoder": of_encoder | rest,
        "decoder": own | cross | {"encoder_attn_layer_norm": "cross_norm"} | rest,
    }
    outside = {"embed_tokens": "embed_tokens", "embed_positions": "positions", **norms}
    return {
        **{f"{stack}.{theirs}": f"{stack}.{ours}" for stack in blocks for theirs, ours in outside.items()},
        **{
            f"{stack}.layers.*.{theirs}": f"{stack}.layers.*.{ours}"
            for stack, block in blocks.items()
            for theirs, ours in block.items()
        },
    }


def shape(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of AsterismConfig that BART and its kin fill alike. Raises CheckpointError for unequal stacks."""
    for name in ("attention_heads", "ffn_dim"):
        first, second = (getattr(config, f"{stack}_{name}") for stack in ("encoder", "decoder"))
        if first != second:
            raise CheckpointError(
                "stacks-differ",
                f"the checkpoint has encoder_{name} {first} and decoder_{name} {second}; only stacks of equal width and"
                " heads are imported",
            )
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_dim,
        "embedding_scale": math.sqrt(config.d_model) if getattr(config, "scale_embedding", False) else 1.0,
        "hidden_act": activation(config, "activation_function"),
        "dropout": config.dropout,
        "initializer_range": config.init_std,
        **tokens(config),
    }


def positions(encoder: int, decoder: int) -> dict[str, Any]:
    """How many tokens the stacks reach, by learned positions; a dense encoder, and a decoder that reads all of it."""
    return {
        "max_position_embeddings": encoder,
        "decoder_max_position_embeddings": decoder,
        "position_type": "learned",
        "mixers": "dense()",
        "decoder_mixers": "causal()",
        "cross_mixers": "dense()",
    }


def same_positions(config: PreTrainedConfig) -> dict[str, Any]:
    """`positions` where both stacks reach as far."""
    return positions(config.max_position_embeddings, config.max_position_embeddings)


def tokens(config: PreTrainedConfig) -> dict[str, Any]:
    """The vocabulary, and the tokens that mean something."""
    return {"vocab_size": config.vocab_size, **special_tokens(config)}
