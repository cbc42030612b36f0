"""RoBERTa (Liu 2019), and CamemBERT and XLM-RoBERTa, which are built alike: dense attention.

The classifier of sequences has a dense layer of its own in the place of the pooler. Positions count from
`pad_token_id` + 1, so the rows of the table before that belong to no token and are left behind.
"""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from asterism.errors import CheckpointError
from asterism.models.importing.architecture import BACKBONE, Architecture, refuse_unless
from asterism.models.importing.bert import CLASSIFIER, SPAN

MASKED_LM = {
    "lm_head.dense": "lm_head.dense",
    "lm_head.layer_norm": "lm_head.norm",
    "lm_head.decoder": "lm_head.decoder",
    "lm_head": "lm_head.decoder",
}
POOLING_CLASSIFIER = {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"}

HEADS = {
    "Model": {},
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": POOLING_CLASSIFIER,
    "ForTokenClassification": CLASSIFIER,
    "ForQuestionAnswering": SPAN,
}


def check_head(config: PreTrainedConfig, head: str) -> None:
    """Raises CheckpointError when the masked-LM head, which is always by GELU, is not by the model's activation."""
    if head == "ForMaskedLM":
        refuse_unless(config, "hidden_act", "gelu", "an activation that its masked-LM head does not share")


def offset(config: PreTrainedConfig) -> int:
    """Rows of the position table before the one of the first token. Raises CheckpointError without a pad_token_id."""
    if config.pad_token_id is None:
        raise CheckpointError(
            "no-pad-token", "config.json has no pad_token_id, from which the positions of this model_type count"
        )
    return config.pad_token_id + 1


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    check_head(config, head)
    return {"mixers": "dense()"}


ROBERTA = Architecture(
    class_prefix="Roberta", prefix="roberta.", backbone=BACKBONE, heads=HEADS, fields=_fields, offset=offset
)
CAMEMBERT, XLM_ROBERTA = (replace(ROBERTA, class_prefix=name) for name in ("Camembert", "XLMRoberta"))
