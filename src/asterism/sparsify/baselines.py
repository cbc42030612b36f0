"""What others choose at the same cost: one window everywhere, every k-th layer as it is, whole layers by their loss."""

from collections.abc import Collection

from asterism.budget import Kind
from asterism.patterns.published import sinks
from asterism.sparsify.grid import FIRST, Grid, costs_of
from asterism.sparsify.losses import Schedule
from asterism.sparsify.prices import Prices

_PERIODS = (2, 3, 4, 6, 8)


def baselines(grid: Grid, prices: Prices, kind: Kind, limit: float) -> dict[str, tuple[Schedule, float]]:
    """Schedules within the limit, by name, with their total costs: `uniform`, `every 4th layer`, `layers by loss`.

    Of the first two, the window of the other layers is the widest that the limit allows. `layers by loss` is the recipe
    of arXiv 2606.27791: the layers whose loss rises most when they alone are sparse stay as they are.
    """
    found = {"uniform": _widest(grid, kind, limit, [])}
    for period in _PERIODS:
        if period <= len(grid.ladders):
            found[f"every {_ordinal(period)} layer"] = _widest(grid, kind, limit, grid.layers[period - 1 :: period])
    made = {name: one for name, one in found.items() if one is not None}
    return made | {"layers by loss": _by_loss(grid, prices, kind, limit)}


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _widest(grid: Grid, kind: Kind, limit: float, stay: Collection[int]) -> tuple[Schedule, float] | None:
    """Layers that stay, and one window for all others, the widest that fits; None if the least does not."""

    def made(window: int) -> tuple[Schedule, float]:
        texts, total = [], 0.0
        for layer in grid.layers:
            own, level = grid.ladders[layer][0], sinks(first=FIRST, window=window)
            least = min((own, level), key=lambda one: costs_of(one, grid.length).of(kind))
            pattern = own if layer in stay else least
            texts.append(pattern.text)
            total += grid.weight(layer, kind) * grid.key_heads[layer] * costs_of(pattern, grid.length).of(kind)
        return tuple(texts), total

    low = grid.window
    if made(low)[1] > limit:
        return None
    high = grid.length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if made(middle)[1] <= limit else (low, middle)
    return made(low)


def _by_loss(grid: Grid, prices: Prices, kind: Kind, limit: float) -> tuple[Schedule, float]:
    levels = list(grid.least)
    for layer in sorted(grid.layers, key=lambda one: -prices.first[one]):
        raised = [*levels[:layer], grid.own[layer], *levels[layer + 1 :]]
        if grid.total(tuple(raised), kind) <= limit:
            levels = raised
    choice = tuple(levels)
    return grid.patterns(choice), grid.total(choice, kind)
