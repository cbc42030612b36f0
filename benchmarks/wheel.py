"""The library of a wheel, without a compiler and beside the one that this machine's compiler makes.

    PATH= python -I benchmarks/wheel.py works     # compares the kernel with float64
    python -I benchmarks/wheel.py rates           # times both libraries in turns, one process

Run it with a Python into which the wheel was installed: `make wheel test-wheel` does.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import CDLL

import torch
from torch import Tensor

from asterism import attend
from asterism.kernels.cpu import build, instruction_set, kernel, origin

PATTERNS = ("window(left=511)", "bigbird(block=64)", "fixed(128, summary=8)")
TOKENS, HEADS, WIDTH = 4096, 8, 64
PAIRS = 30
LIMIT = 1.05
"""Time of the wheel's library over that of the machine's own."""


def operands(tokens: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, tokens, WIDTH)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def works() -> None:
    """Raises SystemExit unless the wheel's library computes what float64 does, and `auto` takes it."""
    os.environ["ASTERISM_CALIBRATE"] = "0"
    if origin() != "wheel":
        raise SystemExit(f"the CPU kernel did not come with the wheel: {build.library()._name}")
    for text in PATTERNS:
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
            tensors = operands(600, dtype)
            wide = [x.detach().double().requires_grad_() for x in tensors]
            expected = torch.autograd.grad(attend(*wide, text, implementation="reference").sum(), wide)
            found = torch.autograd.grad(attend(*tensors, text, implementation="cpu").sum(), tensors)
            for one, other in zip(found, expected, strict=True):
                if (one - other).abs().max() > tolerance * max(1.0, other.abs().max()):
                    raise SystemExit(f"{text} in {dtype} is wrong")
    long = operands(TOKENS, torch.float32)
    auto, cpu, eager = (attend(*long, PATTERNS[0], implementation=name) for name in ("auto", "cpu", "eager"))
    if not torch.equal(auto, cpu) or torch.equal(auto, eager):
        raise SystemExit("auto does without it")
    print(f"{instruction_set()}, {origin()}: forward and backward agree with float64")


def rates() -> None:
    """Raises SystemExit where the wheel's library takes more than LIMIT times as long."""
    libraries = {"machine": build._native(), "wheel": build._shipped()}
    slow = []
    print(f"{torch.get_num_threads()} threads, {TOKENS} tokens, {HEADS} heads of {WIDTH}; {PAIRS} pairs")
    print(f"{'':45}{'machine ms':>12}{'wheel ms':>12}{'fastest':>10}{'median':>10}")
    for dtype in (torch.float32, torch.bfloat16):
        for text in PATTERNS:
            tensors = operands(TOKENS, dtype)
            for direction, step in (("forward", forward), ("training", training)):
                times = timed(libraries, lambda step=step, text=text, tensors=tensors: step(tensors, text))
                fastest = min(times["wheel"]) / min(times["machine"])
                median = statistics.median(w / m for w, m in zip(times["wheel"], times["machine"], strict=True))
                name = f"{text}, {str(dtype).removeprefix('torch.')}, {direction}"
                own, other = (statistics.median(times[name]) * 1e3 for name in ("machine", "wheel"))
                print(f"{name:45}{own:12.2f}{other:12.2f}{fastest:10.3f}{median:10.3f}", flush=True)
                if min(fastest, median) > LIMIT:
                    slow.append(name)
    if slow:
        raise SystemExit(f"more than {LIMIT:.0%} of the time: {'; '.join(slow)}")


def forward(tensors: list[Tensor], text: str) -> None:
    with torch.no_grad():
        attend(*tensors, text, implementation="cpu")


def training(tensors: list[Tensor], text: str) -> None:
    torch.autograd.grad(attend(*tensors, text, implementation="cpu").sum(), tensors)


def timed(libraries: dict[str, CDLL], work: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of each, in turns; which goes first alternates. The first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in libraries}
    for turn in range(-1, PAIRS):
        for name in libraries if turn % 2 else reversed(libraries):
            kernel.library = lambda name=name: libraries[name]
            start = time.perf_counter()
            work()
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    {"works": works, "rates": rates}[sys.argv[1]]()
