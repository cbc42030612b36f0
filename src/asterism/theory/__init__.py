"""Theorems that run: each construction of the papers as code that a reader can execute and a test can refute."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.theory.machine import TuringMachine
    from asterism.theory.simulation import simulate

__all__ = ["TuringMachine", "simulate"]

_LAZY = {"TuringMachine": "machine", "simulate": "simulation"}


def __getattr__(name: str) -> object:
    """Import a theorem when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.theory' has no attribute {name!r}")
    return getattr(import_module(f"asterism.theory.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
