"""What terms of the score cost beside plain scores, forward and with the gradients.

    python benchmarks/terms.py benchmarks/results/terms.json [--tokens 8192] [--heads 8] [--rounds 15]

Each term in turn with plain attention, a pair at a time; a ratio is the median over the pairs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from asterism import Alibi, Dropout, Terms, attend
from asterism.bench.machine import describe

PATTERNS = ("window(left=511)", "bigbird(block=64)", "strided(stride=128)", "causal()")


def main() -> None:
    """Measure, record, print."""
    arguments = _arguments()
    heads = arguments.heads
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])
    terms = {
        "alibi": Terms(bias=Alibi(slopes)),
        "softcap 50": Terms(softcap=50.0),
        "sinks": Terms(sinks=torch.zeros(heads)),
        "dropout 0.1": Terms(dropout=Dropout(0.1, 0)),
    }
    rows = []
    print("| pattern | dtype | direction | plain, ms | " + " | ".join(terms) + " |")
    print("|---" * (4 + len(terms)) + "|")
    for pattern, dtype, backward in product(PATTERNS, (torch.float32, torch.bfloat16), (False, True)):
        inputs = _inputs(heads, arguments.tokens, dtype, backward)
        plain = _call(inputs, pattern, None, backward)
        ratios, seconds = {}, []
        for name, term in terms.items():
            pairs = _pairs(plain, _call(inputs, pattern, term, backward), arguments.rounds)
            ratios[name] = statistics.median(slow / fast for fast, slow in pairs)
            seconds += [fast for fast, _ in pairs]
        dtype_name, direction = str(dtype)[6:], "forward and backward" if backward else "forward"
        milliseconds = statistics.median(seconds) * 1e3
        rows.append(
            {
                "pattern": pattern,
                "dtype": dtype_name,
                "direction": direction,
                "plain_ms": milliseconds,
                "ratios": ratios,
            }
        )
        shown = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
        print(f"| {pattern} | {dtype_name} | {direction} | {milliseconds:.1f} | {shown} |", flush=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "threads": torch.get_num_threads(),
        "tokens": arguments.tokens,
        "heads": heads,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def _inputs(heads: int, tokens: int, dtype: torch.dtype, backward: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(1, heads, tokens, 64, generator=generator).to(dtype) for _ in range(3))
    return [x.requires_grad_(backward) for x in drawn]


def _call(inputs: list[Tensor], pattern: str, terms: Terms | None, backward: bool) -> Callable[[], object]:
    gradient = torch.ones_like(inputs[0])

    def call() -> object:
        out = attend(*inputs, pattern, terms=terms, implementation="cpu")
        return torch.autograd.grad(out, inputs, gradient) if backward else out

    return call


def _pairs(plain: Callable[[], object], other: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    pairs = []
    for turn in range(rounds + 2):
        times = {}
        for call in (plain, other) if turn % 2 else (other, plain):
            start = time.perf_counter()
            call()
            times[call] = time.perf_counter() - start
        pairs.append((times[plain], times[other]))
    return pairs[2:]  # the first two warm up


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, help="a JSON file for the results")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
