"""A coarse guard of speed: ratios of processor time within one run, with a factor of three or eight to spare.

What is thirty times too slow, as an optimiser in a type that the processor cannot multiply, must not be green.
"""

import time
from collections.abc import Callable, Mapping

import pytest
import torch
from torch.nn import functional

from asterism import attend, compile_pattern
from asterism.training import recipe
from asterism.training.run.arithmetic import computed_in, settled
from asterism.training.run.muon import ITERATIONS, Muon

TURNS = 4
SLACK, SPARSE_SLACK = 3.0, 8.0
"""The second is for sparse patterns, which move more memory for each product. They take 1.6 to 4.7 times their share of
dense attention's time on one and the same virtual machine, at different times."""

pytestmark = pytest.mark.skipif(torch.get_num_threads() > 1, reason="processor time of one thread: OMP_NUM_THREADS=1")


@pytest.fixture(autouse=True)
def no_poison(monkeypatch):
    """Filling scratch memory takes half as long again as a sparse pattern's attention."""
    monkeypatch.delenv("ASTERISM_POISON")


def least_seconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Processor time of each, the least of several turns, so that what else runs here does not count."""
    found = {name: float("inf") for name in calls}
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if turn:  # the first loads and compiles
                found[name] = min(found[name], time.process_time() - began)
    return found


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_muon_takes_no_longer_than_its_products_in_float32():
    matrices = [torch.nn.Parameter(drawn(256, 256)) for _ in range(8)]
    for matrix in matrices:
        matrix.grad = drawn(256, 256)
    optimizer = Muon([{"params": matrices}], 0.001, computed_in(settled(recipe("bytes-small")).dtype))
    stack = drawn(8, 256, 256)

    def products():
        for _ in range(3 * ITERATIONS):
            stack @ stack

    seconds = least_seconds({"muon": optimizer.step, "products": products})
    assert seconds["muon"] < SLACK * seconds["products"]


@pytest.mark.parametrize("pattern", ["window(left=255)", "bigbird(block=64)", "fixed(stride=128, summary=8)"])
def test_attention_takes_time_by_its_pairs(pattern):
    q, k, v = drawn(3, 1, 2, 4096, 64)
    dense = functional.scaled_dot_product_attention
    seconds = least_seconds({"ours": lambda: attend(q, k, v, pattern), "dense": lambda: dense(q, k, v)})
    share = compile_pattern(pattern, 4096).pairs / 4096**2
    assert seconds["ours"] < SPARSE_SLACK * share * seconds["dense"]


def test_auto_takes_no_longer_than_dense_attention_where_all_is_read():
    q, k, v = drawn(3, 1, 8, 256, 64)
    dense = functional.scaled_dot_product_attention

    def many(call: Callable[[], object]) -> Callable[[], None]:
        return lambda: [call() for _ in range(10)] and None

    calls = {"ours": many(lambda: attend(q, k, v, "dense()")), "dense": many(lambda: dense(q, k, v))}
    seconds = least_seconds(calls)
    assert seconds["ours"] < SLACK * seconds["dense"]
