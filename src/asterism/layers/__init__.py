"""Token mixers and blocks as torch modules. Only the cache needs transformers, so it is imported when asked for."""

from typing import TYPE_CHECKING, Any

from asterism.layers.attention import SparseAttention
from asterism.layers.block import AllAttentionBlock, FeedForward, PostNormBlock, PreNormBlock
from asterism.layers.fourier import FourierMixing
from asterism.layers.initialisation import ResidualLinear, initialise
from asterism.layers.persistent import AdaptiveSpan, PersistentAttention, PersistentVectors, within_span
from asterism.layers.positions import FactorisedPositions, LearnedPositions, RelativePositions, Rotary

if TYPE_CHECKING:
    from asterism.layers.cache import PatternCache, PatternCacheLayer

__all__ = [
    "AdaptiveSpan",
    "AllAttentionBlock",
    "FactorisedPositions",
    "FeedForward",
    "FourierMixing",
    "LearnedPositions",
    "PatternCache",
    "PatternCacheLayer",
    "PersistentAttention",
    "PersistentVectors",
    "PostNormBlock",
    "PreNormBlock",
    "RelativePositions",
    "ResidualLinear",
    "Rotary",
    "SparseAttention",
    "initialise",
    "within_span",
]


def __getattr__(name: str) -> Any:
    if name in ("PatternCache", "PatternCacheLayer"):
        from asterism.layers import cache

        return getattr(cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
