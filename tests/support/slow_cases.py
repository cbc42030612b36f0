"""Cases of parametrized tests that only `make test-slow` runs."""

from collections.abc import Iterable

import pytest


def slow_except(cases: Iterable, *quick: object) -> list:
    """Return the cases for `parametrize`, all but `quick` marked as slow. Each case is one argument of the test."""
    cases = list(cases)
    assert all(one in cases for one in quick), "a quick case is not among the cases"
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in cases]
