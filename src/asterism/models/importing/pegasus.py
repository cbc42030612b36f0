"""Pegasus (Zhang 2020): a dense encoder-decoder of pre-norm blocks, whose sinusoidal positions are not stored here."""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing.encoder_decoder import EncoderDecoder, modules, same_positions, shape


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    return shape(config) | same_positions(config) | {"block": "pre_norm", "position_type": "sinusoidal"}


PEGASUS = EncoderDecoder(
    class_prefix="Pegasus",
    prefix="model.",
    backbone=modules(norms={"layer_norm": "norm"}),
    fields=_fields,
)
