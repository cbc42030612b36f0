"""The loss curve of a run as a picture, drawn from its history."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw_loss(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with training and validation bits per byte over steps."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for field, label, style in (
        ("bits_per_byte", "training", "-"),
        ("validation_bits_per_byte", "validation", "o-"),
    ):
        points = [(entry["step"], entry[field]) for entry in history if field in entry]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel("bits per byte")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=120, format="png")
