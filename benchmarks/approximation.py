"""The price of universality: how large the transformer of the proof is, and how far from the function it stays.

    python benchmarks/approximation.py benchmarks/results/approximation.json
    python benchmarks/approximation.py --report benchmarks/results/approximation.json

The first takes every example of `asterism.theory.approximation.functions`, finer and finer grids up to MOST_CODES
codes, and the grids that `approximate` chooses for each epsilon; it measures d_2 of the exact construction and, for the
chosen grids, of the torch model; about a minute on one core. The second prints the tables in Markdown and draws the
picture beside the file.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from asterism.bench.machine import describe
from asterism.errors import ConfigurationError
from asterism.theory.approximation.construction import Approximation, approximate, as_function
from asterism.theory.approximation.functions import EXAMPLES, Example

EPSILONS = (0.2, 0.1, 0.05)
MOST_CODES = 10_000
SAMPLES, COMPARED = 4096, 512
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def build(example: Example, **how: Any) -> Approximation:
    """The example's approximation, by epsilon or delta."""
    return approximate(
        example.function, example.n, example.d, example.pattern, construction=example.construction, **how
    )


def price(approximation: Approximation) -> dict[str, Any]:
    """What the model consists of, as plain values."""
    return {**vars(approximation.price), "delta": str(approximation.price.delta)}


def measure() -> dict[str, Any]:
    """Both tables, with what they were measured with."""
    grids, epsilons = [], []
    for name, example in EXAMPLES.items():
        about = {"function": name, "n": example.n, "d": example.d}
        about |= {"pattern": example.pattern, "construction": example.construction}
        steps = 2
        while example.n * steps ** (example.n * example.d) <= MOST_CODES and steps <= 32:
            approximation = build(example, delta=Fraction(1, steps))
            grids.append(about | {"price": price(approximation), "exact": vars(approximation.measure(seed=1))})
            steps += 1
        for epsilon in EPSILONS:
            approximation = build(example, epsilon=epsilon)
            row = about | {"epsilon": epsilon, "price": price(approximation)}
            row["exact"] = vars(approximation.measure(seed=1))
            epsilons.append(row | measure_model(approximation))
            print(name, epsilon, epsilons[-1]["model"] or epsilons[-1]["refusal"], file=sys.stderr)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "machine": describe("cpu"), "samples": SAMPLES, "grids": grids, "epsilons": epsilons}


def measure_model(approximation: Approximation) -> dict[str, Any]:
    """d_2 of the torch model, and on how many inputs it equals the exact construction to the last bit; or why not."""
    try:
        model = approximation.model()
    except ConfigurationError as refusal:
        return {"model": None, "refusal": str(refusal)}
    found = approximation.measure(model, samples=SAMPLES, seed=1)
    shape = (COMPARED, approximation.n, approximation.mapping.d)
    inputs = np.random.Generator(np.random.Philox(2)).random(shape)
    equal = (as_function(model)(inputs) == approximation.exact(inputs)).all((1, 2)).sum()
    return {"model": {**vars(found), "samples": COMPARED, "samples_equal_to_exact": int(equal)}, "refusal": None}


def table(rows: Sequence[Mapping[str, Any]], first: str) -> str:
    """Markdown: a line per grid; `first` names the leading column besides the function. Refusals follow."""
    modelled = any("model" in row for row in rows)
    counts = ("attention_layers", "feed_forward_layers", "heads", "hidden_size", "width", "parameters")
    heads = ["function", first, "delta", "d_2 exact", *(["d_2 torch model"] if modelled else []), *counts]
    lines = [f"| {' | '.join(heads).replace('_', ' ')} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row["function"], str(row[first]), row["price"]["delta"], _shown(row["exact"])]
        cells += [_shown(row["model"]) if row["model"] else "refused"] if modelled else []
        lines.append(f"| {' | '.join(cells + [format(row['price'][name], ',') for name in counts])} |")
    refusals = [f"{row['function']}, {first} {row[first]}: {row['refusal']}" for row in rows if row.get("refusal")]
    return "\n".join(lines + [""] + refusals if refusals else lines)


def _shown(distance: Mapping[str, float]) -> str:
    return f"{distance['value']:.4f} +- {distance['error']:.4f}"


def draw_price(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Error against delta, and layers against error: straight lines of slope about 1 and -n d."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for (name, example), colour in zip(EXAMPLES.items(), COLOURS, strict=True):
        own = [row for row in rows if row["function"] == name]
        error = [row["exact"]["value"] for row in own]
        layers = [row["price"]["attention_layers"] + row["price"]["feed_forward_layers"] for row in own]
        label = f"{name}: n={example.n}, d={example.d}"
        left.plot([float(Fraction(row["price"]["delta"])) for row in own], error, "o-", color=colour, markersize=3)
        right.plot(error, layers, "o-", color=colour, markersize=3, label=label)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    left.set_xlabel("delta")
    left.set_ylabel("d_2(f, g)")
    right.set_xlabel("d_2(f, g)")
    right.set_ylabel("layers")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120, format="png")


def main(arguments: Sequence[str]) -> None:
    """Measure into a file, or report one."""
    if arguments[0] == "--report":
        path = Path(arguments[1])
        record = json.loads(path.read_text())
        print(table(record["epsilons"], "epsilon"), table(record["grids"], "pattern"), sep="\n\n")
        draw_price(record["grids"], path.with_suffix(".png"))
    else:
        Path(arguments[0]).write_text(json.dumps(measure(), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
