"""Transformers whose attention is sparse: say who attends to whom, and get an exact, fast kernel for it.

    from asterism import attend, patterns
    out = attend(q, k, v, patterns.fixed(stride=128, summary=8))

Names that need torch are imported at first use. The operators of attention are registered with torch when a program
that was exported is read: torch finds them there by their names alone.
"""

from typing import TYPE_CHECKING

from asterism import patterns
from asterism.compiler import compile_pattern
from asterism.errors import AsterismError
from asterism.lazy import import_after, lazily
from asterism.memo import clear_caches

if TYPE_CHECKING:
    from asterism.kernels import (
        Alibi,
        BlockMass,
        Buckets,
        Choice,
        DistanceTable,
        Dropout,
        SoftSpan,
        Terms,
        attend,
        block_mass,
        decode,
        select,
    )
    from asterism.layers import SparseAttention

__version__ = "0.1.0"

_TERMS = ("Terms", "Alibi", "Buckets", "SoftSpan", "DistanceTable", "Dropout")

__all__ = [
    "Alibi",
    "AsterismError",
    "BlockMass",
    "Buckets",
    "Choice",
    "DistanceTable",
    "Dropout",
    "SoftSpan",
    "SparseAttention",
    "Terms",
    "attend",
    "block_mass",
    "clear_caches",
    "compile_pattern",
    "decode",
    "patterns",
    "select",
]

__getattr__, __dir__ = lazily(
    __name__,
    {"SparseAttention": "layers"}
    | dict.fromkeys(("attend", "decode", "select", "Choice", "block_mass", "BlockMass", *_TERMS), "kernels"),
    eager=("AsterismError", "clear_caches", "compile_pattern", "patterns"),
)

import_after("torch._export.serde.serialize", "asterism.kernels")  # the module that torch.export.load reads by
