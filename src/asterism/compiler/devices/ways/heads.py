"""Every device computes some heads of the whole sequence (Jacobs et al. 2023, DeepSpeed-Ulysses)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.compiler.devices.communication import Communication, TokenPlace
from asterism.compiler.devices.needs import Term
from asterism.compiler.devices.traffic import Collective, RowShape
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern, PerHead


@dataclass(frozen=True)
class ByHeads:
    """Queries, keys and values go to the device that computes their head, results go back. Heads and key heads must be
    multiples of the devices."""

    pattern: Pattern
    ignores_the_pattern: ClassVar[bool] = True

    @classmethod
    def offers(cls, place: TokenPlace, pattern: Pattern, found: Sequence[Term]) -> Iterator[tuple["ByHeads"]]:
        """Where devices divide the heads, and heads can be told apart."""
        if no_ulysses(place.keys.devices, place.shape) is None and some_heads(pattern, 0, 1) is not None:
            yield (cls(pattern),)

    def collectives(self, plan: Communication, shape: RowShape) -> Iterator[Collective]:
        """Tokens there, results back."""
        moved = np.array(plan.queries.sizes) * shape.query + np.array(plan.keys.sizes) * shape.key
        yield _to_everyone("queries, keys and values", moved // plan.devices)
        back = _to_everyone("results", np.array(plan.queries.sizes) * shape.result // plan.devices)
        yield Collective(back.name, back.received, back.sent, back.sources, back.targets)

    def held(self, plan: Communication, shape: RowShape) -> Integers:
        """int64 [devices], bytes: of all tokens some heads."""
        return np.full(plan.devices, plan.keys.length * shape.key // plan.devices)

    def title(self, plan: Communication) -> str:
        """What moves, in words."""
        return f"every rank computes some heads of all {plan.keys.length:,} tokens (Ulysses)"


def no_ulysses(devices: int, shape: RowShape) -> str | None:
    """Why sequences cannot be exchanged for heads on so many devices; None where they can."""
    for count, name in ((shape.heads, "heads"), (shape.key_heads, "key heads")):
        if count % devices:
            return f"impossible: {devices:,} devices do not divide {count} {name}"
    return None


def some_heads(pattern: Pattern, first: int, past: int) -> Pattern | None:
    """The pattern of heads first .. past - 1 alone; None where other rules than `per_head` tell heads apart."""
    if pattern.heads == 1:
        return pattern
    if isinstance(pattern, PerHead):
        chosen = pattern.patterns[first:past]
        return PerHead(chosen) if all(own.heads == 1 for own in chosen) else None
    children = [some_heads(child, first, past) for child in pattern.children]
    known = tuple(child for child in children if child is not None)
    return pattern.rebuild(known) if known and len(known) == len(children) else None


def _to_everyone(name: str, moved: Integers) -> Collective:
    """Every device sends `moved` bytes of its own to each other one."""
    others, some = len(moved) - 1, (moved > 0).astype(np.int64)
    return Collective(name, moved * others, moved.sum() - moved, some * others, some.sum() - some)
