"""Hugging Face models. Importing this package registers them with the Auto* classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from asterism.models.base import AsterismPreTrainedModel
from asterism.models.causal_lm import AsterismForCausalLM
from asterism.models.classification import AsterismForSequenceClassification, AsterismForTokenClassification
from asterism.models.configuration import AsterismConfig
from asterism.models.drop_in import drop_pattern, use_pattern
from asterism.models.importing import ImportedCheckpoint, import_checkpoint
from asterism.models.masked_lm import AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.modeling import AsterismModel
from asterism.models.question_answering import AsterismForQuestionAnswering
from asterism.models.seq2seq import AsterismForConditionalGeneration

AutoConfig.register(AsterismConfig.model_type, AsterismConfig)
AutoModel.register(AsterismConfig, AsterismModel)
AutoModelForCausalLM.register(AsterismConfig, AsterismForCausalLM)
AutoModelForMaskedLM.register(AsterismConfig, AsterismForMaskedLM)
AutoModelForPreTraining.register(AsterismConfig, AsterismForPreTraining)
AutoModelForQuestionAnswering.register(AsterismConfig, AsterismForQuestionAnswering)
AutoModelForSeq2SeqLM.register(AsterismConfig, AsterismForConditionalGeneration)
AutoModelForSequenceClassification.register(AsterismConfig, AsterismForSequenceClassification)
AutoModelForTokenClassification.register(AsterismConfig, AsterismForTokenClassification)

__all__ = [
    "AsterismConfig",
    "AsterismForCausalLM",
    "AsterismForConditionalGeneration",
    "AsterismForMaskedLM",
    "AsterismForPreTraining",
    "AsterismForQuestionAnswering",
    "AsterismForSequenceClassification",
    "AsterismForTokenClassification",
    "AsterismModel",
    "AsterismPreTrainedModel",
    "drop_pattern",
    "use_pattern",
    "ImportedCheckpoint",
    "import_checkpoint",
]
