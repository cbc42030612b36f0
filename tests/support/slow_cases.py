"""Which cases of a test wait for `make test-slow`."""

from collections.abc import Iterable

import pytest


def slow_except(cases: Iterable, *quick: object) -> list:
    """All of the cases, each one argument of a test; those that are not named are slow."""
    cases = list(cases)
    assert all(one in cases for one in quick), "a case that is to run always is none of them"
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in cases]
