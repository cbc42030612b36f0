"""How long this machine takes: products of matrices, and attention by each way to compute it.

Every figure is the least of several turns: what else a machine does only adds to a time. Within a few seconds, however
slow the machine, because lengths and turns are cut to fit.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from asterism.compiler import compile_pattern
from asterism.compiler.cost import tile_costs
from asterism.kernels.choice.clock import TimedCall
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

_LANES, _HEAD_DIM = 8, 64
"""Heads of the short lengths; of a long one there are as many as threads, at most `_MOST_LANES`."""

_MOST_LANES = 16

_FEWEST_TURNS, _MOST_TURNS = 3, 30

_PRODUCTS_SECONDS = 0.5

ATTENTION_SECONDS = 1.8
"""What a measurement at first need may take, about."""

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


class Trial(NamedTuple):
    """Something to be timed, and how many pairs it computes, weighted as `compiler/cost.py` counts them."""

    way: str
    tokens: int
    pairs: float
    task: TimedCall


def time_products(threads: int) -> dict[str, float]:
    """FLOP/s by dtype: the operations of all products over the seconds of all."""
    torch.set_num_threads(threads)  # a new thread has PyTorch's default until it is told
    tried = {name: _tried(name) for name in DTYPES}
    slow = [trial for trial in tried.values() if _least(trial) > _SLOW]
    fast = [_product(name, sides) for name, trial in tried.items() if trial not in slow for sides in _MATRICES]
    _warm(fast)
    _take_turns(fast, time.perf_counter() + _PRODUCTS_SECONDS)
    return _rates([*fast, *slow])


def time_two_products(threads: int) -> dict[str, float]:
    """FLOP/s by dtype, roughly, within a third of a second: of one small product each, on a machine however busy."""
    torch.set_num_threads(threads)
    return _rates([_tried(name) for name in DTYPES])


def _tried(name: str) -> Trial:
    """The small product, sampled: the first time it loads what computes it; on a slow machine that is all."""
    trial = _product(name, _TRIED)
    if trial.task.sample() < 4 * _SLOW:
        trial.task.sample()
        trial.task.sample()
    return trial


def _product(name: str, sides: tuple[int, int, int]) -> Trial:
    call = partial(torch.matmul, *_matrices(sides, DTYPES[name]))
    return Trial(name, 0, 2 * math.prod(sides), TimedCall(call, "cpu"))


def _rates(trials: Sequence[Trial]) -> dict[str, float]:
    sums = {name: [trial for trial in trials if trial.way == name] for name in DTYPES}
    return {name: sum(one.pairs for one in own) / sum(map(_least, own)) for name, own in sums.items()}


def time_attention(
    dtype: str, training: bool, threads: int, tiles: Sequence[str], seconds: float = ATTENTION_SECONDS
) -> dict[str, list[tuple[float, float]]]:
    """Points (pairs over all heads, nanoseconds) by way, pairs ascending: dense attention and those tiles.

    Every point is the mean over the patterns of a length. It takes about so many seconds.
    """
    torch.set_num_threads(threads)
    ways = [way for way in WAYS if way.startswith("dense") or way in tiles]
    until = time.perf_counter() + seconds
    trials: list[Trial] = []
    for tokens in _SHORT:
        trials += _warm(_trials(ways, tokens, _LANES, dtype, training))
    lanes = min(threads, _MOST_LANES)
    for tokens in _LONG:
        if _foreseen(trials, ways, lanes * tokens**2) < (until - time.perf_counter()) / (1 + _FEWEST_TURNS):
            trials += _warm(_trials(ways, tokens, lanes, dtype, training))
            break
    _take_turns(trials, until)
    return {way: list(_points([trial for trial in trials if trial.way == way])) for way in ways}


def _points(trials: Sequence[Trial]) -> Iterator[tuple[float, float]]:
    """One point for each length, shortest first: the means over its patterns, in digits that mean something."""
    by_length = {tokens: [one for one in trials if one.tokens == tokens] for tokens in {one.tokens for one in trials}}
    for _, own in sorted(by_length.items()):
        pairs, nanoseconds = sum(one.pairs for one in own), 1e9 * sum(map(_least, own))
        yield round(pairs / len(own)), float(f"{nanoseconds / len(own):.4g}")


def _least(trial: Trial) -> float:
    return min(trial.task.seconds)


def _warm(trials: Sequence[Trial]) -> Sequence[Trial]:
    """The first call of a short one does not count, which loads and compiles; as many calls as fill a sample do."""
    for trial in trials:
        task = trial.task
        if task.sample() < 50 * _SAMPLE:
            task.seconds.clear()
            task.calls = max(1, round(_SAMPLE / task.sample()))
            task.sample()
            task.sample()  # what follows goes by the least, which one sample that was interrupted is not
    return trials


def _foreseen(trials: Sequence[Trial], ways: Sequence[str], pairs: float) -> float:
    """Seconds for a turn of all ways over so many pairs, from the longest that were timed."""
    last = {trial.way: trial for trial in trials}
    return sum(_least(last[way]) / last[way].pairs * pairs for way in ways)


def _take_turns(trials: Sequence[Trial], until: float) -> None:
    """Each turn in an order of its own (see `clock.in_turns`), until the time is over."""
    order = random.Random(0)
    for turn in range(_MOST_TURNS):
        for trial in order.sample(trials, len(trials)):
            for _ in range(_SAMPLES if trial.task.sample() * trial.task.calls < 2 * _SAMPLE else 0):
                trial.task.sample()
        if turn + 1 >= _FEWEST_TURNS and time.perf_counter() > until:
            return


def _trials(ways: Sequence[str], tokens: int, lanes: int, dtype: str, training: bool) -> list[Trial]:
    q, k, v, grad = _drawn((1, lanes, tokens, _HEAD_DIM), DTYPES[dtype])
    trials = []
    for way in ways:
        kernel, patterns = WAYS[way]
        for text in patterns(tokens):
            compute = partial(_computed, kernel, text)
            call = _differentiated(compute, (q, k, v), grad) if training else partial(compute, q, k, v)
            trials.append(Trial(way, tokens, lanes * _pairs(way, text, tokens), TimedCall(call, "cpu")))
    return trials


def _drawn(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(0)
    return [torch.randn(shape, generator=generator, device="cpu").to(dtype) for _ in range(4)]


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
    return plan.pairs_computed * tile_costs().pair[plan.tile]


def _matrices(sides: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    rows, inner, columns = sides
    generator = torch.Generator("cpu").manual_seed(0)  # zeros and ones would cost less power, and so less time
    shapes = ((rows, inner), (inner, columns))
    return [torch.randn(shape, generator=generator, device="cpu").to(dtype) for shape in shapes]
