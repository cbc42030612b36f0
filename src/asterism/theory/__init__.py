"""Theorems that run: each construction of the papers as code that a reader can execute and a test can refute.

from asterism.theory import certify
print(certify("star() | window(1, 1)", 64).explain())
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.theory.approximation.construction import Approximation, approximate
    from asterism.theory.approximation.contextual import ContextualMapping, star_mapping, yun_mapping
    from asterism.theory.certificates.universality import Certificate, certify
    from asterism.theory.machines.machine import TuringMachine
    from asterism.theory.machines.simulation import simulate

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
    "Approximation": "approximation.construction",
    "Certificate": "certificates.universality",
    "ContextualMapping": "approximation.contextual",
    "TuringMachine": "machines.machine",
    "approximate": "approximation.construction",
    "certify": "certificates.universality",
    "simulate": "machines.simulation",
    "star_mapping": "approximation.contextual",
    "yun_mapping": "approximation.contextual",
}


def __getattr__(name: str) -> object:
    """Import a theorem when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.theory' has no attribute {name!r}")
    return getattr(import_module(f"asterism.theory.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
