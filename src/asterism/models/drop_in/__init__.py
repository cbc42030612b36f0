"""Patterns for models of transformers, through its AttentionInterface, once they are installed there."""

from asterism.models.drop_in.installation import install
from asterism.models.drop_in.native import native_patterns
from asterism.models.drop_in.use_pattern import drop_pattern, use_pattern

__all__ = ["drop_pattern", "install", "native_patterns", "use_pattern"]
