"""Described runs as one HTML file that loads nothing: styles, script and pictures are in it, all text is escaped."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from asterism import __version__
from asterism.errors import AsterismError
from asterism.memory import amount
from asterism.report.chart import HEIGHT, WIDTH, Chart, Line, bar, json_for_script, picture, short
from asterism.report.compared import differences
from asterism.report.curves import RunCurve, thinned
from asterism.report.described import Description
from asterism.report.reading import why_not_read

LARGEST_PAGE = 5 * 10**6
"""How many bytes a page has at most."""
_MARK = '<meta name="generator" content="asterism report '
_HERE = Path(__file__).parent
_ROOMS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.0)
"""How much of points, predictions, samples and pictures is shown, until the page is small enough."""
_FIGURES = ("seconds", "parameters", "tokens", "flops")
"""Figures of the table of all runs, of which it shows those that some run has."""
UNKNOWN = "–"
"""What stands in the place of a figure or setting that a run does not have."""
_AXES = {"step": ("step", 0), "seconds": ("seconds of training", 1), "FLOPs": ("FLOPs (estimated)", 0)}


def make_page(runs: dict[str, Description]) -> str:
    """The page of some runs, of at most `LARGEST_PAGE` bytes. Raises AsterismError if they do not fit."""
    for room in _ROOMS:
        page = _render(runs, room)
        if len(page.encode("utf-8", "replace")) <= LARGEST_PAGE:
            return page
    raise AsterismError(
        "report-too-large", f"{len(runs)} runs do not fit into {LARGEST_PAGE:,} bytes: report on fewer runs"
    )


def is_page(path: Path) -> bool:
    """Whether a file is a page that was made here."""
    if why_not_read(path) is not None:
        return False
    try:
        with path.open("rb") as file:
            return _MARK.encode() in file.read(2000)
    except OSError:
        return False


def _render(runs: dict[str, Description], room: float) -> str:
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    views = [_View(run, number, room) for number, run in enumerate(runs.values())]
    across = _compared(list(runs.values()), room) if len(runs) > 1 else {}
    charts = [chart for view in views for chart in view.charts] + [one for group in across.values() for one in group]
    numbers = {id(chart): f"chart-{number}" for number, chart in enumerate(charts)}
    values = json.dumps({numbers[id(chart)]: chart.values for chart in charts}, allow_nan=False)
    return _template().render(
        style=Markup(style),  # ours, and without anything of a run
        script=Markup(script),
        policy=_policy(style, script),
        mark=Markup(_MARK),
        version=__version__,
        runs=views,
        across=across,
        differences=differences(runs),
        known={name for name in _FIGURES if any(one.document["cost"][name] is not None for one in runs.values())},
        numbers=lambda chart: numbers[id(chart)],
        values=json_for_script(values),
        is_thinned=room < 1,
        size=(WIDTH, HEIGHT),
    )


@cache
def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"short": _short, "duration": _duration, "size": _size, "bar": bar, "setting": _setting}
    environment.globals |= {"picture": picture, "unknown": UNKNOWN}
    return environment.from_string(_asset("page.html"))


def _policy(*own: str) -> str:
    """What a browser may do for the page: run its own style and script, known by their hashes, and load nothing."""
    style, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own)
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; media-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


@dataclass
class _View:
    """A run as the template shows it, with so much of its points, predictions, samples and pictures."""

    run: Description
    number: int
    room: float

    def __post_init__(self) -> None:
        self.document = self.run.document
        self.left_out = self.run.left_out
        self.charts = _charts(self.run, self.room)
        self.predictions = self._some(self.document["predictions"]["shown"])
        self.samples = self._some(self.document["samples"])
        self.patterns = [{**one, "pictures": self._some(one["pictures"])} for one in self.document["patterns"]]

    def _some(self, members: Sequence[Any]) -> Sequence[Any]:
        return members[: round(self.room * len(members))]

    @property
    def bars(self) -> list[tuple[str, float, float, bool]]:
        """The score and its baselines: name, value, share of the longest bar, whether it is the run's own."""
        score = self.document["score"]
        if score["value"] is None:
            return []
        rows = [
            (self.run.name, score["value"], True),
            *((name, one, False) for name, one in score["baselines"].items()),
        ]
        longest = max(abs(value) for _, value, _ in rows) or 1.0
        return [(name, value, abs(value) / longest, own) for name, value, own in rows]


def _charts(run: Description, room: float) -> list[Chart]:
    """A chart for each figure over steps: training and validation together."""
    figures: dict[str, list[RunCurve]] = {}
    for curve in run.curves.values():
        figures.setdefault(curve.figure, []).append(curve)
    order = [run.metric, "loss", "learning_rate", "step_seconds"]
    figures = {name: each for name, each in figures.items() if name in order or any(map(_changes, each))}
    names = sorted(figures, key=lambda name: (order.index(name) if name in order else len(order), name))
    return [
        Chart(
            figures[name][0].label,
            "step",
            figures[name][0].label,
            [
                Line(
                    "validation" if curve.is_validation else "training",
                    int(curve.is_validation),
                    [(point[0], point[2]) for point in _thin(curve, room)],
                    curve.is_validation,
                )
                for curve in sorted(figures[name], key=lambda one: one.is_validation)
            ],
        )
        for name in names
    ]


def _changes(curve: RunCurve) -> bool:
    """Whether a figure has more than one value: how many tokens were scored each time is not worth a chart."""
    return len({value for *_, value in curve.points}) > 1


def _compared(runs: Sequence[Description], room: float) -> dict[str, list[Chart]]:
    """For each figure by which more than one run is judged, and for the loss of each kind of learning that more than
    one run has: these runs over steps, seconds and FLOPs."""
    groups: dict[tuple[str, str], list[tuple[int, Description]]] = {}
    for number, run in enumerate(runs):
        learns = run.document["learns"]
        for name, title in ((f"validation_{run.metric}", "validation"), ("loss", f"training, {learns}")):
            if name in run.curves:
                groups.setdefault((name, title), []).append((number, run))
    found = {}
    for (name, title), having in groups.items():
        if len(having) > 1:
            label = having[0][1].curves[name].label
            charts = [_across(f"{label}, {title}", label, axis, name, having, room) for axis in _AXES]
            found[f"{label}, {title}"] = [chart for chart in charts if chart]
    return found


def _across(
    title: str, label: str, axis: str, name: str, having: Sequence[tuple[int, Description]], room: float
) -> Chart:
    x_label, place = _AXES[axis]
    lines = []
    for number, run in having:
        if axis == "FLOPs" and run.flops is None:
            continue
        scale = run.flops if axis == "FLOPs" and run.flops is not None else 1.0
        points = [(scale * point[place], point[2]) for point in _thin(run.curves[name], room)]
        lines.append(Line(run.name, number, points, name != "loss"))
    return Chart(title, x_label, label, lines, axis)


def _thin(curve: RunCurve, room: float) -> list[tuple[int, float, float]]:
    return thinned(curve.points, max(20, round(room * len(curve.points))))


# --- values in words -------------------------------------------------------------------------------------------------


def _short(value: float | None) -> str:
    return UNKNOWN if value is None else short(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:,.1f} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"


def _size(value: float | None) -> str:
    return UNKNOWN if value is None else amount(value, "B")


def _setting(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value)
