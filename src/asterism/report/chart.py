"""Charts and small pictures as inline SVG: coloured by the page's style sheet, and so readable in light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 420, 250
"""Of a chart, in its own units: those of its text, which stays readable on a telephone."""
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 40
STYLES = 8
"""How many styles of lines there are; a style is a colour and a way to be dashed."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, which style it has, its points (x, y), and whether each has a dot."""

    name: str
    style: int
    points: Sequence[tuple[float, float]]
    has_dots: bool = False

    @property
    def css(self) -> str:
        """The classes of the line and of its sign in the legend."""
        return f"s{self.style % STYLES}"


@dataclass(frozen=True)
class Chart:
    """Lines over one axis. Both axes are linear, and reach as far as the points do."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = field(default_factory=list)
    axis: str = ""

    def __bool__(self) -> bool:
        return any(line.points for line in self.lines)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The least and greatest x and y that are drawn."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        return (*_widened(min(xs), max(xs), 0.0), *_widened(min(ys), max(ys), 0.05))

    @property
    def summary(self) -> str:
        """The chart in a sentence, for those who do not see it."""
        ends = [f"{line.name} from {short(line.points[0][1])} to {short(line.points[-1][1])}" for line in self.lines]
        return f"{self.y_label} over {self.x_label}: {'; '.join(ends)}"

    @property
    def values(self) -> dict[str, Any]:
        """What the page's script reads of it to show the values under the pointer."""
        named = [{"name": line.name, "style": line.css, "points": _rounded(line.points)} for line in self.lines]
        return {"x": self.x_label, "box": list(self.box), "lines": named}

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The chart as a table of at most 25 rows: x, and what each line is there; "" where it has no point."""
        each = [dict(line.points) for line in self.lines]
        places = sorted({x for points in each for x in points})
        if len(places) > 25:
            places = [places[round(at * (len(places) - 1) / 24)] for at in range(25)]
        return [(short(x), [short(points[x]) if x in points else "" for points in each]) for x in places]

    @property
    def svg(self) -> Markup:
        """The picture."""
        x0, x1, y0, y1 = self.box
        parts = [Markup('<rect class="frame" x="{}" y="{}" width="{}" height="{}"/>').format(LEFT, TOP, *_INNER)]
        for value in ticks(y0, y1):
            y = _round(_place_y(value, y0, y1))
            parts.append(Markup('<path class="grid" d="M{} {}h{}"/>').format(LEFT, y, _INNER[0]))
            parts.append(
                Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 5, y + 4, short(value))
            )
        for value in ticks(x0, x1, 5):
            x, y = _round(_place_x(value, x0, x1)), HEIGHT - BOTTOM + 15
            anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
            parts.append(Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, short(value)))
        middle = LEFT + _INNER[0] / 2
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(middle, HEIGHT - 6, self.x_label)
        )
        parts += [self._drawn(line) for line in self.lines if line.points]
        return Markup("").join(parts)

    def _drawn(self, line: Line) -> Markup:
        x0, x1, y0, y1 = self.box
        places = [(_round(_place_x(x, x0, x1)), _round(_place_y(y, y0, y1))) for x, y in line.points]
        path = "M" + "L".join(f"{x} {y}" for x, y in places)
        drawn = Markup('<path class="line {}" d="{}"/>').format(line.css, path)
        if line.has_dots or len(places) == 1:
            step = max(1, len(places) // 60)
            dots = "".join(f"M{x} {y}h0" for x, y in places[::step])
            drawn += Markup('<path class="dots {}" d="{}"/>').format(line.css, dots)
        return drawn


_INNER = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)


def _place_x(x: float, low: float, high: float) -> float:
    return LEFT + (x - low) / (high - low) * _INNER[0]


def _place_y(y: float, low: float, high: float) -> float:
    return TOP + (high - y) / (high - low) * _INNER[1]


def _round(value: float) -> float:
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded


def _rounded(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[float(f"{x:.7g}"), float(f"{y:.5g}")] for x, y in points]


def _widened(low: float, high: float, margin: float) -> tuple[float, float]:
    """The ends of an axis: with a margin, and apart where all values are equal."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        apart = abs(low) / 2 or 1.0
        return low - apart, high + apart
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends, at most so many; they are 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / most
    if not (math.isfinite(rough) and rough > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(one * power for one in (1, 2, 5, 10) if one * power >= rough * 0.999)
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    return [at * apart for at in range(first, min(last, first + 2 * most) + 1)]


def short(value: float) -> str:
    """A number in a few characters: 0.0123, 1,234, 56.7k, 8.9T, 1.2e-05."""
    size = abs(value)
    if size >= 1e18 or (size and size < 1e-4):
        return f"{value:.3g}"
    for power, prefix in _PREFIXES:
        if size >= max(power, 9999.5):
            return f"{value / power:.4g}{prefix}"
    return f"{value:,.0f}" if value == int(value) or size >= 1000 else f"{value:.4g}"


def bar(share: float, style: int) -> Markup:
    """A bar that fills so much of its width, from 0 to 1."""
    width = round(100 * min(1.0, max(0.0, share)), 1)
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="whole" width="100" height="8"/><rect class="fill s{}" width="{}" height="8"/></svg>'
    ).format(style % STYLES, width)


def picture(rows: Sequence[str], title: str) -> Markup:
    """A pattern as cells, queries from top to bottom: "2" is drawn full, "1" half, "0" not at all."""
    paths = []
    for digit, css in (("1", "some"), ("2", "all")):
        path = "".join(_cells(row, y, digit) for y, row in enumerate(rows))
        if path:
            paths.append(Markup('<path class="{}" d="{}"/>').format(css, path))
    side = max(len(rows), max(map(len, rows), default=1), 1)
    return Markup('<svg class="pattern" viewBox="-0.5 -0.5 {} {}" role="img"><title>{}</title>{}{}</svg>').format(
        side + 1,
        side + 1,
        title,
        Markup('<rect class="frame" width="{}" height="{}"/>').format(max(map(len, rows), default=1), len(rows)),
        Markup("").join(paths),
    )


def _cells(row: str, y: int, digit: str) -> str:
    """The stretches of equal cells in a row, as rectangles of a path."""
    found, x = [], 0
    while (x := row.find(digit, x)) >= 0:
        end = x
        while end < len(row) and row[end] == digit:
            end += 1
        found.append(f"M{x} {y}h{end - x}v1h{x - end}z")
        x = end
    return "".join(found)


def json_for_script(document: str) -> Markup:
    """A JSON text that can stand in a script element: nothing in it ends the element."""
    return Markup(document.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
