"""Constructions that show which functions sparse transformers approximate, and the cost of sparsity."""

from typing import TYPE_CHECKING

from asterism.lazy import lazily

if TYPE_CHECKING:
    from asterism.theory.approximation.construction import Approximation, approximate
    from asterism.theory.approximation.contextual import ContextualMapping, star_mapping, yun_mapping

__all__ = ["Approximation", "ContextualMapping", "approximate", "star_mapping", "yun_mapping"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Approximation": "construction",
        "ContextualMapping": "contextual",
        "approximate": "construction",
        "star_mapping": "contextual",
        "yun_mapping": "contextual",
    },
)
