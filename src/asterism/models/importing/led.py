"""LED (Beltagy 2020): BART with an encoder that attends as Longformer does, and with all rows of its position tables.

Which tokens are global is an argument of Hugging Face's `forward`; here it is part of the pattern (`longformer.py`).
"""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing import bart
from asterism.models.importing.encoder_decoder import HEADS, EncoderDecoder, modules, positions, shape
from asterism.models.importing.longformer import windows_of

_PARTS = ("query", "key", "value")
_ATTENTION = {
    **{f"self_attn.longformer_self_attn.{part}": f"mixer.{part}" for part in _PARTS},
    "self_attn.output": "mixer.output",
}
_GLOBALS = {
    f"encoder.layers.*.self_attn.longformer_self_attn.{part}_global": f"encoder.layers.*.mixer.global_{part}"
    for part in _PARTS
}


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    reach = positions(config.max_encoder_position_embeddings, config.max_decoder_position_embeddings)
    return shape(config) | bart.POST_NORM | reach | windows_of(config)


LED = EncoderDecoder(
    class_prefix="LED",
    prefix="led.",
    backbone=modules(_ATTENTION, norms=bart.NORMS) | _GLOBALS,
    pooler={},
    heads=HEADS,
    fields=_fields,
    globals=_GLOBALS,
)
