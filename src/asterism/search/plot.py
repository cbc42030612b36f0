"""The frontier of a search: the loss of candidates against their cost."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asterism.search.record import ranked


def draw_frontier(record: Mapping[str, Any], path: Path) -> None:
    """Write a PNG or an SVG, by the suffix of `path`: the loss against the share of dense attention's pairs.

    Filled marks were trained to the last rung, with a bar over the seeds; the others stopped before. The line joins the
    best of each budget and dense attention, as far as more keys lower the loss.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw_panel(axes, record)
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=120, format=path.suffix[1:].lower())


def draw_panel(axes: Any, record: Mapping[str, Any]) -> None:
    """Draw the frontier into axes of matplotlib."""
    last = len(record["rungs"]) - 1
    measured = [(row, short) for row, short in ranked(record) if short["loss"] is not None]
    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    best: dict[str | None, tuple[float, float]] = {}
    for row, short in measured:
        share, is_whole = row["keys"] / record["dense_keys"], short["rung"] == last
        colour = "black" if row["budget"] is None else f"C{names.index(row['name']) % 10}"
        axes.errorbar(
            share,
            short["loss"],
            yerr=short["loss_spread"] if short["seeds"] > 1 else None,
            fmt="s" if row["budget"] is None else "o",
            color=colour,
            markerfacecolor=colour if is_whole else "none",
            capsize=3,
            label=row["name"] if row["name"] not in axes.get_legend_handles_labels()[1] else None,
        )
        if is_whole:
            best[row["budget"]] = min(
                best.get(row["budget"], (share, short["loss"])), (share, short["loss"]), key=_loss
            )
    if best:
        axes.plot(*zip(*_frontier(best.values()), strict=True), "-", color="0.8", zorder=0, label="frontier")
    axes.set_xlim(0, 1.05)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("keys per query, as a share of dense attention's")
    axes.set_ylabel(f"loss, {record['unit']}")
    axes.set_title(f"{record['task']['name']}, {record['task']['length']} bytes", fontsize=10)
    axes.grid(alpha=0.3)


def _loss(point: tuple[float, float]) -> float:
    return point[1]


def _frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """By cost, those with a lower loss than all that cost less."""
    found: list[tuple[float, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found
