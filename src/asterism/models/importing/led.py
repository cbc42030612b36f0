"""LED (Beltagy 2020): BART with an encoder that attends as Longformer does, and with all rows of its position tables.

Which tokens are global is an argument of Hugging Face's `forward`; here it is part of the pattern (`longformer.py`).
"""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing import bart
from asterism.models.importing.encoder_decoder import EncoderDecoder, modules, positions, shape
from asterism.models.importing.longformer import windows_of

_SPARSE = "self_attn.longformer_self_attn"
_GLOBALS = {
    f"encoder.layers.*.{_SPARSE}.{part}_global": f"encoder.layers.*.mixer.global_{part}"
    for part in ("query", "key", "value")
}


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    reach = positions(config.max_encoder_position_embeddings, config.max_decoder_position_embeddings)
    return shape(config) | bart.POST_NORM | reach | windows_of(config)


LED = EncoderDecoder(
    class_prefix="LED",
    prefix="led.",
    backbone=modules(norms=bart.NORMS, sparse=_SPARSE) | _GLOBALS,
    fields=_fields,
    globals=_GLOBALS,
)
