"""BERT (Devlin 2019): dense attention; the classifier reads the pooled first token."""

from typing import Any

from transformers import PreTrainedConfig

from asterism.models.importing.architecture import BACKBONE, Architecture

MASKED_LM = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.norm",
    "cls.predictions.decoder": "lm_head.decoder",
    "cls.predictions": "lm_head.decoder",
}
PRE_TRAINING = {**MASKED_LM, "cls.seq_relationship": "next_sentence"}
CLASSIFIER = {"classifier": "classifier"}
SPAN = {"qa_outputs": "qa_outputs"}

HEADS = {
    "Model": {},
    "ForMaskedLM": MASKED_LM,
    "ForPreTraining": PRE_TRAINING,
    "ForSequenceClassification": CLASSIFIER,
    "ForTokenClassification": CLASSIFIER,
    "ForQuestionAnswering": SPAN,
}


def _fields(config: PreTrainedConfig, head: str) -> dict[str, Any]:
    return {"mixers": "dense()"}


BERT = Architecture(
    class_prefix="Bert",
    prefix="bert.",
    backbone=BACKBONE,
    heads=HEADS,
    fields=_fields,
)
