"""The cost of attention by each implementation, in nanoseconds, from the number of pairs computed.

The figures that come with the library are data, in `costs/`: a fixed part and a part for every pair, for heads 64 wide,
as `benchmarks/choice.py --fit` fits them to times measured on the machine that the file names, or on a lesser one that
it emulated; elsewhere only their ratios matter. CPUs have a file for each class of processor and number of threads.
Figures measured on the machine at hand (kernels/choice/prices.py) take their place.
They choose whether dense attention is the faster way to the same numbers, and `tiles.json` tile sizes and layouts. Of
GPUs, one has been measured, in half precision: `costs/cuda.json` says what in it is a guess.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

TILE_SIZES = (32, 64, 128)
"""Tile sizes that the compiler chooses from."""

DENSE_MASK_LIMIT = 2**22
"""Largest n_queries * n_keys for which dense attention with a mask may stand in for a plan."""


class Curve(NamedTuple):
    """Nanoseconds by pairs: straight lines between the points (pairs, nanoseconds), whose pairs ascend.

    Fewer pairs than the first point has cost what it costs; every pair beyond the last costs `pair` more.
    """

    points: tuple[tuple[float, float], ...]
    pair: float

    def at(self, pairs: float) -> float:
        """Nanoseconds for so many pairs, over all heads."""
        after = bisect_right(self.points, pairs, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        start, launch = self.points[after - 1]
        if after == len(self.points):
            return launch + self.pair * (pairs - start)
        end, last = self.points[after]
        return launch + (last - launch) * (pairs - start) / (end - start)


class Processor(NamedTuple):
    """What figures of CPUs are for: a class, as `price_class` in kernels/cpu/processor.py names it, and its threads."""

    kind: str
    threads: int


PLANNED_FOR = Processor("avx512_bf16", 2)
"""The processor whose figures compare plans where no machine is at hand."""

_LESSER = {"amx": "avx512_bf16", "neon_bf16": "avx2", "neon": "avx2", "baseline": "avx2"}
"""Classes without figures, and the class whose figures serve: they promise no more of bfloat16 than there may be."""

_MOST_THREADS = 2
"""Files are for one thread and for two; more threads take the latter."""

Prices = Mapping[str, Curve]
"""What each way to compute costs, for one dtype and direction on one machine."""


@dataclass(frozen=True)
class Setting:
    """What is computed beside the plan, and at which prices.

    heads   batch size times query heads
    prices  of the machine, dtype and direction; None stands for those that come with the library, for float32 on a
            CPU, forward
    """

    heads: int = 1
    prices: Prices | None = None

    def cost(self, way: str, pairs: float) -> float:
        """Nanoseconds for so many pairs a head."""
        prices = shipped("cpu", "float32", training=False) if self.prices is None else self.prices
        return prices[way].at(pairs * self.heads)


ONE_HEAD = Setting()
"""One head, forward, in float32 on a CPU."""


class TileCosts(NamedTuple):
    """What decides between plans, whatever the machine.

    pair          cost of a pair by tile size, in pairs of tiles of 64: small tiles waste vector lanes and pay more
                  overhead
    further_pass  cost of merging a further pass into the output, in tiles per tile row
    """

    pair: Mapping[int, float]
    further_pass: float


def shipped(device: str, dtype: str, training: bool, processor: Processor = PLANNED_FOR) -> Prices:
    """The figures that come with the library for a "cpu" or "cuda", a dtype, and forward or forward and backward.

    `processor` is that of a "cpu".
    """
    numbers = "half" if dtype in ("float16", "bfloat16") else "float32"
    direction = "training" if training else "forward"
    table = _of(processor) if device == "cpu" else _read(device)
    lines = {way: formats[numbers][direction] for way, formats in table["nanoseconds"].items()}
    return {way: Curve(((0, line["launch"]),), line["pair"]) for way, line in lines.items()}


def has_figures(processor: Processor) -> bool:
    """Whether the library has figures for just this class of processor and number of threads."""
    return processor.kind not in _LESSER and processor.threads <= _MOST_THREADS


def shipped_matrix_rates(processor: Processor = PLANNED_FOR) -> dict[str, float]:
    """FLOP/s of matrix products by dtype; more threads than were measured are taken to be as much faster."""
    more = max(1.0, processor.threads / _MOST_THREADS)
    return {name: more * rate for name, rate in _of(processor)["matrix_rates"].items()}


def _of(processor: Processor) -> dict[str, Any]:
    kind = _LESSER.get(processor.kind, processor.kind)
    return _read(f"cpu-{kind}-{min(processor.threads, _MOST_THREADS)}")


def _read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files("asterism.compiler").joinpath("costs", f"{name}.json").read_text())
    return table


def _tile_costs() -> TileCosts:
    table = _read("tiles")
    return TileCosts({int(tile): cost for tile, cost in table["pair"].items()}, table["further_pass"])


TILE_COSTS = _tile_costs()
"""The figures of `costs/tiles.json`."""


def tile_cost(tiles: float, rows: int, passes: int, tile: int) -> float:
    """Cost, in pairs, of `passes` passes that keep `tiles` tiles in all and have `rows` tile rows each."""
    passes_more = TILE_COSTS.further_pass * rows * max(passes - 1, 0)
    return (tiles + passes_more) * tile**2 * TILE_COSTS.pair[tile]


def plan_cost(implementation: str, pairs: float, tile: int, setting: Setting) -> float:
    """Nanoseconds for a plan that computes so many pairs a head."""
    return setting.cost(implementation, TILE_COSTS.pair[tile] * pairs)


def dense_cost(kind: str, pairs: float, setting: Setting) -> float:
    """Nanoseconds for dense attention over so many pairs a head: "full", "causal", or "sparse", which needs a mask."""
    return setting.cost(f"dense {kind}", pairs)
