"""Theorems that run: what a pattern can and cannot express, with witnesses that can be checked."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.theory.approximation import Approximation, approximate
    from asterism.theory.contextual import ContextualMapping, star_mapping, yun_mapping
    from asterism.theory.universality import Certificate, certify

_LAZY = {
    "Approximation": "approximation",
    "Certificate": "universality",
    "ContextualMapping": "contextual",
    "approximate": "approximation",
    "certify": "universality",
    "star_mapping": "contextual",
    "yun_mapping": "contextual",
}

__all__ = [
    "Approximation",
    "Certificate",
    "ContextualMapping",
    "approximate",
    "certify",
    "star_mapping",
    "yun_mapping",
]


def __getattr__(name: str) -> object:
    """Import a theorem when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.theory' has no attribute {name!r}")
    return getattr(import_module(f"asterism.theory.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
