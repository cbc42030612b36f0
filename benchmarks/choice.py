"""Is `auto` ever much slower than the better of dense and sparse? Times them over lengths and densities.

    python benchmarks/choice.py [--quick] benchmarks/results/<device>-choice.json
    python benchmarks/choice.py --costs benchmarks/results/costs-<class>-<threads>.json
    python benchmarks/choice.py --fit benchmarks/results/costs-<class>-<threads>.json

The first measures the machine as `asterism bench --calibrate` does, without keeping it; then it prints, per dtype,
direction and length, the time of `auto` over the best of the others for windows of growing width, causal and dense
attention, and writes all times. It takes up to ten minutes, with --quick two. The second times, in half a minute, what
the third fits costs to and prints: src/asterism/compiler/costs/cpu-<class>-<threads>.json. The class is that of the
processor, or a lesser one that variables of the libraries emulate, such as ONEDNN_MAX_CPU_ISA=AVX2.
"""

import json
import random
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from asterism import attend, compile_pattern
from asterism.bench.clock import TimedCall
from asterism.bench.machine import describe
from asterism.compiler.cost import TILE_COSTS
from asterism.errors import KernelError
from asterism.kernels.choice.choice import choose
from asterism.kernels.choice.figures import Figures
from asterism.kernels.choice.measure import time_products
from asterism.kernels.choice.prices import calibrate
from asterism.kernels.cpu.processor import limited_to, price_class
from asterism.kernels.operands import Operands
from asterism.kernels.operator import TileKernel

SHARES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)
DTYPES = (torch.float32, torch.bfloat16)
LONGEST_WINDOW, LONGEST_FITTED = 2048, 128
WAYS = ("auto", "cpu", "eager", "dense")
WAYS_FITTED = ("dense full", "dense causal", "dense sparse", "cpu", "eager")
HEADS, HEAD_DIM = 8, 64
FEWEST_TURNS, MOST_TURNS = 3, 150
SAMPLE = 0.002
"""Seconds: long enough for the clock, and short enough that many are not interrupted."""
LIMIT = 1.15
WARM_UPS = 3
"""Samples before the number of calls in one is settled: the first calls of a process are slower than all others."""
OUT_OF_THE_RACE = 3.0
"""A way that takes so many times as long as the fastest, when warmed up, is timed no more, where nothing is fitted."""


@dataclass(frozen=True)
class Grid:
    """What is timed, and for how long: seconds of turns for a cell."""

    lengths: tuple[int, ...] = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    shares: tuple[float, ...] = SHARES
    seconds: float = 0.8


QUICK = Grid((16, 64, 128, 512, 1024), (1 / 16, 1 / 2), 0.5)
FITTED = Grid((16, 32, 64, 128), (1 / 16, 1 / 2), 0.25)


def main(output: Path, grid: Grid) -> None:
    """Measure, print, write."""
    threads = torch.get_num_threads()
    figures = Figures(time_products(threads)) if grid is FITTED else calibrate()
    rows = []
    for dtype in DTYPES:
        for length in grid.lengths:
            for pattern in patterns(length, grid.shares):
                rows += [measure(pattern, length, dtype, backward, grid.seconds) for backward in (False, True)]
                print(f"{dtype}, {length} tokens, {pattern}", file=sys.stderr)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "class": price_class(),
        "emulated": limited_to() is not None,
        "grid": asdict(grid),
        "matrix_rates": {name: float(f"{rate:.3g}") for name, rate in figures.matrix_rates.items()},
        "prices": figures.nanoseconds,
        "rows": rows,
    }
    output.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def patterns(length: int, shares: tuple[float, ...]) -> list[str]:
    """A window for each share of the length, causal attention, and everything; of long sequences the last two."""
    windows = [f"window(left={max(0, round(length * share) - 1)})" for share in shares]
    return [*(dict.fromkeys(windows) if length <= LONGEST_WINDOW else ()), "causal()", "dense()"]


def heads_of(length: int) -> int:
    """Fewer for sequences so long that a call would take seconds."""
    return HEADS if length <= LONGEST_WINDOW else 2


