"""The history of a run as curves over steps and seconds, thinned so that a page can hold them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asterism.report.reading import number, plain

MOST_POINTS = 400
"""How many points of a curve are drawn."""
MOST_CURVES = 40
"""How many figures of a history are looked at."""

Point = tuple[int, float, float]
"""Step, seconds of training, value."""

_LABELS = {
    "loss": "loss (nats)",
    "learning_rate": "learning rate",
    "gradient_norm": "norm of the gradient",
    "step_seconds": "time of a step (seconds)",
    "bits_per_byte": "bits per byte",
    "masked_loss": "nats per masked token",
    "target_loss": "nats per target token",
}
_RATE = "_per_second"
_VALIDATION = "validation_"


@dataclass
class RunCurve:
    """One figure over a run. `recorded` counts its values, also those that are thinned out."""

    name: str
    points: list[Point] = field(default_factory=list)
    recorded: int = 0

    @property
    def is_validation(self) -> bool:
        """Whether it was measured on the validation split."""
        return self.name.startswith(_VALIDATION)

    @property
    def figure(self) -> str:
        """What was measured, on whichever split."""
        return self.name.removeprefix(_VALIDATION)

    @property
    def label(self) -> str:
        """The figure in words, with its unit."""
        return label_of(self.figure)

    def as_json(self) -> dict[str, Any]:
        """The curve as the document has it: `points` are [step, seconds, value]."""
        return {
            "name": self.name,
            "label": self.label,
            "split": "validation" if self.is_validation else "training",
            "recorded": self.recorded,
            "points": [list(point) for point in self.points],
        }


def label_of(figure: str) -> str:
    """A figure of a history in words."""
    if figure.endswith(_RATE):
        return f"{figure.removesuffix(_RATE)} per second"
    return _LABELS.get(figure, figure.replace("_", " "))


def read_curves(history: Iterable[Mapping[str, Any]], units_per_step: int | None) -> tuple[dict[str, RunCurve], int]:
    """The curves of a history, by name, and how many values are left out because they are not finite numbers.

    The time of a step follows from the speed, where `units_per_step` is known: evaluations are not part of it.
    """
    curves: dict[str, RunCurve] = {}
    strange = 0
    for entry in history:
        step, seconds = number(entry.get("step")), number(entry.get("seconds"))
        if step is None or seconds is None:
            strange += 1
            continue
        figures = {name: value for name, value in entry.items() if name not in ("step", "seconds")}
        for name in [name for name in figures if name.endswith(_RATE)]:
            speed = number(figures[name])
            if speed and units_per_step:
                figures["step_seconds"] = units_per_step / speed
        for name, value in figures.items():
            if (found := number(value)) is None:
                strange += 1
                continue
            if name not in curves:
                if len(curves) == MOST_CURVES:
                    continue
                curves[name] = RunCurve(plain(name, 60))
            curves[name].points.append((int(step), seconds, found))
    curves = {curve.name: curve for curve in curves.values()}
    for curve in curves.values():
        curve.recorded = len(curve.points)
        curve.points = thinned(curve.points)
    return curves, strange


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many of the points, in order: the first, the last, and the extremes of equal stretches between."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = {0, len(points) - 1}
    for stretch in range(stretches):
        begin, end = stretch * len(inner) // stretches, (stretch + 1) * len(inner) // stretches
        numbered = range(begin, end)
        kept |= {1 + min(numbered, key=lambda at: inner[at][2]), 1 + max(numbered, key=lambda at: inner[at][2])}
    return [points[at] for at in sorted(kept)]
