"""Token mixers, positions and blocks as torch modules, and padding."""

from asterism.layers.attention import SparseAttention
from asterism.layers.block import (
    NORMS,
    AllAttentionBlock,
    FeedForward,
    GatedFeedForward,
    PostNormBlock,
    PreNormBlock,
)
from asterism.layers.cross import CrossAttention
from asterism.layers.fourier import FourierMixing
from asterism.layers.index import IndexBranch
from asterism.layers.initialisation import ResidualLinear, initialise
from asterism.layers.linear import Linear
from asterism.layers.linear_mixing import LinearMixing
from asterism.layers.persistent import AdaptiveSpan, PersistentAttention, PersistentVectors, within_span
from asterism.layers.positions import (
    BucketedPositions,
    FactorisedPositions,
    LearnedPositions,
    RelativePositions,
    Rotary,
    SinusoidalPositions,
)
from asterism.layers.rows import Rows, rows_of

__all__ = [
    "NORMS",
    "AdaptiveSpan",
    "AllAttentionBlock",
    "BucketedPositions",
    "CrossAttention",
    "FactorisedPositions",
    "FeedForward",
    "FourierMixing",
    "LinearMixing",
    "GatedFeedForward",
    "IndexBranch",
    "LearnedPositions",
    "Linear",
    "PersistentAttention",
    "PersistentVectors",
    "PostNormBlock",
    "PreNormBlock",
    "RelativePositions",
    "ResidualLinear",
    "Rotary",
    "Rows",
    "SinusoidalPositions",
    "SparseAttention",
    "initialise",
    "rows_of",
    "within_span",
]
