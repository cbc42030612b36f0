"""Kernels of attention: functions of (q, k, v, pattern), independent of models."""

from asterism.kernels.attend import attend, decode, decode_slots
from asterism.kernels.choice.choice import IMPLEMENTATIONS
from asterism.kernels.choice.prices import matrix_rates
from asterism.kernels.masks import readable, readable_keys
from asterism.kernels.mass import BlockMass, block_mass
from asterism.kernels.selection.asked import Choice
from asterism.kernels.selection.select import select
from asterism.kernels.terms.terms import Alibi, Bias, Buckets, DistanceTable, Dropout, SoftSpan, Terms

__all__ = [
    "IMPLEMENTATIONS",
    "Alibi",
    "Bias",
    "BlockMass",
    "Buckets",
    "Choice",
    "DistanceTable",
    "Dropout",
    "SoftSpan",
    "Terms",
    "attend",
    "block_mass",
    "decode",
    "decode_slots",
    "matrix_rates",
    "readable",
    "readable_keys",
    "select",
]
