"""Budgets, as text: how much of dense attention may be left, in keys read, in what a cache keeps, or in operations."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from asterism.errors import ConfigurationError, nearest, shown

Kind = Literal["keys", "cache", "flops"]

MEANING: dict[Kind, str] = {
    "keys": "keys that a query reads",
    "cache": "tokens that a cache keeps",
    "flops": "operations of attention",
}
"""What a budget counts: the mean over all layers and heads, after a text of the length that is measured."""

_EXAMPLES: dict[Kind, str] = {"keys": "keys=512 or keys=25%", "cache": "cache=40%", "flops": "flops=25%"}


@dataclass(frozen=True)
class Budget:
    """At most `amount` of a kind: a number (512 keys, 300 tokens), or with `is_share` a share of dense attention."""

    kind: Kind
    amount: float
    is_share: bool

    def __str__(self) -> str:
        return f"{self.kind}={self.amount:.6g}" if not self.is_share else f"{self.kind}={self.amount * 100:.6g}%"


def parse_budget(text: str, kinds: Collection[Kind] = get_args(Kind)) -> Budget:
    """The budget, of one of these kinds, that a text such as "keys=512", "cache=40%" or "flops=25%" names.

    Raises ConfigurationError for another kind, and for what is not a number above 0, or a share of at most 100%.

    >>> parse_budget("cache=40%")
    Budget(kind='cache', amount=0.4, is_share=True)
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if name not in kinds or not equals:
        hint = nearest(name, kinds) if equals else ""
        examples = ", ".join(_EXAMPLES[kind] for kind in kinds)
        raise ConfigurationError("unknown-budget", f"budget: write {examples}, got {shown(text)}.{hint}")
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%?)", value)
    amount = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not (found and 0 < amount < math.inf) or (found[2] and amount > 1) or (name == "flops" and not found[2]):
        share = "a share above 0% and at most 100%"
        what = share if name == "flops" else f"a number above 0, or {share}"
        raise ConfigurationError("bad-budget", f"budget: {name} takes {what}, got {shown(value)}")
    return Budget(name, amount, bool(found[2]))  # type: ignore[arg-type]
