"""The rate that a machine reaches in large matrix products, to which all others are compared."""

from functools import partial

import torch

from asterism.bench.clock import TimedCall, in_turns

_SIDES = {"cpu": (1024, 2048), "cuda": (8192,)}
"""Sides of the matrices whose products are timed."""


def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """FLOP/s of a large matrix product: the best of a few sizes, each the median of five."""
    rates = []
    for side in _SIDES[device]:
        left, right = (torch.ones((side, side), dtype=dtype, device=device) for _ in range(2))
        task = TimedCall(partial(torch.matmul, left, right), device)
        task.warm_up()
        in_turns([task], 5, 60)
        rates.append(2 * side**3 / task.median)
    return max(rates)
