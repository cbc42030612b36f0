"""Loss against cost, and what each key head got, as a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from asterism.budget import MEANING, Budget
from asterism.sparsify.choosing import cheapest
from asterism.sparsify.result import Sparsified

_STEPS = 60


def draw(result: Sparsified, budget: Budget, path: Path) -> None:
    """Draw to a .png or .svg: the loss of each schedule by its cost, beside what the prices promise; the levels chosen.

    Losses are those of the held-out texts; the line of the price list begins at the loss of the model as it is.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_costs(left, result, budget)
    _draw_levels(right, result)
    figure.savefig(path)


def _draw_costs(panel: Any, result: Sparsified, budget: Budget) -> None:
    grid, prices, kind = result.grid, result.prices, budget.kind
    most, least = grid.total(grid.own, kind), grid.total(grid.least, kind)
    limits = np.linspace(least, most, _STEPS)
    bought = [cheapest(prices, grid, kind, float(limit)) for limit in limits]
    start = result.rows[0].held_out
    panel.plot(
        [grid.total(one, kind) / most * 100 for one in bought],
        [start + prices.rise(one) for one in bought],
        color="tab:blue",
        linestyle="--",
        label="promised, by the texts that decide",
    )
    markers = iter("ovs^D<>pPXh*")
    for row in result.rows:
        ours = row.name in ("price list", "refined")
        panel.plot(
            row.share * 100, row.held_out, next(markers), color="tab:blue" if ours else None, label=row.name, zorder=3
        )
    panel.set(xlabel=f"{MEANING[kind]}, % of the model as it is", ylabel="nats per token, held out")
    panel.legend(frameon=False, fontsize=7)


def _draw_levels(panel: Any, result: Sparsified) -> None:
    grid = result.grid
    heads = max(grid.key_heads)
    shown = np.full((heads, len(grid.ladders)), np.nan)
    for layer, levels in enumerate(result.choice):
        shown[: len(levels), layer] = levels
    ladder = max(grid.ladders, key=len)
    image = panel.imshow(shown, aspect="auto", cmap="viridis_r", vmin=0, vmax=len(ladder) - 1)
    panel.set(xlabel="layer", ylabel="key head", yticks=range(heads))
    bar = panel.figure.colorbar(image, ax=panel, ticks=range(len(ladder)))
    bar.ax.set_yticklabels(["as it is", *map(str, ladder[1:])], fontsize=7)
