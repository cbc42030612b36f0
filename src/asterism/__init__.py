"""Transformers whose attention is sparse: say who attends to whom, and get an exact, fast kernel for it.

    from asterism import attend, patterns
    out = attend(q, k, v, patterns.fixed(stride=128, summary=8))

What needs torch is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asterism import patterns
from asterism.compiler import compile_pattern
from asterism.errors import AsterismError

if TYPE_CHECKING:
    from asterism.kernels import attend, decode
    from asterism.layers import SparseAttention

__version__ = "0.1.0"

__all__ = ["AsterismError", "SparseAttention", "attend", "compile_pattern", "decode", "patterns"]

_LAZY = {"attend": "asterism.kernels", "decode": "asterism.kernels", "SparseAttention": "asterism.layers"}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
