"""Which block sizes suit the Triton kernels on this GPU: each launch of a call timed alone, over many sizes.

    PYTHONPATH=src python benchmarks/gpu_blocks.py [--processes 8] [--widths 64 128] [--tiles 64 128] [file.json]

The patterns are timed in bfloat16, at 16,384 tokens and 8 heads. For each kernel, head_dim and tile, the table gives
sizes (queries, keys, warps, stages) with their microseconds by pattern: first those of kernels/triton/kernel.py, marked
"now", then the fastest. Before, many processes compile all that is timed; it takes about two minutes.
"""

import json
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from triton.testing import do_bench

from asterism.compiler import compile_pattern
from asterism.kernels.operands import Operands
from asterism.kernels.triton import kernel

LENGTH, HEADS = 16_384, 8
PATTERNS = ("causal()", "window(left=511)")
SIZES = {
    name: [(queries, keys, warps, count) for queries, keys, warps in blocks for count in stages]
    for name, blocks, stages in (
        ("forward", ((128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 64, 4), (64, 128, 4), (128, 32, 4)), (2, 3, 4)),
        ("grad_q", ((128, 64, 8), (64, 64, 4), (128, 64, 4), (128, 128, 8), (64, 128, 4), (128, 32, 8)), (1, 2, 3)),
        ("grad_kv", ((64, 128, 8), (64, 64, 4), (32, 64, 4), (128, 128, 8), (64, 128, 4), (128, 64, 4)), (1, 2, 3)),
    )
}


class Variant(NamedTuple):
    """A kernel with sizes that replace its own; None for its own."""

    kernel: str
    width: int
    tile: int
    sizes: tuple[int, int, int, int] | None

    def fits(self) -> bool:
        """Whether the tile holds the blocks, and what stages load fits the memory of a core."""
        if self.sizes is None:
            return True
        queries, keys, _, stages = self.sizes
        kept, streamed = (keys, queries) if self.kernel == "grad_kv" else (queries, keys)
        return max(queries, keys) <= self.tile and (kept + stages * streamed) * 4 * self.width <= 224 * 2**10


def variants(asked: Namespace) -> Iterator[Variant]:
    for name, searched in SIZES.items():
        for width in asked.widths:
            for tile in asked.tiles:
                for sizes in (None, *searched):
                    variant = Variant(name, width, tile, sizes)
                    if variant.fits():
                        yield variant


def launches(variant: Variant, pattern: str) -> list[tuple[Any, int, dict[str, Any]]]:
    """The launches of that kernel in a forward and a backward call with these sizes, to be repeated at will."""
    name, width, tile, sizes = variant
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (1, HEADS, LENGTH, width)
    q, k, v, grad = (torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(4))
    plan = compile_pattern(pattern, LENGTH, tile=tile)
    operands = Operands(q, k, v, None, None, None, plan.pattern, 0, width**-0.5)
    vars(operands)["plan"] = plan
    found: list[tuple[Any, int, dict[str, Any]]] = []
    really_launch, own_blocks = kernel.launch, kernel._blocks

    def launch(function: Any, programs: int, arguments: dict[str, Any]) -> None:
        is_meant = function.fn.__name__ == name
        if is_meant:
            found.append((function, programs, arguments))
        if is_meant or function.fn.__name__ in ("prepare", "forward"):
            really_launch(function, programs, arguments)

    def blocks(which: str, *rest: Any) -> Any:
        return kernel._Blocks(*sizes) if which == name and sizes is not None else own_blocks(which, *rest)

    kernel.launch, kernel._blocks = launch, blocks
    try:
        attended = kernel._forward(operands)
        if name != "forward":
            kernel._backward(operands, attended, grad, torch.zeros_like(attended.lse), [True, True, True, False, False])
    finally:
        kernel.launch, kernel._blocks = really_launch, own_blocks
    return found


def compiled(variant: Variant) -> str:
    """Compile it; what went wrong, if anything did."""
    try:
        launches(variant, PATTERNS[0])
        torch.cuda.synchronize()
    except Exception as error:  # too much memory, say: other sizes are still of interest
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def timed(variant: Variant) -> dict[str, float]:
    """Microseconds by pattern."""
    found = {}
    for pattern in PATTERNS:
        calls = launches(variant, pattern)
        found[pattern] = sum(
            do_bench(lambda c=call: c[0][(c[1],)](**c[2]), warmup=5, rep=25, return_mode="median") * 1e3
            for call in calls
        )
    return found


def main(asked: Namespace) -> None:
    wanted = list(variants(asked))
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        said = dict(zip(wanted, pool.map(compiled, wanted), strict=True))
    rows = []
    for variant in wanted:
        times = {} if said[variant] else timed(variant)
        rows.append({**variant._asdict(), "microseconds": times, "refused": said[variant]})
    if asked.file:
        record = {"gpu": torch.cuda.get_device_name(), "length": LENGTH, "heads": HEADS, "rows": rows}
        asked.file.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["width"], row["tile"]), []).append(row)
    for key, group in groups.items():
        print(*key)
        works = [row for row in group if row["microseconds"]]
        works.sort(key=lambda row: (row["sizes"] is not None, statistics.geometric_mean(row["microseconds"].values())))
        for row in works[:6]:
            times = " ".join(f"{time:8.0f}" for time in row["microseconds"].values())
            print(f"  {'now' if row['sizes'] is None else row['sizes']!s:20}{times}")
        for row in group:
            if row["refused"]:
                print("  refused", row["sizes"], row["refused"][:100])


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--tiles", type=int, nargs="+", default=[64, 128])
    parser.add_argument("file", type=Path, nargs="?")
    main(parser.parse_args())
