"""Is `auto` ever much slower than the better of dense and sparse? Times them over lengths and densities.

    python benchmarks/choice.py benchmarks/results/<device>-choice.json
    python benchmarks/choice.py --fit benchmarks/results/<device>-choice.json

The first prints, per dtype, direction and length, the time of `auto` over the better one's for windows of growing
width, and writes all times. The second fits costs to such a file and prints src/asterism/compiler/costs/<device>.json.
"""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from asterism import attend, compile_pattern
from asterism.bench.machine import describe
from asterism.compiler.cost import tile_costs
from asterism.errors import KernelError
from asterism.kernels.clock import Task, in_turns

LENGTHS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048)
SHARES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)
DTYPES = (torch.float32, torch.bfloat16)
LONGEST_FITTED = 128
WAYS = ("auto", "cpu", "eager", "dense")
WAYS_FITTED = ("dense full", "dense causal", "dense sparse", "cpu", "eager")
HEADS, HEAD_DIM, ROUNDS = 8, 64, 7


def main(output: Path) -> None:
    """Measure, print, write."""
    rows = []
    for dtype in DTYPES:
        for length in LENGTHS:
            for pattern in patterns(length):
                rows += [measure(pattern, length, dtype, backward) for backward in (False, True)]
                print(f"{dtype}, {length} tokens, {pattern}", file=sys.stderr)
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe("cpu"), "rows": rows}
    output.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def patterns(length: int) -> list[str]:
    """A window for each share of the length, causal attention, and everything."""
    windows = [f"window(left={max(0, round(length * share) - 1)})" for share in SHARES]
    return [*dict.fromkeys(windows), "causal()", "dense()"]


def measure(pattern: str, length: int, dtype: torch.dtype, backward: bool) -> dict[str, Any]:
    """A row of times."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, HEADS, length, HEAD_DIM, generator=generator).to(dtype) for _ in range(4))
    tasks = {name: Task(call(q, k, v, grad, pattern, name, backward), "cpu") for name in WAYS}
    for name in [name for name, task in tasks.items() if not works(task)]:
        del tasks[name]
    in_turns(list(tasks.values()), ROUNDS if length > 1024 else 3 * ROUNDS, 30)
    return {
        "pattern": pattern,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "backward": backward,
        "density": compile_pattern(pattern, length).density,
        "seconds": {name: task.median for name, task in tasks.items()},
    }


def works(task: Task) -> bool:
    """Warm up; False if the implementation refuses the case."""
    try:
        task.warm_up()
    except KernelError:
        return False
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


def report(rows: list[dict[str, Any]]) -> None:
    """The grid, and the worst of it."""
    for dtype, backward, own in settings(rows):
        print(f"\n{dtype}, {'forward and backward' if backward else 'forward'}: auto over the best of the others")
        for length in dict.fromkeys(row["length"] for row in own):
            cells = "  ".join(f"{row['density']:4.0%} {slowdown(row):4.2f}" for row in own if row["length"] == length)
            print(f"{length:>6}  {cells}")
    print(f"\nworst: {max(map(slowdown, rows)):.2f}")


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
    return {"machine": record["machine"], "date": record["date"], "nanoseconds": costs}


def observation(row: dict[str, Any], way: str) -> tuple[float, float] | None:
    """Pairs computed, weighted by tile, over all heads, and nanoseconds; None if the row does not show the way.

    Only lengths at which either way may be the faster one count.
    """
    if not 1 < row["length"] <= LONGEST_FITTED:
        return None
    plan = compile_pattern(row["pattern"], row["length"])
    if way in ("cpu", "eager"):
        return HEADS * plan.pairs_computed * tile_costs().pair[plan.tile], row["seconds"][way] * 1e9
    if way == f"dense {plan.dense_kind}" and "dense" in row["seconds"]:
        return HEADS * row["length"] ** 2, row["seconds"]["dense"] * 1e9
    return None


def settings(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool, list[dict[str, Any]]]]:
    """The rows by dtype and direction."""
    for key in dict.fromkeys((row["dtype"], row["backward"]) for row in rows):
        yield *key, [row for row in rows if (row["dtype"], row["backward"]) == key]


if __name__ == "__main__":
    if sys.argv[1] == "--fit":
        print(json.dumps(fit(json.loads(Path(sys.argv[2]).read_text())), indent=1))
    else:
        main(Path(sys.argv[1]))
