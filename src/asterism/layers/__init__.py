"""Token mixers, positions and blocks as torch modules, and padding."""

from asterism.layers.attention import SparseAttention
from asterism.layers.block import AllAttentionBlock, FeedForward, PostNormBlock, PreNormBlock
from asterism.layers.fourier import FourierMixing
from asterism.layers.initialisation import ResidualLinear, initialise
from asterism.layers.linear import Linear
from asterism.layers.persistent import AdaptiveSpan, PersistentAttention, PersistentVectors, within_span
from asterism.layers.positions import FactorisedPositions, LearnedPositions, RelativePositions, Rotary

__all__ = [
    "AdaptiveSpan",
    "AllAttentionBlock",
    "FactorisedPositions",
    "FeedForward",
    "FourierMixing",
    "LearnedPositions",
    "Linear",
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
