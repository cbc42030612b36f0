"""Theorems that run: each construction of the papers as code that a reader can execute and a test can refute.

from asterism.theory import certify
print(certify("star() | window(1, 1)", 64).explain())
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.theory.approximation import Approximation, approximate
    from asterism.theory.contextual import ContextualMapping, star_mapping, yun_mapping
    from asterism.theory.machine import TuringMachine
    from asterism.theory.simulation import simulate
    from asterism.theory.universality import Certificate, certify

__all__ = [
    "Approximation",
    "Certificate",
    "ContextualMapping",
    "TuringMachine",
    "approximate",
    "certify",
    "simulate",
    "star_mapping",
    "yun_mapping",
]

_LAZY = {
    "Approximation": "approximation",
    "Certificate": "universality",
    "ContextualMapping": "contextual",
    "TuringMachine": "machine",
    "approximate": "approximation",
    "certify": "universality",
    "simulate": "simulation",
    "star_mapping": "contextual",
    "yun_mapping": "contextual",
}


def __getattr__(name: str) -> object:
    """Import a theorem when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.theory' has no attribute {name!r}")
    return getattr(import_module(f"asterism.theory.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
