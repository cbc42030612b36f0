"""Results over disjoint keys as one: some queries only, against the formula, with gradients of outputs and lses."""

import math

import numpy as np
import pytest
import torch

from asterism.kernels.merging import Result, merged_at
from asterism.parallel.indices import TokenIndices


def by_formula(whole: Result, more: Result, at: list[int]) -> Result:
    """Both results weighed by their log-sum-exps, where the second has any."""
    more_lse = torch.full_like(whole.lse, -math.inf).index_copy(2, torch.tensor(at), more.lse)
    more_out = torch.zeros_like(whole.out).index_copy(2, torch.tensor(at), more.out)
    lse = torch.logaddexp(whole.lse, more_lse)
    return Result(
        whole.out * (whole.lse - lse).exp()[..., None] + more_out * (more_lse - lse).exp()[..., None],
        lse,
    )


@pytest.mark.parametrize("at", ([3, 4, 5], [0, 4, 8], [8]))
def test_some_of_the_queries(at):
    generator = torch.Generator().manual_seed(2)
    shapes = (2, 3, 9, 4), (2, 3, 9), (2, 3, len(at), 4), (2, 3, len(at))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes[:2]]
    found = merged_at(Result(*tensors[:2]), Result(*tensors[2:]), TokenIndices(np.array(at)))
    expected = by_formula(Result(*tensors[:2]), Result(*tensors[2:]), at)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(list(result), tensors, weights) for result in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("numbers", [[2, 3, 4], [0, 3, 5], [], list(range(6))])
@pytest.mark.parametrize("kind", ["own memory", "expanded"])
def test_tokens_that_are_shared_give_their_gradients_to_the_whole(numbers, kind):
    """As autograd adds up those of `take` and of the tensor; a gradient without memory of its own is not written to."""
    places = TokenIndices(np.array(numbers, np.int64))
    x = torch.randn(2, 3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.ones(1, 1, 1, 1, dtype=torch.float64).expand(2, 3, 6, 4) if kind == "expanded" else x.detach() ** 2
    kept = weight.clone()
    own = torch.linspace(1, 2, 4, dtype=torch.float64)

    def gradient(whole, some):
        (found,) = torch.autograd.grad((whole, some), (x,), (weight, own.expand_as(some)))
        return found

    expected = gradient(x * 1, places.take(x))
    # The gradient goes through a product first, so that what is written to is not the caller's own.
    whole, some = places.share(x)
    torch.testing.assert_close(gradient(whole if kind == "expanded" else whole * 1, some), expected, rtol=0, atol=0)
    assert torch.equal(weight, kept)
