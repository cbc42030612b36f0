"""Terms of the score against the oracle: generated cases, forward and backward, for every implementation."""

import pytest
from strategies import hold, tiers
from term_cases import COMPUTES, check_terms, check_unread, term_cases

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize("count", tiers(60, 1000))
@pytest.mark.parametrize("implementation", COMPUTES)
def test_terms_agree_with_the_oracle(implementation, count):
    hold(lambda chosen: check_terms(chosen, implementation), term_cases(implementation), count)


@pytest.mark.parametrize("count", tiers(15, 300))
@pytest.mark.parametrize("implementation", COMPUTES)
def test_what_unread_keys_hold_changes_nothing(implementation, count):
    hold(lambda chosen: check_unread(chosen, implementation), term_cases(implementation), count)
