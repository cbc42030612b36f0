"""Time against length, on logarithmic axes: a line for each contender."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

_DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}
_STYLES = {"asterism": "o-", "dense": "s--", "peer": "^:"}
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c564b",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)


def draw_times(record: Mapping[str, Any], path: Path) -> None:
    """Write a PNG or an SVG, by the suffix of `path`: a column for each pattern, a row for each dtype and direction."""
    timed = [row for row in record["rows"] if row["status"] == "timed"]
    patterns, dtypes = (list(dict.fromkeys(row[name] for row in timed)) for name in ("pattern", "dtype"))
    downward = [(dtype, name) for dtype in dtypes for name in _DIRECTIONS if any(row[name] for row in timed)]
    shape = (max(1, len(downward)), max(1, len(patterns)))
    figure = Figure(figsize=(2.2 + 3.4 * shape[1], 1 + 2.9 * shape[0]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(*shape, squeeze=False, sharex=True, sharey="row")
    names = list(dict.fromkeys((row["contender"], row["kind"]) for row in timed))
    for down, (dtype, direction) in enumerate(downward):
        for across, pattern in enumerate(patterns):
            rows = [row for row in timed if (row["pattern"], row["dtype"]) == (pattern, dtype) and row[direction]]
            _draw_panel(panels[down][across], rows, direction, names)
        panels[down][0].set_ylabel(f"{_DIRECTIONS[direction]}, {dtype}, ms", fontsize=9)
    for across, pattern in enumerate(patterns):
        panels[0][across].set_title(pattern, fontsize=9)
        panels[-1][across].set_xlabel("tokens")
    lengths = sorted({row["length"] for row in timed})
    panels[0][0].set_xticks(lengths, [f"{length:,}" for length in lengths])
    for axes in panels.flat:
        axes.tick_params(axis="x", rotation=30, labelsize=8)
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    order = [name for name, _ in names if name in lines]
    figure.legend([lines[name] for name in order], order, loc="outside right center", fontsize=9)
    figure.suptitle(_title(record), fontsize=10)
    figure.savefig(path, dpi=120, format=path.suffix[1:].lower())


def _title(record: Mapping[str, Any]) -> str:
    settings, machine = record["settings"], record["machine"]
    where = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    return f"batch {settings['batch']}, {settings['heads']} heads x {settings['head_dim']}; {where}"


def _draw_panel(
    axes: Axes, rows: Sequence[Mapping[str, Any]], direction: str, names: Sequence[tuple[str, str]]
) -> None:
    for place, (name, kind) in enumerate(names):
        points = sorted((row["length"], row[direction]["seconds"] * 1e3) for row in rows if row["contender"] == name)
        if points:
            colour = _COLOURS[place % len(_COLOURS)]
            axes.plot(*zip(*points, strict=True), _STYLES[kind], label=name, color=colour, markersize=4, linewidth=1.3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(alpha=0.3)