def measure(pattern: str, length: int, dtype: torch.dtype, backward: bool, seconds: float) -> dict[str, Any]:
    """A row of times: medians of turns."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, heads_of(length), length, HEAD_DIM)
    q, k, v, grad = (torch.randn(shape, generator=generator).to(dtype) for _ in range(4))
    tasks = {name: TimedCall(call(q, k, v, grad, pattern, name, backward), "cpu") for name in WAYS}
    for name in [name for name, task in tasks.items() if not works(task)]:
        del tasks[name]
    take_turns(tasks, seconds, everybody=length <= LONGEST_FITTED)
    return {
        "pattern": pattern,
        "length": length,
        "heads": shape[1],
        "dtype": str(dtype).removeprefix("torch."),
        "backward": backward,
        "density": compile_pattern(pattern, length).density,
        "taken": taken(q, k, v, pattern, backward),
        "seconds": {name: task.median for name, task in tasks.items()},
        "fastest": {name: min(task.seconds) for name, task in tasks.items()},
    }


def taken(q: Tensor, k: Tensor, v: Tensor, pattern: str, backward: bool) -> str:
    """Which of the ways `auto` takes."""
    operands = Operands(q.clone().requires_grad_(backward), k, v, None, None, None, pattern, 0, 1.0, with_lse=False)
    kernel = choose(operands, "auto")
    return kernel.name if isinstance(kernel, TileKernel) else "dense"


def take_turns(tasks: Mapping[str, TimedCall], seconds: float, everybody: bool) -> None:
    """Each turn in an order of its own (`bench/clock.py`), `auto` always among those in the race."""
    first = {name: min(task.seconds) for name, task in tasks.items()}
    slowest = OUT_OF_THE_RACE * min(first.values())
    racing = [task for name, task in tasks.items() if everybody or name == "auto" or first[name] <= slowest]
    order, until = random.Random(0), time.perf_counter() + seconds
    for turn in range(MOST_TURNS):
        for task in order.sample(racing, len(racing)):
            task.sample()
        if turn + 1 >= FEWEST_TURNS and time.perf_counter() > until:
            return


def works(task: TimedCall) -> bool:
    """Warm up, with as many calls as fill a sample; False if the implementation refuses the case."""
    try:
        first = task.sample()
    except KernelError:
        return False
    if first < 100 * SAMPLE:  # else what it loaded is little beside what it computed
        for _ in range(WARM_UPS):
            task.calls = max(1, round(SAMPLE / task.sample()))
        task.seconds.clear()
        task.sample()
    return True


def call(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, pattern: str, implementation: str, backward: bool
) -> Callable[[], object]:
    """What is timed."""
    compute = partial(attend, pattern=pattern, implementation=implementation)
    if not backward:
        return partial(compute, q, k, v)
    leaves = [x.requires_grad_() for x in (q.clone(), k.clone(), v.clone())]
    return lambda: torch.autograd.grad(compute(*leaves), leaves, grad)


def slowdown(row: dict[str, Any]) -> float:
    """The time of `auto` over that of the best of the others."""
    return row["seconds"]["auto"] / min(seconds for name, seconds in row["seconds"].items() if name != "auto")


def regret(row: dict[str, Any]) -> float:
    """The time of the way that `auto` takes over that of the best: what is left of `slowdown` without noise.

    By the fastest samples, since what else the machine does only adds to a time.
    """
    return row["fastest"][row["taken"]] / min(seconds for name, seconds in row["fastest"].items() if name != "auto")


def report(rows: list[dict[str, Any]]) -> None:
    """The grid, and the worst of it."""
    for dtype, backward, own in settings(rows):
        print(f"\n{dtype}, {'forward and backward' if backward else 'forward'}: auto over the best of the others")
        for length in dict.fromkeys(row["length"] for row in own):
            cells = "  ".join(f"{row['density']:4.0%} {slowdown(row):4.2f}" for row in own if row["length"] == length)
            print(f"{length:>6}  {cells}")
    for title, of in (
        ("auto over the best, medians", slowdown),
        ("what auto takes over the best, minima", regret),
    ):
        ordered = sorted(rows, key=of, reverse=True)
        print(f"\n{title}: worst of {len(rows)}, {sum(of(row) > LIMIT for row in rows)} above {LIMIT}")
        for row in ordered[:5]:
            direction = "forward and backward" if row["backward"] else "forward"
            told = f"{row['length']:,} tokens, {row['pattern']}, {row['dtype']}, {direction}: takes {row['taken']}"
            print(f"{of(row):.2f}  {told}")


def fit(record: dict[str, Any]) -> dict[str, Any]:
    """A file of src/asterism/compiler/costs/ for the machine that was timed, by least squares of relative errors.

    Launches in whole microseconds, pairs in three digits. Prints how far the times are from what is fitted to them.
    """
    costs: dict[str, Any] = {way: {} for way in WAYS_FITTED}
    for dtype, backward, own in settings(record["rows"]):
        for way, lines in costs.items():
            points = np.array([point for row in own for point in [observation(row, way)] if point is not None])
            terms = np.stack([np.ones(len(points)), points[:, 0]], axis=1) / points[:, 1:]
            launch, pair = nnls(terms, np.ones(len(points)))[0]
            ratios = points[:, 1] / (launch + pair * points[:, 0])
            direction = "training" if backward else "forward"
            print(f"{dtype:9} {direction:9} {way:12}", file=sys.stderr, end="")
            print(f"  measured over fitted {ratios.min():.2f} to {ratios.max():.2f}", file=sys.stderr)
            line = {"launch": 1000 * round(launch / 1000), "pair": float(f"{pair:.3g}")}
            lines.setdefault("float32" if dtype == "float32" else "half", {})[direction] = line
    about = {name: record[name] for name in ("machine", "class", "emulated", "date", "matrix_rates") if name in record}
    return about | {"nanoseconds": costs}


def observation(row: dict[str, Any], way: str) -> tuple[float, float] | None:
    """Pairs computed, weighted by tile, over all heads, and nanoseconds; None if the row does not show the way.

    Only lengths at which either way may be the faster one count.
    """
    if not 1 < row["length"] <= LONGEST_FITTED:
        return None
    plan = compile_pattern(row["pattern"], row["length"])
    if way in ("cpu", "eager"):
        return HEADS * plan.pairs_computed * TILE_COSTS.pair[plan.tile], row["seconds"][way] * 1e9
    if way == f"dense {plan.dense_kind}" and "dense" in row["seconds"]:
        return HEADS * row["length"] ** 2, row["seconds"]["dense"] * 1e9
    return None


def settings(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool, list[dict[str, Any]]]]:
    """The rows by dtype and direction."""
    for key in dict.fromkeys((row["dtype"], row["backward"]) for row in rows):
        yield *key, [row for row in rows if (row["dtype"], row["backward"]) == key]


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", type=Path, help="the file to write, or to fit costs to")
    parser.add_argument("--quick", action="store_true", help="a smaller grid, in two minutes")
    parser.add_argument("--costs", action="store_true", help="only what costs are fitted to, in half a minute")
    parser.add_argument("--fit", action="store_true", help="print costs that are fitted to the record")
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps(fit(json.loads(arguments.record.read_text())), indent=1))
    else:
        main(arguments.record, FITTED if arguments.costs else QUICK if arguments.quick else Grid())
