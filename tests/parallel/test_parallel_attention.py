"""Attention over shards gives what attention over the whole does, whatever each rank has to send, receive or compute.

The cases are those of attending_ranks.py, each on 1 to 4 ranks.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attending_ranks import CASES, apart_in_all_cases, refusal
from gloo import WORKERS
from slow_cases import slow_except

from asterism.kernels.merging import Result, merged, merged_at
from asterism.parallel.indices import TokenIndices


@pytest.fixture(scope="module")
def found(gloo: Any) -> Callable[[int], list[dict[str, float]]]:
    """Gives by number of ranks what each of them found."""
    return functools.cache(lambda ranks: gloo.run(ranks, apart_in_all_cases))


@pytest.mark.parametrize("ranks", slow_except(range(1, WORKERS + 1), 3))
@pytest.mark.parametrize("name", CASES)
def test_shards_compute_what_the_whole_does(found, name, ranks):
    case = CASES[name]
    narrow = torch.bfloat16 if case.run == "autocast" else case.dtype
    near = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1}[narrow]
    for rank, apart in enumerate(found(ranks)):
        assert apart[name] < near, rank


def test_an_exchange_as_large_as_dense_is_refused_with_its_bytes(gloo):
    assert gloo.run(1, refusal) == [""]
    for told in gloo.run(2, refusal):
        assert told.startswith("ConfigurationError: 'causal()' over 2 ranks would move 384 bytes"), told
        assert "dense_exchange=True" in told


def results(*shape: int, seed: int) -> Result:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
    return Result(out, torch.randn(*shape, generator=generator, dtype=torch.float64))


def test_merging_is_softmax_over_all_and_differentiable_where_some_or_all_read_nothing():
    parts = [results(1, 2, 5, seed=seed) for seed in range(3)]
    parts[0].lse[:, :, 1] = parts[1].lse[:, :, 1] = -torch.inf
    for part in parts:
        part.lse[:, :, 4] = -torch.inf
        part.out[part.lse == -torch.inf] = 0
    leaves = [x.requires_grad_() for part in parts for x in part]
    whole = merged(parts)
    weights = torch.softmax(torch.stack([part.lse for part in parts]), dim=0).nan_to_num(0)
    expected = sum(part.out * weight[..., None] for part, weight in zip(parts, weights, strict=True))
    assert torch.allclose(whole.out, expected, rtol=0, atol=1e-15)
    assert whole.lse[0, 0, 4] == -torch.inf
    factor = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    gradients = torch.autograd.grad((whole.out * factor).sum() + whole.lse[:, :, :4].exp().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    finite = [Result(part.out[:, :, :1], part.lse[:, :, :1]) for part in parts]
    inputs = [x.detach().requires_grad_() for part in finite for x in part]
    pairs = lambda *x: merged([Result(*x[i : i + 2]) for i in range(0, len(x), 2)])  # noqa: E731
    assert torch.autograd.gradcheck(pairs, inputs)


@pytest.mark.parametrize("places", [[1, 2, 3], [0, 2, 5], []])
def test_results_of_some_queries_are_merged_at_their_places(places):
    import numpy as np

    whole, more = results(1, 2, 6, seed=0), results(1, 2, len(places), seed=1)
    found = merged_at(whole, more, TokenIndices(np.array(places, np.int64)))
    for place in range(6):
        own = Result(*(x[:, :, [place]] for x in whole))
        if place in places:
            own = merged((own, Result(*(x[:, :, [places.index(place)]] for x in more))))
        assert torch.equal(found.out[:, :, [place]], own.out)
        assert torch.equal(found.lse[:, :, [place]], own.lse)
