"""What a step of decoding costs beside the way from memory: `decode_slots`, PyTorch's attention, and a plain read.

    python benchmarks/decode_slots.py [--rounds 30] [--dtypes float32 bfloat16] [--threads N] [--resident] [--minima]
                                  [file.json]

One query per row attends to L slots of 64 features, all allowed. Each call takes the next of several caches, together
larger than the processor's own memory, as the layers of a model do; with --resident it is one cache, again and again.
`dense` is scaled_dot_product_attention without a mask on the same keys and values, `read` a sum over their bytes.
Medians in microseconds, or on a busy machine --minima, calls in turns; GB/s counts keys and values once. It takes about
two minutes; with a file, it is written.
"""

import itertools
import json
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.bench.clock import TimedCall, in_turns
from asterism.bench.machine import describe
from asterism.kernels import decode_slots

WIDTH = 64
LENGTHS = (512, 2_000, 16_000)
HEADS = (1, 4, 8)
BATCHES = (1, 8)
CACHES = 256 * 2**20
"""Bytes of all caches together: more than processors keep."""
MOST = 2**30
"""Bytes of a cache from which on it is left out."""


def contenders(batch: int, heads: int, length: int, dtype: torch.dtype, resident: bool) -> dict[str, TimedCall]:
    """One task for each way to compute, over the same caches."""
    generator = torch.Generator().manual_seed(0)
    size = 2 * batch * heads * length * WIDTH * dtype.itemsize
    count = 1 if resident else -(-CACHES // size)
    caches = [torch.randn(2, batch, heads, length, WIDTH, generator=generator).to(dtype) for _ in range(max(2, count))]
    q = torch.randn(batch, heads, 1, WIDTH, generator=generator).to(dtype)
    allowed = torch.ones(1, 1, 1, length, dtype=torch.bool)

    def over_caches(call: Callable[[Tensor], object]) -> Callable[[], object]:
        chosen = itertools.cycle(caches[:count])
        return lambda: call(next(chosen))

    calls: dict[str, Callable[[Tensor], object]] = {
        "ours": lambda cache: decode_slots(q, cache[0], cache[1], allowed),
        "dense": lambda cache: F.scaled_dot_product_attention(q, cache[0], cache[1]),
        "read": lambda cache: cache.view(torch.float32).sum(),
    }
    return {name: TimedCall(over_caches(call), "cpu") for name, call in calls.items()}


def measured(batch: int, heads: int, length: int, dtype: torch.dtype, asked: Namespace) -> dict[str, float]:
    """Microseconds of each contender, and what they say."""
    with torch.no_grad():
        tasks = contenders(batch, heads, length, dtype, asked.resident)
        for task in tasks.values():
            task.warm_up()
        in_turns(list(tasks.values()), asked.rounds, patience=10)
    typical = min if asked.minima else statistics.median
    taken = {name: typical(task.seconds) * 1e6 for name, task in tasks.items()}
    size = 2 * batch * heads * length * WIDTH * dtype.itemsize
    ratios = {f"of {name}": taken["ours"] / taken[name] for name in ("dense", "read")}
    return taken | {"GB/s": size / taken["ours"] / 1e3} | ratios


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--heads", nargs="+", type=int, default=HEADS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--minima", action="store_true")
    parser.add_argument("file", nargs="?", type=Path)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    rows = []
    print("dtype     batch heads  slots      ours     dense      read us   GB/s  of dense  of read")
    for name, batch, heads, length in itertools.product(asked.dtypes, asked.batches, asked.heads, asked.lengths):
        dtype = getattr(torch, name)
        if 2 * batch * heads * length * WIDTH * dtype.itemsize > MOST:
            continue
        found = measured(batch, heads, length, dtype, asked)
        row = {"dtype": name, "batch": batch, "heads": heads, "slots": length} | found
        rows.append(row)
        print(
            f"{name:9} {batch:5} {heads:5} {length:6} {row['ours']:9.1f} {row['dense']:9.1f} {row['read']:9.1f}"
            f" {row['GB/s']:9.1f} {row['of dense']:9.2f} {row['of read']:8.2f}",
            flush=True,
        )
    if asked.file:
        told = {"machine": describe(), "threads": torch.get_num_threads(), "resident": asked.resident, "rows": rows}
        asked.file.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
