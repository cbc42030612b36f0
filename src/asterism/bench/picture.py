"""Time against length, on logarithmic axes: a panel for each pattern and dtype, a line for each contender."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
    """Write a PNG; columns are patterns and dtypes, rows the directions that were measured."""
    timed = [row for row in record["rows"] if row["status"] == "timed"]
    columns = list(dict.fromkeys((row["pattern"], row["dtype"]) for row in timed))
    directions = [name for name in _DIRECTIONS if any(row[name] for row in timed)]
    shape = (max(1, len(directions)), max(1, len(columns)))
    figure = Figure(figsize=(1.5 + 3.6 * shape[1], 1.2 + 3.4 * shape[0]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
    names = list(dict.fromkeys((row["contender"], row["kind"]) for row in timed))
    for down, direction in enumerate(directions):
        for across, column in enumerate(columns):
            rows = [row for row in timed if (row["pattern"], row["dtype"]) == column and row[direction]]
            _draw_panel(panels[down][across], rows, direction, names)
            if down == 0:
                panels[down][across].set_title(f"{column[0]}\n{column[1]}", fontsize=9)
        panels[down][0].set_ylabel(f"{_DIRECTIONS[direction]}, ms")
    for axes in panels[-1]:
        axes.set_xlabel("tokens")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    order = [name for name, _ in names if name in lines]
    figure.legend([lines[name] for name in order], order, loc="outside right center", fontsize=9)
    settings = record["settings"]
    machine = record["machine"]
    figure.suptitle(
        f"batch {settings['batch']}, {settings['heads']} heads x {settings['head_dim']},"
        f" {machine.get('gpu') or machine['processor']}, {machine['threads']} threads",
        fontsize=10,
    )
    figure.savefig(path, dpi=120, format="png")


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
    lengths = sorted({row["length"] for row in rows})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=30, fontsize=8)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
