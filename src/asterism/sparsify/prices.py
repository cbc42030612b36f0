"""The price list: by how many nats per token the loss rises as a head goes down to a level.

Layers are priced by loss, as in NLL-guided layer selection (arXiv 2606.27791): one layer is set to its last level and
the rest stays. What that costs depends on the others, so it is measured twice, as the first layer to go and as the last
one, and the price is the mean, scaled so that all layers together cost what was measured of all. A layer's price is
divided among its key heads as their own first prices are, and a head's among levels as the mass that it loses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asterism.sparsify.grid import Choice, Grid
from asterism.sparsify.losses import Losses, Schedule


@dataclass(frozen=True)
class Prices:
    """Nats per token.

    dense, least  the losses of the model as it is, and with every head at its last level
    first, last   of each layer: what it costs to take it down first, and last
    alone         of each key head of each layer: what it costs to take it down first, on half of the texts
    scale         what the means of first and last are multiplied by, so that they add up to least - dense
    levels        of each level of each key head of each layer: its price
    """

    dense: float
    least: float
    first: tuple[float, ...]
    last: tuple[float, ...]
    alone: tuple[tuple[float, ...], ...]
    scale: float
    levels: tuple[tuple[tuple[float, ...], ...], ...]

    def of_layer(self, layer: int) -> float:
        """The price of taking all heads of a layer to the last level."""
        return self.scale * (self.first[layer] + self.last[layer]) / 2

    def rise(self, choice: Choice) -> float:
        """By how much the loss should rise."""
        return sum(
            self.levels[layer][head][level] for layer, levels in enumerate(choice) for head, level in enumerate(levels)
        )


def measure_prices(
    losses: Losses, grid: Grid, pieces: Sequence[str], mass: list[list[list[float]]], tell: Callable[[str], None]
) -> Prices:
    """Measure the price list on pieces of text; `mass` is what `lost_mass` gives."""
    own, least = grid.own, grid.least
    base, floor = grid.patterns(own), grid.patterns(least)
    lowered = [_with(own, layer, least[layer]) for layer in grid.layers]
    raised = [_with(least, layer, own[layer]) for layer in grid.layers]
    heads = [
        _with(own, layer, tuple(least[layer][0] if one == head else 0 for one in range(grid.key_heads[layer])))
        for layer in grid.layers
        for head in range(grid.key_heads[layer])
    ]

    def measure(what: str, start: Schedule, choices: Sequence[Choice], on: Sequence[str] = pieces) -> list[float]:
        schedules = [start, *map(grid.patterns, choices)]
        return losses.means(start, schedules, on, lambda text: tell(f"{what}: {text}"))

    dense, *with_one = measure("each layer alone", base, lowered)
    lowest, *without_one = measure("all layers but one", floor, raised)
    some = pieces[: -(-len(pieces) // 2)]  # they only divide what is known of a layer
    before, *alone = measure("each key head alone", base, heads, some)
    first = tuple(nats - dense for nats in with_one)
    last = tuple(lowest - nats for nats in without_one)
    each = iter(alone)
    of_heads = tuple(tuple(next(each) - before for _ in range(count)) for count in grid.key_heads)
    together = sum(first) / 2 + sum(last) / 2
    scale = (lowest - dense) / together if together > 0 and lowest > dense else 1.0
    levels = tuple(
        _divided(scale * (first[layer] + last[layer]) / 2, of_heads[layer], mass[layer]) for layer in grid.layers
    )
    return Prices(dense, lowest, first, last, of_heads, scale, levels)


def _with(choice: Choice, layer: int, levels: tuple[int, ...]) -> Choice:
    return (*choice[:layer], levels, *choice[layer + 1 :])


def _divided(price: float, alone: Sequence[float], mass: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """The price of a layer by head and level. Heads that cost nothing alone share by the mass that they lose."""
    shares = [max(one, 0.0) for one in alone]
    if not sum(shares):
        shares = [of_head[-1] for of_head in mass]
    if not (whole := sum(shares)):
        shares, whole = [1.0] * len(alone), float(len(alone))
    return tuple(
        tuple(price * share / whole * (lost / of_head[-1] if of_head[-1] else 0.0) for lost in of_head)
        for share, of_head in zip(shares, mass, strict=True)
    )
