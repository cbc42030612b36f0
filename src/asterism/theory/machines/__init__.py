"""Turing machines, run by transformers with full and with sparse attention in exact arithmetic."""

from typing import TYPE_CHECKING

from asterism.lazy import lazily

if TYPE_CHECKING:
    from asterism.theory.machines.machine import TuringMachine
    from asterism.theory.machines.simulation import simulate

__all__ = ["TuringMachine", "simulate"]

__getattr__, __dir__ = lazily(__name__, {"TuringMachine": "machine", "simulate": "simulation"})
