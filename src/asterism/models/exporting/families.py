"""The families of transformers whose configurations hold windows, and which weights fit into which of them.

A stock configuration has one width for all of its windows. Which layers have it is a list, `layer_types`, in some
families, and in others all layers or none. As read from transformers 5.23; every export is compared with the model that
it was made from, so a family that changes is noticed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from asterism.patterns import Pattern
from asterism.patterns.sides import Sides, beyond_sides, sides_of


@dataclass(frozen=True)
class Family:
    """How the configurations of a family say windows.

    by_layer        whether `layer_types` says which layers have one; else all do
    both_sides      whether a window reaches to both sides, and layers without one read every token
    base_by_type    whether rotary positions are defined by the type of a layer, and so change with it
    width           the field with the width, and what it counts: keys with the query's own, or twice one side
    always          fields that switch windows on
    biases          whether projections may have biases, as in Llama
    """

    by_layer: bool = True
    both_sides: bool = False
    base_by_type: bool = False
    width: str = "sliding_window"
    always: dict[str, Any] = field(default_factory=dict)
    biases: bool = True

    def width_of(self, left: int) -> int:
        """What the field `width` holds for a window of so many tokens before the query."""
        if self.both_sides:
            return 2 * left
        return 2 * (left + 1) if self.width == "local_attention" else left + 1


_SWITCHED = {"use_sliding_window": True}

FAMILIES: dict[str, Family] = {
    "mistral": Family(by_layer=False, biases=False),
    "mixtral": Family(by_layer=False),
    "phi3": Family(by_layer=False),
    "qwen3_moe": Family(by_layer=False, always=_SWITCHED),
    "starcoder2": Family(by_layer=False),
    "cwm": Family(biases=False),
    "gemma2": Family(),
    "gemma3_text": Family(base_by_type=True),
    "gpt_oss": Family(),
    "ministral": Family(biases=False),
    "modernbert": Family(both_sides=True, base_by_type=True, width="local_attention"),
    "modernbert-decoder": Family(base_by_type=True, width="local_attention"),
    "olmo3": Family(base_by_type=True),
    "qwen2": Family(always=_SWITCHED),
    "qwen3": Family(always=_SWITCHED),
    "smollm3": Family(always=_SWITCHED),
}
"""By `model_type`."""

_OF_LLAMA = ("mistral", "ministral", "cwm", "smollm3")
TARGETS: dict[str, tuple[str, ...]] = {
    "llama": _OF_LLAMA,
    "mistral": ("mistral", "ministral", "cwm"),
    "ministral": ("mistral", "ministral", "cwm"),
    "cwm": ("mistral", "ministral", "cwm"),
    "olmo2": ("olmo3",),
}
"""The families that compute the same as a family, of the same tensors under the same names, the first that fits first.
A family that is not here has only itself."""


def targets_of(family: str) -> tuple[str, ...]:
    """The families in which a model of a family can be written, none if there is none."""
    return TARGETS.get(family, (family,) if family in FAMILIES else ())


def refusals(patterns: Sequence[Pattern], name: str) -> dict[int, str]:
    """Why layers cannot be written in a family, by the number of the layer; empty if all can."""
    family = FAMILIES[name]
    found: dict[int, str] = {}
    first: tuple[int, Sides] | None = None
    for number, pattern in enumerate(patterns):
        sides = sides_of(pattern)
        if sides is None:
            found[number] = f"{beyond_sides(pattern)} have no field in any stock configuration"
        elif reason := _misfit(sides, family, name):
            found[number] = reason
        elif sides.left is not None:
            first = first or (number, sides)
            if sides != first[1]:
                found[number] = f"a stock configuration has one width for all windows, that of layer {first[0]} here"
    return found


def _misfit(sides: Sides, family: Family, name: str) -> str | None:
    """Why one layer cannot be written in a family."""
    left, right = sides
    if family.both_sides:
        if left != right:
            return f"windows of {name} read as many tokens after the query as before it"
        return f"a window of {name} reads at least one token to each side" if left == 0 else None
    if right != 0:
        return f"{name} hides the future"
    if left is None and not family.by_layer:
        return f"{name} has a window in every layer or in none"
    return None
