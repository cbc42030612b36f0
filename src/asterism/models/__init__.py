"""Hugging Face models. Importing this package registers them with AutoConfig, AutoModel and AutoModelForCausalLM."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from asterism.models.configuration import AsterismConfig
from asterism.models.drop_in import drop_pattern, use_pattern
from asterism.models.modeling import AsterismForCausalLM, AsterismModel, AsterismPreTrainedModel

AutoConfig.register(AsterismConfig.model_type, AsterismConfig)
AutoModel.register(AsterismConfig, AsterismModel)
AutoModelForCausalLM.register(AsterismConfig, AsterismForCausalLM)

__all__ = [
    "AsterismConfig",
    "AsterismForCausalLM",
    "AsterismModel",
    "AsterismPreTrainedModel",
    "drop_pattern",
    "use_pattern",
]
