"""Measure the prices by which `auto` decides on this machine, store them, and show the resulting choices."""

from collections.abc import Callable
from typing import Any

import torch

from asterism.bench.machine import describe, kernel_in_words
from asterism.compiler.cost import TILE_COSTS, TILE_SIZES, Prices
from asterism.kernels.choice.choice import ChoiceQuestion, answer
from asterism.kernels.choice.figures import keep
from asterism.kernels.choice.measure import DTYPES, WAYS
from asterism.kernels.choice.prices import Cell, calibrate, pinned

HEADS = 8
"""Number of heads for which choices are shown, each 64 wide."""

LENGTHS = (1024, 8192)
"""Lengths, in tokens, for which choices are shown."""

_PATTERNS = ("dense()", "causal()")

_NAMES = {"dense sparse": "dense with a mask", "cpu": "tiles (cpu)", "eager": "tiles (eager)"}


def recalibrate(say: Callable[[str], None]) -> dict[str, Any]:
    """Measure this machine, store the figures, and return what `auto` chooses with them.

    `kept` is the path of their file. If they cannot be stored it is None, and `reason` explains why.
    """
    say("measuring how fast this machine is, in about twenty seconds")
    figures = calibrate()
    record: dict[str, Any] = {"machine": describe("cpu"), "kept": None, "reason": ""}
    try:
        record["kept"] = str(keep(torch.get_num_threads(), figures))
    except OSError as error:
        record["reason"] = str(error)
    record |= {"matrix_rates": dict(figures.matrix_rates), "nanoseconds": figures.nanoseconds}
    with pinned(figures.nanoseconds):  # also where ASTERISM_CALIBRATE=0 has them ignored
        record["choices"] = [
            _choices(dtype, direction, figures.prices(dtype, direction))
            for dtype in DTYPES
            for direction in ("forward", "training")
        ]
    return record


def _choices(dtype: str, direction: str, prices: Prices) -> dict[str, Any]:
    """What follows from the prices of a dtype and direction."""
    tiles = "cpu" if "cpu" in prices else "eager"
    cell = Cell(dtype, direction == "training", tiles)
    short, long = LENGTHS
    return {
        "dtype": dtype,
        "direction": direction,
        "tiles": tiles,
        "ways": {
            way: {"launch_nanoseconds": curve.points[0][1], "pair_nanoseconds": curve.pair}
            for way, curve in prices.items()
        },
        "density_below_which_tiles_beat": {
            f"a mask at {short}": break_even(prices, tiles, "dense sparse", short),
            f"all pairs at {long}": break_even(prices, tiles, "dense full", long),
        },
        "auto": {f"{text} at {tokens}": _taken(text, tokens, cell) for text in _PATTERNS for tokens in LENGTHS},
    }


def break_even(prices: Prices, tiles: str, dense: str, tokens: int) -> float:
    """The share of computed pairs, at most 1, up to which large tiles take no longer than dense attention."""
    square = HEADS * tokens**2
    limit, weight = prices[dense].at(square), TILE_COSTS.pair[max(TILE_SIZES)]
    below, above = 0.0, 1.0
    if prices[tiles].at(weight * square) <= limit:
        return above
    for _ in range(40):
        middle = (below + above) / 2
        below, above = (middle, above) if prices[tiles].at(weight * middle * square) <= limit else (below, middle)
    return round(below, 4)


def _taken(text: str, tokens: int, cell: Cell) -> str:
    pairs = text, HEADS, tokens, tokens, 0, False, False
    question = ChoiceQuestion(*pairs, HEADS, cell.device, cell.dtype, cell.training, "auto", cell.tiles)
    return cell.tiles if answer(question, measuring=False) == cell.tiles else "dense"


def choices_table(record: dict[str, Any]) -> str:
    """The record as a table for people, with a column for each dtype and direction."""
    machine, columns = record["machine"], record["choices"]
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in record["matrix_rates"].items())
    rows = [["", *(f"{one['dtype']} {one['direction']}" for one in columns)]]
    for way in WAYS:
        if all(way in one["ways"] for one in columns):
            rows.append([_NAMES.get(way, way), *(_line(one["ways"][way]) for one in columns)])
    for name in columns[0]["density_below_which_tiles_beat"]:
        shares = (one["density_below_which_tiles_beat"][name] for one in columns)
        rows.append([f"tiles beat {name} tokens", *("always" if one == 1 else f"below {one:.0%}" for one in shares)])
    rows += [[f"auto for {name} tokens", *(one["auto"][name] for one in columns)] for name in columns[0]["auto"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    body = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(
        [
            f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores,"
            f" torch {machine['packages'].get('torch')}; GFLOP/s of matrix products: {rates};"
            f" {kernel_in_words(machine)}",
            "",
            *body,
            "",
            "microseconds of a short call (16 tokens, 8 heads) + nanoseconds per pair of a long one, heads 64 wide;"
            " training is forward\nand backward. `auto` makes no mask for more than 2,048 x 2,048 pairs: there it"
            " takes tiles, but for dense() and causal().",
        ]
    )


def _line(way: dict[str, float]) -> str:
    return f"{way['launch_nanoseconds'] / 1e3:,.0f} + {way['pair_nanoseconds']:.3g}"
