"""What the plots of several experiments share: one figure of each trial, here and in the paper; seeds beside a mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asterism.reproduce.experiment import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_points(
    results: Results, names: Sequence[str], figure: str, label: str, published: Mapping[str, float] | None = None
) -> "Figure":
    """A row for each name: a dot for each seed, a line at their mean and, on an axis of its own, the paper's value.

    figure       name of the recorded figure
    label        what it is, with its unit
    published    the paper's values in the same unit, by name; names may be missing
    """
    from matplotlib.figure import Figure

    published = published or {}
    drawn = Figure(figsize=(8 if published else 5.4, 0.9 + 0.4 * len(names)), layout="constrained")
    here, *paper = drawn.subplots(1, 2 if published else 1, sharey=True, squeeze=False)[0]
    for row, name in enumerate(names):
        values = results.values(name, figure)
        here.plot(values, [row] * len(values), "o", color=f"C{row}", alpha=0.6)
        mean = results.mean(name, figure)
        if mean is not None:
            here.plot([mean, mean], [row - 0.3, row + 0.3], color=f"C{row}")
        for axes in paper:
            if name in published:
                axes.plot([published[name]], [row], "D", color=f"C{row}")
    here.set(xlabel=label, yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    for axes in paper:
        here.set(title="here")
        axes.set(title="in the paper", xlabel=label)
    for axes in (here, *paper):
        axes.grid(alpha=0.3)
    return drawn


def draw_seeds(axes: "Axes", color: str, values: Mapping[float, Sequence[float]], times: float = 1.0) -> None:
    """Dashes for the values of every seed, at their places on the first axis, where there are several seeds."""
    for place, some in values.items():
        if len(some) > 1:
            axes.plot([place] * len(some), [times * value for value in some], "_", color=color, markersize=10)
