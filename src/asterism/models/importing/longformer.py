"""Longformer (Beltagy 2020): RoBERTa with a window per layer, and global tokens with separate projections.

Which tokens are global is an argument of Hugging Face's `forward` (`global_attention_mask`); here it is part of the
pattern, and the first token unless the import is told otherwise. Without that argument the classes of Hugging Face
differ: the first token for sequences, the whole question for question answering, none for the others.
"""

from typing import Any

from transformers import PreTrainedConfig

from asterism.errors import CheckpointError
from asterism.models.importing import roberta
from asterism.models.importing.architecture import BACKBONE, Architecture

GLOBAL_PROJECTIONS = {
    f"encoder.layer.*.attention.self.{part}_global": f"layers.*.mixer.global_{part}"
    for part in ("query", "key", "value")
}
"""What only global tokens go through, and ours."""


def windows_of(config: PreTrainedConfig) -> dict[str, Any]:
    """The window of each layer and the first token as global one. Raises CheckpointError for windows that cannot be."""
    windows = config.attention_window
    windows = [windows] * config.num_hidden_layers if isinstance(windows, int) else windows
    if len(windows) != config.num_hidden_layers or any(window < 2 or window % 2 for window in windows):
        raise CheckpointError(
            "attention-window",
            f"attention_window {config.attention_window} must be an even number of at least 2 keys for each of the"
            f" {config.num_hidden_layers} layers",
        )
    return {"mixers": [f"longformer(window={window}, globals=(0,))" for window in windows], "global_projections": [0]}


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    roberta.check_head(config, head)
    return windows_of(config)


LONGFORMER = Architecture(
    class_prefix="Longformer",
    prefix="longformer.",
    backbone={**BACKBONE, **GLOBAL_PROJECTIONS},
    heads=roberta.HEADS,
    fields=_fields,
    offset=roberta.offset,
    globals=GLOBAL_PROJECTIONS,
)
