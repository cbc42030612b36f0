"""Hugging Face models. Importing this package registers them with the Auto* classes of transformers, and lets models of
its own classes follow patterns (`drop_in.install`)."""

from typing import TYPE_CHECKING

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

from asterism.lazy import lazily
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.prefix import Prefix
from asterism.models.drop_in import drop_pattern, install, native_patterns, use_pattern
from asterism.models.exporting import Exported, ExportedGraph, export_graph, export_native
from asterism.models.heads.causal_lm import AsterismForCausalLM
from asterism.models.heads.classification import AsterismForSequenceClassification, AsterismForTokenClassification
from asterism.models.heads.conditional_generation import AsterismForConditionalGeneration
from asterism.models.heads.masked_lm import AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.heads.question_answering import AsterismForQuestionAnswering
from asterism.models.importing import ImportedCheckpoint, import_checkpoint
from asterism.models.mass import LayerMass, MassRecord, record_mass
from asterism.models.trees import PackedTree, draft_tree, tree_of

if TYPE_CHECKING:
    from asterism.models.drop_in.trainer import shard_sequences

install()
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
    "PackedTree",
    "Prefix",
    "draft_tree",
    "Exported",
    "ExportedGraph",
    "drop_pattern",
    "export_graph",
    "export_native",
    "native_patterns",
    "tree_of",
    "shard_sequences",
    "use_pattern",
    "LayerMass",
    "MassRecord",
    "record_mass",
    "ImportedCheckpoint",
    "import_checkpoint",
]

__getattr__, __dir__ = lazily(__name__, {"shard_sequences": "drop_in.trainer"}, eager=tuple(__all__))
