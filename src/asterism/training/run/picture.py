"""The metric of a run over its steps as a picture, drawn from its history."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from asterism.files import replacing_file
from asterism.training.objectives.objective import Metric


def draw_history(history: Sequence[Mapping[str, Any]], metric: Metric, path: Path) -> None:
    """Write a PNG with the metric, in training and on the validation split, over steps."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for field, label, style in (
        (metric.name, "training", "-"),
        (f"validation_{metric.name}", "validation", "o-"),
    ):
        points = [(entry["step"], entry[field]) for entry in history if field in entry]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{metric.label} ({'lower' if metric.lower_is_better else 'higher'} is better)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    with replacing_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
