"""BART (Lewis 2020): a dense encoder-decoder of post-norm blocks.

The first two rows of its tables of positions belong to no token and are left behind.
"""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing.encoder_decoder import EncoderDecoder, modules, same_positions, shape

NORMS = {"layernorm_embedding": "embedding_norm"}
POST_NORM = {"block": "post_norm", "embedding_norm": True}


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    return shape(config) | same_positions(config) | POST_NORM


BART = EncoderDecoder(
    class_prefix="Bart",
    prefix="model.",
    backbone=modules(norms=NORMS),
    fields=_fields,
    offset=lambda config: 2,
)
