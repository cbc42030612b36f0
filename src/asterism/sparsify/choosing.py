"""The schedule that the price list asks for under a budget, and exchanges that could make it better."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asterism.budget import Kind
from asterism.sparsify.grid import Choice, Grid
from asterism.sparsify.losses import Losses
from asterism.sparsify.prices import Prices

_TOGETHER = 8
"""Exchanges that are measured before the best of them are made."""

Exchange = tuple[tuple[int, int, int], ...]
"""Layer, head and new level of each head that it changes."""


def cheapest(prices: Prices, grid: Grid, kind: Kind, limit: float) -> Choice:
    """The choice whose price is least within a cost: from the last levels up, by what is saved for each unit of cost.

    Steps go along the lower convex hull of a head's levels, as in the knapsack problem with classes; a step that does
    not fit any more is left out, and smaller ones are tried.
    """
    chosen = [list(levels) for levels in grid.least]
    spent = grid.total(grid.least, kind)
    steps = [
        step
        for layer in grid.layers
        for head in range(grid.key_heads[layer])
        for step in _steps(prices, grid, kind, layer, head)
    ]
    for step in sorted(steps, key=lambda one: (-one.rate, one.layer, one.head, -one.level)):
        if chosen[step.layer][step.head] == step.before and spent + step.cost <= limit:
            chosen[step.layer][step.head] = step.level
            spent += step.cost
    return tuple(map(tuple, chosen))


@dataclass(frozen=True)
class _Step:
    """A head, brought up from one level to another: at what cost, and what it saves for each unit of that."""

    layer: int
    head: int
    before: int
    level: int
    cost: float
    rate: float


def _steps(prices: Prices, grid: Grid, kind: Kind, layer: int, head: int) -> Iterator[_Step]:
    price = prices.levels[layer][head]
    cost = [grid.cost(layer, level, kind) for level in range(len(price))]
    at = len(price) - 1
    while at:
        better = [
            (max(0.0, (price[at] - price[level]) / (cost[level] - cost[at])), level)
            for level in range(at)
            if cost[level] > cost[at]
        ]
        if not better:
            return
        rate, level = max(better)
        yield _Step(layer, head, at, level, cost[level] - cost[at], rate)
        at = level


def refined(
    losses: Losses,
    grid: Grid,
    prices: Prices,
    choice: Choice,
    bounds: tuple[Kind, float, int],
    pieces: Sequence[str],
    tell: Callable[[str], None],
) -> Choice:
    """The choice after exchanges that lower its measured loss.

    bounds  the kind of cost, how much of it there may be, and how many exchanges may be tried

    A few exchanges are measured at a time, those first whose prices promise most. Of those that help, the best is made,
    and all of them together where that is better still.
    """
    kind, limit, trials = bounds
    best = losses.mean(grid.patterns(choice), pieces)
    tried = {choice}
    while trials > 0:
        round_ = _varied(_exchanges(grid, prices, choice, kind, limit), choice, tried, min(_TOGETHER, trials))
        if not round_:
            break
        trials -= len(round_)
        tried.update(round_)
        base = grid.patterns(choice)
        found = losses.means(
            base, [grid.patterns(one) for one in round_], pieces, lambda text: tell(f"exchanges: {text}")
        )
        better = sorted((nats, one) for nats, one in zip(found, round_, strict=True) if nats < best)
        if not better:
            continue
        nats, chosen = better[0]
        for size in range(len(better), 1, -1):
            joined = _joined(choice, [one for _, one in better[:size]])
            if grid.total(joined, kind) <= limit and joined not in tried:
                tried.add(joined)
                together = losses.mean(grid.patterns(joined), pieces)
                if together < nats:
                    nats, chosen = together, joined
                break
        tell(f"exchanges: {best:.4f} -> {nats:.4f} nats")
        choice, best = chosen, nats
    return choice


def _exchanges(grid: Grid, prices: Prices, choice: Choice, kind: Kind, limit: float) -> list[Exchange]:
    """What fits, the most promising first: a head goes up, alone or while another goes down, or two layers trade."""
    spent = grid.total(choice, kind)
    moves = [
        (
            prices.levels[layer][head][level] - prices.levels[layer][head][here],
            grid.cost(layer, level, kind) - grid.cost(layer, here, kind),
            (layer, head, level),
        )
        for layer in grid.layers
        for head, here in enumerate(choice[layer])
        for level in range(len(grid.ladders[layer]))
        if level != here
    ]
    up, down = [one for one in moves if one[1] > 0], [one for one in moves if one[1] < 0]
    found: list[tuple[float, Exchange]] = [(gain, (at,)) for gain, cost, at in up if spent + cost <= limit]
    found += [
        (gain + loss, (at, other))
        for gain, cost, at in up
        for loss, saved, other in down
        if other[:2] != at[:2] and spent + cost + saved <= limit
    ]
    found += _trades(grid, prices, choice, kind, limit)
    return [moved for _, moved in sorted(found)]


def _trades(grid: Grid, prices: Prices, choice: Choice, kind: Kind, limit: float) -> Iterator[tuple[float, Exchange]]:
    """Two layers of equal levels and heads that change places."""
    spent = grid.total(choice, kind)
    for one in grid.layers:
        for other in range(one + 1, len(choice)):
            alike = grid.key_heads[one] == grid.key_heads[other] and grid.ladders[one] == grid.ladders[other]
            if not alike or choice[one] == choice[other]:
                continue
            pairs = [(one, choice[one], choice[other]), (other, choice[other], choice[one])]
            moved = [(at, *move) for at, here, there in pairs for move in enumerate(there) if move[1] != here[move[0]]]
            levels = [prices.levels[at][head] for at, head, _ in moved]
            gain = sum(of[level] - of[choice[at][head]] for of, (at, head, level) in zip(levels, moved, strict=True))
            cost = sum(grid.cost(at, level, kind) - grid.cost(at, choice[at][head], kind) for at, head, level in moved)
            if spent + cost <= limit:
                yield gain, tuple(moved)


def _made(choice: Choice, moved: Exchange) -> Choice:
    levels = [list(of_layer) for of_layer in choice]
    for layer, head, level in moved:
        levels[layer][head] = level
    return tuple(map(tuple, levels))


def _varied(found: Sequence[Exchange], choice: Choice, tried: set[Choice], count: int) -> list[Choice]:
    """The first `count` that were not tried and bring up no head that an earlier one of them brings up."""
    taken: list[Choice] = []
    raised: set[tuple[int, int]] = set()
    for moved in found:
        up = {(layer, head) for layer, head, level in moved if level < choice[layer][head]}
        if up & raised or (made := _made(choice, moved)) in tried:
            continue
        taken.append(made)
        raised |= up
        if len(taken) == count:
            break
    return taken


def _changed(one: Choice, other: Choice) -> set[tuple[int, int]]:
    return {
        (layer, head)
        for layer, (a, b) in enumerate(zip(one, other, strict=True))
        for head in range(len(a))
        if a[head] != b[head]
    }


def _joined(choice: Choice, others: Sequence[Choice]) -> Choice:
    """All changes together, but for those of a head that an earlier one has changed."""
    levels = [list(of_layer) for of_layer in choice]
    touched: set[tuple[int, int]] = set()
    for one in others:
        changed = _changed(choice, one)
        if not changed & touched:
            touched |= changed
            for layer, head in changed:
                levels[layer][head] = one[layer][head]
    return tuple(map(tuple, levels))
