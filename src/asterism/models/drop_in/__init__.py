"""Patterns for models of transformers, through its AttentionInterface. Importing registers the parts there."""

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from asterism.models.drop_in.adapters import remember_in_adapters
from asterism.models.drop_in.attention import pattern_attention
from asterism.models.drop_in.field import IMPLEMENTATION, PatternField
from asterism.models.drop_in.restore import restore_when_built
from asterism.models.drop_in.tokens import describe_tokens
from asterism.models.drop_in.use_pattern import drop_pattern, use_pattern

PatternField.register()
restore_when_built(PreTrainedModel)
remember_in_adapters()
AttentionInterface.register(IMPLEMENTATION, pattern_attention)
AttentionMaskInterface.register(IMPLEMENTATION, describe_tokens)

__all__ = ["drop_pattern", "use_pattern"]
