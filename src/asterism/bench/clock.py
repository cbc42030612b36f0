"""Time a call, or many calls in turns, in seconds."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

_SHORTEST_SAMPLE = 0.01
"""Least seconds of a sample; faster calls are repeated within one."""

_MOST_CALLS = 100
"""Most calls within one sample."""


@dataclass
class TimedCall:
    """A call to be timed, and the seconds that it took in each round."""

    call: Callable[[], object]
    device: str
    calls: int = 1
    seconds: list[float] = field(default_factory=list)

    def sample(self) -> float:
        """Time one sample and remember it."""
        _finish(self.device)
        started = time.perf_counter()
        for _ in range(self.calls):
            self.call()
        _finish(self.device)
        taken = (time.perf_counter() - started) / self.calls
        self.seconds.append(taken)
        return taken

    def warm_up(self, patience: float = math.inf) -> None:
        """Call it twice, because the first call may compile, and choose how many calls make a sample.

        If the first call takes more than `patience` seconds, it is the only sample. Use this for calls that compile
        nothing.
        """
        if self.sample() > patience:
            return
        if self.seconds[0] < 1:
            self.sample()
            self.calls = max(1, min(_MOST_CALLS, round(_SHORTEST_SAMPLE / max(self.seconds[-1], 1e-9))))
        self.seconds.clear()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def in_turns(tasks: Sequence[TimedCall], rounds: int, patience: float) -> None:
    """Sample every task once a round, so that drift hits all alike; after `patience` seconds a task drops out.

    Each round has its own order, so that no task always runs after the same other one. This matters: the same kernel
    takes up to 1.7 times as long after dense attention as after itself.
    """
    order = random.Random(0)
    for _ in range(rounds):
        for task in order.sample(tasks, len(tasks)):
            if not task.seconds or (sum(task.seconds) + task.seconds[-1]) * task.calls < patience:
                task.sample()


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
