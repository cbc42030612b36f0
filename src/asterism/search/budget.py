"""Budgets of attention, and the cost of a schedule: the pairs of a query and a key that it reads.

A pair costs the same floating-point operations under every pattern, so equal pairs are equal FLOPs. Pairs are counted
in keys per query, the mean over queries, layers and heads. A pattern that chooses its keys counts with all that it may
read at most; comparing queries with blocks in order to choose is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.budget import parse_budget
from asterism.compiler.blocks import pairs_read
from asterism.compiler.compile import compile_pattern
from asterism.errors import ConfigurationError
from asterism.patterns import Pattern, layer_mixers


@dataclass(frozen=True)
class Limit:
    """A budget as it was written, and in keys per query."""

    text: str
    keys: float


def dense_keys(length: int) -> float:
    """Keys per query of `causal()`."""
    return (length + 1) / 2


def read_limit(text: str, length: int) -> Limit:
    """Read `flops=25%` or `keys=64` for sequences of `length` tokens.

    Raises ConfigurationError as `parse_budget` does, and for more keys than dense attention reads.
    """
    budget, most = parse_budget(text, ("flops", "keys")), dense_keys(length)
    keys = budget.amount * (most if budget.is_share else 1)
    if keys > most:
        raise ConfigurationError(
            "budget-amount",
            f"budget: must be at most {most:g} keys, those that causal() reads of {length:,}, got {text}",
        )
    return Limit(text, keys)


def keys_read(schedule: str | Sequence[str], length: int, layers: int) -> float:
    """Keys per query that a schedule, or one pattern for each layer, reads: the mean over queries, layers and heads.

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
