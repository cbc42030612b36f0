"""Measures this machine: matrix products, and attention by each implementation.

Every figure is the least of several turns: what else a machine does only adds to a time. Within a few seconds, however
slow the machine, because lengths and turns are cut to fit.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from asterism.compiler import compile_pattern
from asterism.compiler.cost import TILE_COSTS
from asterism.kernels.cpu import CPU
from asterism.kernels.dense import CAUSAL, FULL, MASKED
from asterism.kernels.eager import EAGER
from asterism.kernels.operands import Kernel, Operands, default_scale

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What is measured, by name: the dtypes that the fused kernel takes."""

_MATRICES = ((4096, 512, 512), (1024, 1024, 1024))
"""Rows, inner side and columns of products as a training step has them."""

_TRIED = (512, 512, 512)
"""A product that is tried before those: where a processor has no instructions for a dtype, they would take seconds."""

_SLOW = 0.03
"""Seconds of the tried product from which on it is the measurement: 9 GFLOP/s and less."""

_SHORT, _LONG = (16, 64, 256), (2048, 1024)
"""Tokens: all of the short lengths, where fixed parts count, and the first of the long ones that can be afforded."""

_LANES, _MOST_LANES, _HEAD_DIM = 8, 16, 64
"""Heads of the short lengths; of a long one there are as many as threads, up to a limit; and how wide they are."""

_FEWEST_TURNS, _MOST_TURNS = 3, 30

_PRODUCTS_SECONDS = 0.5

_SAMPLE, _SAMPLES = 0.001, 8
"""Seconds of a sample, and how many of them a short call gets in each turn: the fewer milliseconds one lasts, the more
of them nobody interrupts."""


class TimedKernel(NamedTuple):
    """A kernel, and the patterns that it is timed on, made of a number of tokens."""

    kernel: Kernel
    patterns: Callable[[int], Sequence[str]]


def _sparse(tokens: int) -> Sequence[str]:
    return [f"window(left={tokens // 4})"]


def _causal_and_sparse(tokens: int) -> Sequence[str]:
    return ["causal()", *_sparse(tokens)]


WAYS = {
    "dense full": TimedKernel(FULL, lambda tokens: ["dense()"]),
    "dense causal": TimedKernel(CAUSAL, lambda tokens: ["causal()"]),
    "dense sparse": TimedKernel(MASKED, _sparse),
    "cpu": TimedKernel(CPU, _causal_and_sparse),
    "eager": TimedKernel(EAGER, _causal_and_sparse),
}
"""The ways to compute attention on a CPU, by the names that prices have."""


@dataclass
class Trial:
    """A call, the work it does (operations, or pairs as `compiler/cost.py` weighs them), and its least time."""

    way: str
    work: float
    call: Callable[[], object]
    tokens: int = 0
    calls: int = 1
    seconds: float = math.inf

    def sample(self) -> float:
        """Seconds of a call, timed as `calls` of them."""
        began = time.perf_counter()
        for _ in range(self.calls):
            self.call()
        seconds = (time.perf_counter() - began) / self.calls
        self.seconds = min(self.seconds, seconds)
        return seconds

    def warm_up(self) -> "Trial":
        """Sample it; the first call of a short one, which loads and compiles, only tells how many fill a sample."""
        if self.sample() < 50 * _SAMPLE:
            self.seconds = math.inf
            self.calls = max(1, round(_SAMPLE / self.sample()))
            self.sample()
        return self


def time_products(threads: int) -> dict[str, float]:
    """FLOP/s by dtype: the operations of all products over the seconds of all."""
    torch.set_num_threads(threads)
    tried = [_tried(name) for name in DTYPES]
    slow = [trial for trial in tried if trial.seconds > _SLOW]
    fast = [_product(trial.way, sides).warm_up() for trial in tried if trial not in slow for sides in _MATRICES]
    _take_turns(fast, time.perf_counter() + _PRODUCTS_SECONDS)
    return _rates([*fast, *slow])


def time_two_products(threads: int) -> dict[str, float]:
    """FLOP/s by dtype, roughly, within a third of a second: of one small product each, on a machine however busy."""
    torch.set_num_threads(threads)
    return _rates([_tried(name) for name in DTYPES])


def _tried(name: str) -> Trial:
    """The small product, sampled: the first time it loads what computes it; on a slow machine that is all."""
    trial = _product(name, _TRIED)
    if trial.sample() < 4 * _SLOW:
        trial.sample()
        trial.sample()
    return trial


