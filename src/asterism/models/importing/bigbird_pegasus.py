"""BigBird-Pegasus (Zaheer 2020): Pegasus with learned positions, without biases in attention, and a sparse encoder.

Its norms of the name `layernorm_embedding` stand behind the last block. Random blocks are as in `big_bird.py`.
"""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing import big_bird
from asterism.models.importing.encoder_decoder import EncoderDecoder, modules, same_positions, shape


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    own = {"block": "pre_norm", "attention_bias": config.use_bias, "mixers": big_bird.mixers(config)}
    return shape(config) | same_positions(config) | own


BIGBIRD_PEGASUS = EncoderDecoder(
    class_prefix="BigBirdPegasus",
    prefix="model.",
    backbone=modules(norms={"layernorm_embedding": "norm"}, sparse="self_attn.self"),
    fields=_fields,
)
