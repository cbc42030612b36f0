"""Is `auto` ever much slower than the better of dense and sparse? Times all three over lengths and densities.

    python benchmarks/choice.py benchmarks/results/choice-<device>.json

Prints, per dtype, direction and length, the time of `auto` over the better one's for windows of growing width, and
writes all times. The constants of src/asterism/compiler/cost.py are chosen from these files.
"""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism import attend, compile_pattern
from asterism.bench.clock import Task, in_turns
from asterism.bench.machine import describe
from asterism.errors import KernelError

LENGTHS = (1, 16, 64, 256, 1024, 2048)
SHARES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)
DTYPES = (torch.float32, torch.bfloat16)
HEADS, HEAD_DIM, ROUNDS = 8, 64, 7


def main(output: Path) -> None:
    """Measure, print, write."""
    rows = []
    for dtype in DTYPES:
        for length in LENGTHS:
            for pattern in patterns(length):
                rows += measure(pattern, length, dtype)
                print(f"{dtype}, {length} tokens, {pattern}", file=sys.stderr)
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe("cpu"), "rows": rows}
    output.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def patterns(length: int) -> list[str]:
    """A window for each share of the length, causal attention, and everything."""
    windows = [f"window(left={max(0, round(length * share) - 1)})" for share in SHARES]
    return [*dict.fromkeys(windows), "causal()", "dense()"]


def measure(pattern: str, length: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Rows of times, forward and forward with backward."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, HEADS, length, HEAD_DIM, generator=generator).to(dtype) for _ in range(4))
    rows = []
    for backward in (False, True):
        tasks = {name: Task(call(q, k, v, grad, pattern, name, backward), "cpu") for name in ("auto", "cpu", "dense")}
        for name in [name for name, task in tasks.items() if not works(task)]:
            del tasks[name]
        in_turns(list(tasks.values()), ROUNDS, 30)
        rows.append(
            {
                "pattern": pattern,
                "length": length,
                "dtype": str(dtype).removeprefix("torch."),
                "backward": backward,
                "density": compile_pattern(pattern, length).density,
                "seconds": {name: task.median for name, task in tasks.items()},
            }
        )
    return rows


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
    """The time of `auto` over that of the better of the others."""
    return row["seconds"]["auto"] / min(row["seconds"][name] for name in ("cpu", "dense") if name in row["seconds"])


def report(rows: list[dict[str, Any]]) -> None:
    """The grid, and the worst of it."""
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for backward in (False, True):
            print(f"\n{dtype}, {'forward and backward' if backward else 'forward'}: auto over the better of both")
            for length in dict.fromkeys(row["length"] for row in rows):
                own = [r for r in rows if (r["dtype"], r["backward"], r["length"]) == (dtype, backward, length)]
                cells = "  ".join(f"{row['density']:4.0%} {slowdown(row):4.2f}" for row in own)
                print(f"{length:>6}  {cells}")
    print(f"\nworst: {max(map(slowdown, rows)):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
