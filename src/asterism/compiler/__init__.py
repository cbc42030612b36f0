"""Compiles patterns into plans (tiles, masks and token orders), and finds the keys that a cache may forget."""

from asterism.compiler.compile import compile_pattern
from asterism.compiler.liveness import FOREVER, NEVER, last_reader
from asterism.compiler.plan import Pass, Plan
from asterism.compiler.slots import HeadGroup, SlotPlan, head_groups, slot_plan

__all__ = [
    "FOREVER",
    "NEVER",
    "HeadGroup",
    "Pass",
    "Plan",
    "SlotPlan",
    "compile_pattern",
    "head_groups",
    "last_reader",
    "slot_plan",
]
