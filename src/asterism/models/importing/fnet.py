"""FNet (Lee-Thorp et al. 2021): Fourier mixing in the place of attention, and a linear layer after the embeddings."""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing.architecture import BACKBONE, Architecture
from asterism.models.importing.bert import HEADS

_ATTENTION = "encoder.layer.*.attention."


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    return {"mixers": "fourier()", "embedding_size": config.hidden_size}


FNET = Architecture(
    class_prefix="FNet",
    prefix="fnet.",
    backbone={
        **{module: ours for module, ours in BACKBONE.items() if not module.startswith(_ATTENTION)},
        "embeddings.projection": "embedding_projection",
        "encoder.layer.*.fourier.output.LayerNorm": "layers.*.mixer_norm",
    },
    heads=HEADS,
    fields=_fields,
)
