"""What computing attention costs, by the way it is computed: a fixed part and a part for every pair computed.

The figures are nanoseconds for heads 64 wide on the machine of benchmarks/results/cpu-epyc-avx512-costs.json, to which
`python benchmarks/choice.py --fit FILE` fits them; elsewhere only their ratios matter. They choose the tile size, the
layouts, and whether dense attention is the faster way to the same numbers. No GPU has been measured: the figures of
"triton" and of dense attention on a GPU are guesses.
"""

from dataclasses import dataclass
from typing import NamedTuple

TILE_SIZES = (32, 64, 128)
"""Tile sizes that the compiler chooses from."""

TILE_COST = {16: 2.0, 32: 1.35, 64: 1.0, 128: 0.95}
"""Cost of a pair by tile size, in pairs of tiles of 64: small tiles waste vector lanes and pay more overhead."""

PASS_COST = 0.5
"""Cost of merging a further pass into the output, in tiles per tile row."""

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

_LINES = {  # float32 forward, float32 training, bfloat16 forward, bfloat16 training
    "cpu": (Line(99e3, 1.41), Line(415e3, 4.54), Line(87e3, 1.59), Line(365e3, 6.84)),
    "eager": (Line(689e3, 8.98), Line(1740e3, 21.7), Line(712e3, 9.67), Line(1891e3, 34.7)),
    "triton": (Line(0, 1.0), Line(0, 3.0), Line(0, 1.0), Line(0, 3.0)),
}
"""Tiles, by implementation."""

_DENSE_LINES = {
    "full": (Line(31e3, 3.04), Line(161e3, 9.89), Line(38e3, 2.96), Line(485e3, 20.4)),
    "causal": (Line(43e3, 2.87), Line(206e3, 8.87), Line(43e3, 3.29), Line(520e3, 18.6)),
    "sparse": (Line(220e3, 4.35), Line(595e3, 10.7), Line(160e3, 5.38), Line(701e3, 26.4)),
}
"""Dense attention on a CPU, by what it is given: nothing, the order of time, or a mask."""

_DENSE_LINES_GPU = {
    "full": (Line(0, 1.0), Line(0, 3.0), Line(0, 1.0), Line(0, 3.0)),
    "causal": (Line(0, 0.65), Line(0, 1.95), Line(0, 0.65), Line(0, 1.95)),
    "sparse": (Line(0, 1.0), Line(0, 3.0), Line(0, 1.0), Line(0, 3.0)),
}


def tile_cost(tiles: float, rows: int, passes: int, tile: int) -> float:
    """Cost, in pairs, of `passes` passes that keep `tiles` tiles in all and have `rows` tile rows each."""
    return (tiles + PASS_COST * rows * max(passes - 1, 0)) * tile**2 * TILE_COST[tile]


def plan_cost(implementation: str, pairs: float, tile: int, setting: Setting) -> float:
    """Nanoseconds for a plan that computes so many pairs a head."""
    line = _LINES[implementation][2 * setting.half + setting.training]
    return line.launch + line.pair * TILE_COST[tile] * pairs * setting.heads


def dense_cost(kind: str, pairs: float, setting: Setting) -> float:
    """Nanoseconds for dense attention over so many pairs a head: "full", "causal", or "sparse", which needs a mask."""
    lines = _DENSE_LINES_GPU if setting.on_gpu else _DENSE_LINES
    line = lines[kind][2 * setting.half + setting.training]
    return line.launch + line.pair * pairs * setting.heads