def _product(name: str, sides: tuple[int, int, int]) -> Trial:
    rows, inner, columns = sides
    left, right, *_ = _drawn(((rows, inner), (inner, columns)), DTYPES[name])
    return Trial(name, 2 * math.prod(sides), partial(torch.matmul, left, right))


def _rates(trials: Sequence[Trial]) -> dict[str, float]:
    own = {name: [trial for trial in trials if trial.way == name] for name in DTYPES}
    return {name: sum(one.work for one in some) / sum(one.seconds for one in some) for name, some in own.items()}


def time_attention(
    dtype: str, training: bool, threads: int, tiles: Sequence[str], seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Points (pairs over all heads, nanoseconds) by way, pairs ascending: dense attention and those tiles.

    Every point is the mean over the patterns of a length. It takes about so many seconds.
    """
    torch.set_num_threads(threads)
    ways = [way for way in WAYS if way.startswith("dense") or way in tiles]
    until = time.perf_counter() + seconds
    trials: list[Trial] = []
    for tokens in _SHORT:
        trials += [trial.warm_up() for trial in _trials(ways, tokens, _LANES, dtype, training)]
    lanes = min(threads, _MOST_LANES)
    for tokens in _LONG:
        if _foreseen(trials, ways, lanes * tokens**2) < (until - time.perf_counter()) / (1 + _FEWEST_TURNS):
            trials += [trial.warm_up() for trial in _trials(ways, tokens, lanes, dtype, training)]
            break
    _take_turns(trials, until)
    return {way: list(_points([trial for trial in trials if trial.way == way])) for way in ways}


def _points(trials: Sequence[Trial]) -> Iterator[tuple[float, float]]:
    """One point for each length, shortest first: the means over its patterns, in digits that mean something."""
    for tokens in sorted({trial.tokens for trial in trials}):
        own = [trial for trial in trials if trial.tokens == tokens]
        pairs, nanoseconds = sum(one.work for one in own), 1e9 * sum(one.seconds for one in own)
        yield round(pairs / len(own)), float(f"{nanoseconds / len(own):.4g}")


def _foreseen(trials: Sequence[Trial], ways: Sequence[str], pairs: float) -> float:
    """Seconds for a turn of all ways over so many pairs, from the longest that were timed."""
    last = {trial.way: trial for trial in trials}
    return sum(last[way].seconds / last[way].work * pairs for way in ways)


def _take_turns(trials: Sequence[Trial], until: float) -> None:
    """Each turn in an order of its own, until the time is over: the same kernel takes up to 1.7 times as long after
    dense attention as after itself."""
    order = random.Random(0)
    for turn in range(_MOST_TURNS):
        for trial in order.sample(trials, len(trials)):
            for _ in range(_SAMPLES if trial.sample() * trial.calls < 2 * _SAMPLE else 0):
                trial.sample()
        if turn + 1 >= _FEWEST_TURNS and time.perf_counter() > until:
            return


def _trials(ways: Sequence[str], tokens: int, lanes: int, dtype: str, training: bool) -> Iterator[Trial]:
    """A trial of each way on each of its patterns, over `lanes` heads of that many tokens."""
    q, k, v, grad = _drawn([(1, lanes, tokens, _HEAD_DIM)] * 4, DTYPES[dtype])
    for way in ways:
        kernel, patterns = WAYS[way]
        for text in patterns(tokens):
            compute = partial(_computed, kernel, text)
            call = _differentiated(compute, (q, k, v), grad) if training else partial(compute, q, k, v)
            yield Trial(way, lanes * _pairs(way, text, tokens), call, tokens)


def _drawn(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(0)  # zeros and ones would cost less power, and so less time
    return [torch.randn(shape, generator=generator, device="cpu").to(dtype) for shape in shapes]


def _computed(kernel: Kernel, text: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel.run(Operands(q, k, v, None, None, None, text, 0, default_scale(q), with_lse=False)).out


def _differentiated(compute: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> Callable[[], object]:
    leaves = [x.clone().requires_grad_() for x in operands]
    return lambda: torch.autograd.grad(compute(*leaves), leaves, grad)


def _pairs(way: str, text: str, tokens: int) -> float:
    """Pairs of one head, as the cost of the way counts them."""
    if way.startswith("dense"):
        return float(tokens**2)
    plan = compile_pattern(text, tokens)
    return plan.pairs_computed * TILE_COSTS.pair[plan.tile]
