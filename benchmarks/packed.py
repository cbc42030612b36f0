"""What rows of many lengths cost beside the same tokens in equal rows, and what a plan costs that was not there yet.

    python benchmarks/packed.py [--rows 64] [--heads 4] [--pattern "bigbird(block=64)"] [--rounds 7]

Rows of as many lengths, evenly spread from 1/20 of the longest to the longest: padded ones laid end to end, as the
layers do it, and packed ones under cu_seqlens. Beside them equal rows of the mean length, and a call for each row. Ways
take turns; printed are the minimum and the median, in milliseconds and as ratios to equal rows.
Then microseconds of a plan: for lengths never seen, for lengths seen in another order, and for the kernel's own form.
"""

import argparse
import itertools
import random
import statistics
import time

import torch

from asterism import attend, compile_pattern, patterns
from asterism.kernels.cpu.program import Program
from asterism.layers.rows.padding import cut_into_rows, documents_of_rows, lay_end_to_end
from asterism.layers.rows.rows import in_documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--pattern", default="bigbird(block=64)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--implementation", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--aligned", action="store_true", help="padded rows are a multiple of 128 slots")
    arguments = parser.parse_args()
    step = arguments.longest * 19 // 20 / max(arguments.rows - 1, 1)
    lengths = [arguments.longest - round(step * row) for row in range(arguments.rows)]
    random.Random(0).shuffle(lengths)
    print(f"{len(lengths)} rows, {len(set(lengths))} lengths, {sum(lengths):,} tokens, {arguments.pattern}")
    if arguments.rounds:
        for training in (False, True):
            measure(lengths, arguments, training)
    plans(patterns.parse(arguments.pattern))


def measure(lengths: list[int], arguments: argparse.Namespace, training: bool) -> None:
    pattern, options = patterns.parse(arguments.pattern), {"implementation": arguments.implementation}
    longest = -(-max(lengths) // 128) * 128 if arguments.aligned else max(lengths)
    mean, rows = round(sum(lengths) / len(lengths)), len(lengths)
    bounds = [0, *itertools.accumulate(lengths)]
    sizes = documents_of_rows(lengths, longest)

    def tensors(batch: int, tokens: int) -> list[torch.Tensor]:
        dtype = getattr(torch, arguments.dtype)
        # Heads side by side, as projections give them.
        each = (torch.randn(batch, tokens, arguments.heads, 64, dtype=dtype).transpose(1, 2) for _ in range(3))
        return [x.requires_grad_(training) for x in each]

    padded, packed, equal = tensors(rows, longest), tensors(1, sum(lengths)), tensors(rows, mean)

    def laid() -> torch.Tensor:
        out = attend(*map(lay_end_to_end, padded), in_documents(pattern, sizes), **options)
        return cut_into_rows(out, rows)

    def one_by_one() -> torch.Tensor:
        pairs = itertools.pairwise(bounds)
        return torch.cat([attend(*(x[:, :, a:b] for x in packed), pattern, **options) for a, b in pairs], dim=2)

    ways = {
        "equal rows": (equal, lambda: attend(*equal, pattern, **options)),
        "padded, in one call": (padded, laid),
        "packed, cu_seqlens": (packed, lambda: attend(*packed, pattern, cu_seqlens=bounds, **options)),
        "packed, a call for each": (packed, one_by_one),
    }
    # What arrives from the layer above is there already.
    gradients = {name: torch.ones_like(compute().detach()) for name, (_, compute) in ways.items()} if training else {}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(arguments.rounds + 1):
        for name in random.Random(round_).sample(list(ways), len(ways)):
            given, compute = ways[name]
            started = time.perf_counter()
            out = compute()
            if training:
                torch.autograd.grad(out, given, gradients[name])
            times[name] += [time.perf_counter() - started] if round_ else []
    base = times["equal rows"]
    print("forward and backward" if training else "forward")
    for name, own in times.items():
        ratios = min(own) / min(base), statistics.median(own) / statistics.median(base)
        figures = f"{1e3 * min(own):8.1f} {1e3 * statistics.median(own):8.1f} ms"
        print(f"  {name:<26}{figures}   x {ratios[0]:.3f} {ratios[1]:.3f}")


def plans(pattern: patterns.Pattern) -> None:
    print("microseconds of a plan: lengths never seen, lengths seen before, what the CPU kernel makes of it")
    shuffled = random.Random(1)
    for count in (1, 10, 64, 1000):
        for longest in (64, 1024, 4096):
            some = [shuffled.randint(1, longest) for _ in range(count)]
            compiled = []
            for _ in range(6):
                started = time.perf_counter()
                plan = compile_pattern(patterns.documents(pattern, *some), sum(some))
                compiled.append(1e6 * (time.perf_counter() - started))
                shuffled.shuffle(some)
            started = time.perf_counter()
            Program(plan, 8)
            made = 1e6 * (time.perf_counter() - started)
            words = f"{count:,} documents of 1 to {longest:,}, {sum(some):,} tokens"
            print(f"  {words:<48}{compiled[0]:>10,.0f}{min(compiled[1:]):>10,.0f}{made:>10,.0f}")


if __name__ == "__main__":
    main()
