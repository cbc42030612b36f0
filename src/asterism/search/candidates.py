"""The patterns that take part: families with free sizes, which are grown until the budget is used up.

A family is the text of a schedule with the names of its sizes in braces. They are grown one after another, each as far
as the budget lets it, so that all candidates cost the same as nearly as their sizes allow. `window`, `bigbird` and
`selected` always take part. The others are drawn by a seed: single patterns of other sizes, two patterns that take
turns by layer, and two that share the heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from asterism.errors import ConfigurationError
from asterism.search.budget import Limit, keys_read


@dataclass(frozen=True)
class Size:
    """A size that is grown from `least`, until the schedule costs `share` of the budget."""

    name: str
    least: int = 0
    share: float = 1.0


@dataclass(frozen=True)
class Family:
    """A name, the text of a schedule, and its sizes in the order in which they are grown."""

    name: str
    template: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Candidate:
    """A schedule, as text, and its cost in keys per query."""

    name: str
    schedule: str
    keys: float


@dataclass(frozen=True)
class Place:
    """Where candidates are compared: tokens of a sequence, layers and heads of the model."""

    length: int
    layers: int
    heads: int


_Choice = TypeVar("_Choice")
_W, _K, _R = Size("w"), Size("k", 2), Size("r", 1)
"""The keys of a window to the left, blocks chosen (one of them is the query's own), and random blocks."""
_LOCAL = "window(left={w})"
_BIGBIRD = (
    _LOCAL + " | global_keys(0, block=4) & causal() | random_blocks(block=16, count={r}, seed=SEED, earlier=True)"
)
_SELECTED = _LOCAL + " | selected(block=BLOCK, topk={k}, first=FIRST) & causal()"
ALWAYS = (
    Family("window", _LOCAL, (_W,)),
    Family("bigbird", _BIGBIRD.replace("SEED", "0"), (replace(_R, share=0.6), _W)),
    Family("selected", _LOCAL + " | selected(block=16, topk={k}, first=0) & causal()", (_K, _W)),
)
DENSE = "causal()"
_TRIES = 50
"""Draws for each candidate, before a search is content with fewer."""


def candidates(budget: Limit, place: Place, count: int, seed: int) -> list[Candidate]:
    """Up to `count` different candidates: those that always take part, if the budget allows them, and drawn ones.

    Equal arguments give equal candidates. Raises ConfigurationError if the budget allows none of those that always take
    part, with what the cheapest costs.
    """
    found = {one.schedule: one for family in ALWAYS if (one := fit(family, budget, place))}
    if not found:
        least = min((_at_least(family, place) for family in ALWAYS), key=lambda one: one.keys)
        raise ConfigurationError(
            "budget-too-small",
            f"budget: {budget.text} allows {budget.keys:.3g} keys per query, fewer than any pattern reads; the nearest"
            f" is {least.schedule}: keys={least.keys:.3g}",
        )
    random = np.random.Generator(np.random.Philox(key=[seed, 1]))
    for _ in range(_TRIES * count):
        if len(found) >= count:
            break
        one = fit(_draw(random, place), budget, place)
        if one and one.schedule not in found:
            found[one.schedule] = one
    return list(found.values())[:count]


def fit(family: Family, budget: Limit, place: Place) -> Candidate | None:
    """The family at the sizes that use the budget; None if it costs more at its smallest ones.

    Costs must not fall as a size grows.
    """
    sizes = {size.name: size.least for size in family.sizes}

    def keys(**changed: int) -> float:
        return keys_read(family.template.format(**{**sizes, **changed}), place.length, place.layers)

    if keys() > budget.keys:
        return None
    for size in family.sizes:
        # What is affordable, and what need not be: a token or a block more than there are.
        low, high = size.least, place.length if size == _W else place.length // 16 + 1
        while high - low > 1:
            middle = (low + high) // 2
            if keys(**{size.name: middle}) <= size.share * budget.keys:
                low = middle
            else:
                high = middle
        sizes[size.name] = low
    return Candidate(family.name, family.template.format(**sizes), keys())


def _at_least(family: Family, place: Place) -> Candidate:
    schedule = family.template.format(**{size.name: size.least for size in family.sizes})
    return Candidate(family.name, schedule, keys_read(schedule, place.length, place.layers))


def _draw(random: np.random.Generator, place: Place) -> Family:
    """A family: one pattern for all, two that take turns by layer, or two that share the heads."""
    ways = ["all", "layers", "layers"] if place.layers > 1 else ["all"]
    ways += ["heads"] if place.heads % 2 == 0 else []
    way = _one_of(random, ways)
    share = _one_of(random, (0.5, 0.75, 1.0))
    if way == "all":
        name, text = _part(random, ("bigbird", "selected", "sinks", "strided", "dilated"))
        return _family(name, text, share)
    kinds = ("window", "bigbird", "sinks", "strided", "dilated") + (("selected",) * 3 if way == "layers" else ())
    first = _part(random, kinds)
    second = _part(random, [kind for kind in kinds if kind != first[0]])
    text = ", ".join(one[1] for one in (first, second))
    names = f"{first[0]}, {second[0]}"
    if way == "layers":
        return _family(f"layers: {names}", f"interleave({text})", share)
    return _family(f"heads: {names}", f"split_heads({text}, heads={place.heads})", share)


def _part(random: np.random.Generator, kinds: Sequence[str]) -> tuple[str, str]:
    """The name and text of a pattern; its window is {w}, so that a window of the rest fits any budget."""
    kind = _one_of(random, kinds)
    match kind:
        case "window":
            return kind, _LOCAL
        case "bigbird":
            return kind, _BIGBIRD.replace("SEED", str(random.integers(100)))
        case "selected":
            text = _SELECTED.replace("BLOCK", str(_one_of(random, (16, 16, 32))))
            return kind, text.replace("FIRST", str(random.integers(2)))
        case "sinks":
            return kind, f"{_LOCAL} | global_keys(0, block={_one_of(random, (1, 4, 16))}) & causal()"
        case "strided":
            return kind, f"{_LOCAL} | stride(period={_one_of(random, (8, 16, 32, 64))}) & causal()"
        case _:
            return kind, f"{_LOCAL} | window(left={_one_of(random, (4, 8, 16))}, dilation={_one_of(random, (4, 8))})"


def _family(name: str, template: str, share: float) -> Family:
    grown = [replace(size, share=share) for size in (_K, _R) if f"{{{size.name}}}" in template]
    return Family(name, template, (*grown, _W))


def _one_of(random: np.random.Generator, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(random.integers(len(choices)))]
