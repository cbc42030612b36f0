"""Terms of the score against the oracle: generated cases, forward and backward, for every implementation."""

import math

import pytest
import torch
from strategies import hold, tiers
from term_cases import COMPUTES, check_terms, check_unread, term_cases

from asterism import SoftSpan, Terms, attend

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize("count", tiers(30, 1000))
@pytest.mark.parametrize("implementation", COMPUTES)
def test_terms_agree_with_the_oracle(implementation, count):
    hold(lambda chosen: check_terms(chosen, implementation), term_cases(implementation), count)


@pytest.mark.parametrize("implementation", [name for name, (terms, _) in COMPUTES.items() if "bias" in terms])
def test_what_lies_beyond_every_span_changes_nothing(implementation):
    """The last four queries of 40: only the span keeps them from the first 30 keys, which hold NaN."""
    q, k, v, d_out = (torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(n)) for n in (4, 40, 41, 4))
    v = v[:, :, :40]

    def results(k, v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, torch.tensor([1.0, 3.0]))]
        terms = Terms(bias=SoftSpan(leaves[3], 2))
        out = attend(*leaves[:3], "causal()", terms=terms, implementation=implementation)
        return out, *torch.autograd.grad(out, leaves, d_out)

    clean = results(k, v)
    k[:, :, :30], v[:, :, :30] = math.nan, math.inf
    for one, other in zip(clean, results(k, v), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("count", tiers(8, 300))
@pytest.mark.parametrize("implementation", COMPUTES)
def test_what_unread_keys_hold_changes_nothing(implementation, count):
    hold(lambda chosen: check_unread(chosen, implementation), term_cases(implementation), count)
