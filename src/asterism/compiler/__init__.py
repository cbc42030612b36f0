"""From a rule to a plan: tiles, masks and token orders, and what a cache may forget."""

from asterism.compiler.compile import compile_pattern
from asterism.compiler.from_mask import compile_mask
from asterism.compiler.liveness import FOREVER, NEVER, last_reader
from asterism.compiler.plan import Pass, Plan

__all__ = ["FOREVER", "NEVER", "Pass", "Plan", "compile_mask", "compile_pattern", "last_reader"]
