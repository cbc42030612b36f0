"""Randomness that comes from an explicit seed and leaves the caller's generators alone.

Libraries underneath (transformers, dropout, sampling) draw from global generators and even seed them. Inside
`isolated` they may: torch starts from the given seed, and Python's, numpy's and torch's states are put back at the end.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(*numbers: int) -> int:
    """A 64-bit seed that is a function of non-negative integers, such as (seed, step); see numpy's SeedSequence."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def of_row(seed: int, step: int, row: int) -> np.random.Generator:
    """A generator of its own for each row of each step: Philox keyed by (seed, step), its counter set apart by the row.

    What `draw_starts` draws for the same (seed, step) is set apart, too.
    """
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, row + 1, 0, 0]))


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Run the body with torch seeded, then restore the states of all global generators, also after an error."""
    python, legacy_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy_numpy)
