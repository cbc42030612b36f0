"""What computing attention costs, by the way it is computed: a fixed part and a part for every pair computed.

The figures are data, in `costs/`: for each kind of device the nanoseconds for heads 64 wide, as `benchmarks/choice.py
--fit` fits them to times measured on the machine that the file names; elsewhere only their ratios matter. They choose
the tile size, the layouts, and whether dense attention is the faster way to the same numbers. No GPU has been measured:
`costs/cuda.json` holds guesses, and says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

TILE_SIZES = (32, 64, 128)
"""Tile sizes that the compiler chooses from."""

DENSE_MASK_LIMIT = 2**22
"""Largest n_queries * n_keys for which dense attention with a mask may stand in for a plan."""


class Line(NamedTuple):
    """Nanoseconds: `launch + pair * pairs`."""

    launch: float
    pair: float


@dataclass(frozen=True)
class Setting:
    """What is computed beside the plan.

    heads     batch size times query heads
    half      float16 or bfloat16
    training  forward and backward, not forward alone
    on_gpu    whether the tensors are on a GPU
    """

    heads: int = 1
    half: bool = False
    training: bool = False
    on_gpu: bool = False


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


@lru_cache(maxsize=1)
def tile_costs() -> TileCosts:
    """The figures of `costs/tiles.json`."""
    table = _read("tiles")
    return TileCosts({int(tile): cost for tile, cost in table["pair"].items()}, table["further_pass"])


@lru_cache(maxsize=2)
def _lines(device: str) -> Mapping[tuple[str, str, str], Line]:
    """The figures of a kind of device, by the way to compute, number format and direction."""
    return {
        (way, numbers, direction): Line(**line)
        for way, formats in _read(device)["nanoseconds"].items()
        for numbers, directions in formats.items()
        for direction, line in directions.items()
    }


def shipped_matrix_rates() -> dict[str, float]:
    """FLOP/s of matrix products by dtype, on the machine of `costs/cpu.json`."""
    return dict(_read("cpu")["matrix_rates"])


def _read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files("asterism.compiler").joinpath("costs", f"{name}.json").read_text())
    return table


def _line(way: str, setting: Setting) -> Line:
    numbers, direction = "half" if setting.half else "float32", "training" if setting.training else "forward"
    return _lines("cuda" if setting.on_gpu else "cpu")[way, numbers, direction]


def tile_cost(tiles: float, rows: int, passes: int, tile: int) -> float:
    """Cost, in pairs, of `passes` passes that keep `tiles` tiles in all and have `rows` tile rows each."""
    costs = tile_costs()
    return (tiles + costs.further_pass * rows * max(passes - 1, 0)) * tile**2 * costs.pair[tile]


def plan_cost(implementation: str, pairs: float, tile: int, setting: Setting) -> float:
    """Nanoseconds for a plan that computes so many pairs a head."""
    line = _line(implementation, setting)
    return line.launch + line.pair * tile_costs().pair[tile] * pairs * setting.heads


def dense_cost(kind: str, pairs: float, setting: Setting) -> float:
    """Nanoseconds for dense attention over so many pairs a head: "full", "causal", or "sparse", which needs a mask."""
    line = _line(f"dense {kind}", setting)
    return line.launch + line.pair * pairs * setting.heads
