"""The mass of tiles by the CPU kernel: equal to that of PyTorch in float64, whatever the pattern, masks and threads."""

import numpy as np
import pytest
import torch

from asterism import block_mass
from asterism.kernels.cpu import is_available
from asterism.kernels.cpu import mass as fused

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.skipif(not is_available(), reason="no CPU kernel")]

PATTERNS = (
    "causal()",
    "dense()",
    "window(left=40, right=9)",
    "sinks(first=4, window=50)",
    "bigbird(block=16)",
    "stride(7) | window(left=3)",
    "per_head([causal(), window(left=20), sinks(4, 9), stride(16) & causal()])",
    "documents(causal(), 90, 30, 80)",
    "~dense()",
)


def operands(seed: int, length: int = 200, heads: int = 4, key_heads: int = 2):
    drawn = torch.Generator().manual_seed(seed)
    q, k = (2 * torch.randn(2, count, length, 24, generator=drawn) for count in (heads, key_heads))
    key_mask = torch.rand(2, length, generator=drawn) < 0.7
    segments = torch.arange(length).expand(2, -1) // 60
    query_mask = torch.rand(2, length, generator=drawn) < 0.5
    return q, k, {"key_mask": key_mask, "segments": segments, "query_mask": query_mask}


@pytest.fixture
def calls(monkeypatch):
    seen = []
    known = fused.mass_of_tiles
    monkeypatch.setattr(fused, "mass_of_tiles", lambda *given: (seen.append(given[2:]), known(*given))[1])
    return seen


@pytest.mark.parametrize("block", [16, 32, 64, 48, 128, 400])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_that_of_pytorch(calls, pattern, block):
    for seed in range(3):
        q, k, marks = operands(seed)
        for names in ((), ("key_mask",), ("query_mask",), ("key_mask", "query_mask")):
            if "documents" in pattern and "key_mask" in names:
                continue
            given = {name: marks[name] for name in names}
            calls.clear()
            found = block_mass(q, k, pattern, block=block, **given)
            told = block_mass(q.double(), k.double(), pattern, block=block, **given)
            assert torch.equal(found.queries, told.queries) and torch.equal(found.keys, told.keys)
            rtol = 1e-6 if calls else 1e-5  # PyTorch adds up in another order
            torch.testing.assert_close(found.values.double(), told.values, rtol=rtol, atol=3e-5)
    assert calls or "stride" in pattern or "documents" in pattern or pattern == "~dense()"


def test_segments(calls):
    q, k, marks = operands(0)
    found = block_mass(q, k, "causal()", block=16, segments=marks["segments"])
    told = block_mass(q.double(), k.double(), "causal()", block=16, segments=marks["segments"])
    torch.testing.assert_close(found.values.double(), told.values, rtol=1e-6, atol=3e-5)
    assert calls


def test_threads_change_no_bit(calls):
    q, k, _ = operands(1, 700)
    known = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(block_mass(q, k, "bigbird(block=16)", block=16).values)
    finally:
        torch.set_num_threads(known)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert calls


def test_a_later_query_of_a_step(calls):
    q, k, _ = operands(2)
    found = block_mass(q[:, :, 150:], k, "window(left=70)", block=16, query_offset=150)
    told = block_mass(q[:, :, 150:].double(), k.double(), "window(left=70)", block=16, query_offset=150)
    torch.testing.assert_close(found.values.double(), told.values, rtol=1e-6, atol=3e-5)
    assert calls


def test_numbers_that_nobody_reads(calls):
    """Queries beyond the last one and keys that are masked may hold anything."""
    q, k, marks = operands(3)
    mask = marks["key_mask"]
    bad = k.masked_fill(~mask[:, None, :, None], float("nan"))
    found, told = (block_mass(q, keys, "causal()", block=16, key_mask=mask).values for keys in (bad, k))
    assert torch.equal(found, told) and bool(found.isfinite().all())
    assert calls


def test_a_query_gives_one_in_all(calls):
    q, k, _ = operands(4)
    mass = block_mass(q, k, "causal()", block=16)
    sums = mass.dense().sum(dim=3)
    torch.testing.assert_close(sums, torch.tensor([16.0] * 12 + [8.0]).expand_as(sums), rtol=0, atol=1e-4)
    assert calls


def test_terms_go_another_way(calls):
    from asterism import Alibi, Terms

    q, k, _ = operands(5)
    block_mass(q, k, "causal()", block=16, terms=Terms(bias=Alibi(torch.rand(4))))
    assert not calls
    block_mass(q, k, "causal()", block=5)
    assert not calls
    block_mass(q, k, "causal()", block=16, terms=Terms(sinks=torch.zeros(4)))
    assert calls


def test_arrays_are_those_of_blocks():
    """A number for each block, whatever lies in it."""
    q, k, _ = operands(7, 200, 4, 4)
    mass = block_mass(q, k, "causal()", block=64)
    assert mass.values.shape == (2, 4, 10)
    assert np.array_equal(mass.queries.numpy(), np.repeat(np.arange(4), np.arange(1, 5)))
