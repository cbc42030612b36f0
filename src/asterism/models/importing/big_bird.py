"""BigBird-ITC (Zaheer 2020): BERT with a pattern of blocks.

`attention_type` "original_full" is dense attention; "block_sparse" becomes `bigbird(...)` with the checkpoint's block
size and number of random blocks. A checkpoint does not store its random blocks. As in the authors' code, every layer
and head draws its own: the seed is the number of the layer. Our generator is another one, so the blocks are others, but
they stay: Hugging Face draws new ones at every length and, in evaluation mode, points every random block at block 0.
Their switch to dense attention for short inputs is not imported either.
"""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from asterism.errors import CheckpointError
from asterism.models.importing.architecture import activation, refuse_unless
from asterism.models.importing.bert import BERT
from asterism.models.importing.roberta import POOLING_CLASSIFIER

HEADS = {
    **{head: modules for head, modules in BERT.heads.items() if head != "ForQuestionAnswering"},
    "ForSequenceClassification": POOLING_CLASSIFIER,
}
"""The head for question answering has a feed-forward block of its own, so it is no counterpart of ours."""


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    refuse_unless(config, "rescale_embeddings", False, "embeddings that are multiplied by sqrt(hidden_size)")
    refuse_unless(config, "use_bias", True, "attention with a bias in its output only")
    fields: dict[str, Any] = {"mixers": mixers(config)}
    if head == "ForSequenceClassification":
        fields["pooler_act"] = activation(config)
    return fields


def mixers(config: PreTrainedConfig) -> str | list[str]:
    """Who attends to whom in each layer. Raises CheckpointError for an unknown attention_type."""
    if config.attention_type == "original_full":
        return "dense()"
    if config.attention_type != "block_sparse":
        raise CheckpointError(
            "attention-type", f"attention_type must be 'block_sparse' or 'original_full', got {config.attention_type!r}"
        )
    sizes = f"block={config.block_size}, window_blocks=3, random={config.num_random_blocks}, globals=(0, -1)"
    heads = config.num_attention_heads
    return [f"bigbird({sizes}, seed={layer}, heads={heads})" for layer in range(config.num_hidden_layers)]


BIG_BIRD = replace(BERT, class_prefix="BigBird", pooler={"pooler": "pooler.dense"}, heads=HEADS, fields=_fields)
