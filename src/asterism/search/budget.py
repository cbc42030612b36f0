"""Budgets of attention, and the cost of a schedule: the pairs of a query and a key that it reads.

A pair costs the same floating-point operations under every pattern, so equal pairs are equal FLOPs. Pairs are counted
in keys per query, the mean over queries, layers and heads. A pattern that chooses its keys counts with all that it may
read at most; comparing queries with blocks in order to choose is not counted.
"""

import math
from dataclasses import dataclass

from asterism.compiler.blocks import pairs_read
from asterism.compiler.compile import compile_pattern
from asterism.errors import ConfigurationError, shown
from asterism.patterns import Pattern, layer_mixers

EXAMPLES = "flops=25% (of causal dense attention) or keys=64 (per query)"


@dataclass(frozen=True)
class Budget:
    """A limit as it was written, and in keys per query."""

    text: str
    keys: float


def dense_keys(length: int) -> float:
    """Keys per query of `causal()`."""
    return (length + 1) / 2


def read_budget(text: str, length: int) -> Budget:
    """Read `flops=25%` or `keys=64` for sequences of `length` tokens.

    Raises ConfigurationError for another kind, for what is not a number, and for a number that is not above 0 or is
    more than dense attention reads.
    """
    kind, _, amount = text.partition("=")
    number = amount.removesuffix("%") if kind == "flops" else amount
    if kind not in ("flops", "keys") or (kind == "flops" and not amount.endswith("%")):
        raise ConfigurationError("budget-kind", f"budget: must be such as {EXAMPLES}, got {shown(text)}")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    most = 100.0 if kind == "flops" else dense_keys(length)
    if not 0 < value <= most:
        unit = "%" if kind == "flops" else f" keys, those that causal() reads of {length:,}"
        raise ConfigurationError(
            "budget-amount", f"budget: must be above 0 and at most {most:g}{unit}, got {shown(amount)}"
        )
    return Budget(text, value / 100 * dense_keys(length) if kind == "flops" else value)


def keys_read(schedule: str, length: int, layers: int) -> float:
    """Keys per query that a schedule of causal patterns reads, the mean over its layers and heads.

    Raises PatternError for a schedule that cannot be read, or with fourier().
    """
    counted = [_pairs(mixer, length) for mixer in layer_mixers(schedule, layers) if isinstance(mixer, Pattern)]
    return sum(counted) / len(counted) / length


def _pairs(pattern: Pattern, length: int) -> float:
    """Pairs of one head, the mean over heads."""
    if pattern.chooses:
        return pairs_read(pattern, length, length, 0)
    plan = compile_pattern(pattern, length)
    return plan.pairs / plan.heads
