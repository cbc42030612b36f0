"""Draw a run over its steps, from its history: the metric, and the loss next to it if it is a different one.

matplotlib takes half a second to import, so it is imported only when something is drawn. Most verbs never draw.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism import presence
from asterism.files import replacing_file
from asterism.training.run.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = Metric("loss", "loss in nats")


def require_matplotlib() -> None:
    """Raise ConfigurationError if matplotlib is missing: before the first step, not at the first picture."""
    presence.require_matplotlib("train", "drawing how a run goes")


def draw_history(history: Sequence[Mapping[str, Any]], metric: Metric, path: Path) -> None:
    """Write a PNG with the metric, in training and on the validation split, over steps.

    If training measures only the loss, as in fine-tuning, the loss has a separate panel next to the metric.
    """
    from matplotlib import rc_context, rcdefaults

    with rc_context():
        rcdefaults()  # in place of the user's, which may need programs that are not there
        _draw_history(history, metric, path)


def _draw_history(history: Sequence[Mapping[str, Any]], metric: Metric, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [metric] if any(metric.name in entry for entry in history) else [LOSS, metric]
    figure = Figure(figsize=(8, 5) if len(panels) == 1 else (12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, drawn in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, history, drawn)
    with replacing_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _draw(axes: "Axes", history: Sequence[Mapping[str, Any]], metric: Metric) -> None:
    from matplotlib.ticker import MaxNLocator

    highest = 0.0
    for field, label, style in (
        (metric.name, "training", "C0-"),
        (f"validation_{metric.name}", "validation", "C1o-"),
    ):
        points = [(entry["step"], entry[field]) for entry in history if field in entry]
        if points:
            highest = max(highest, *(value for _, value in points))
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{metric.label} ({'lower' if metric.lower_is_better else 'higher'} is better)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * highest or 1.0)  # a flat curve would lie on the frame
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="lower left")
