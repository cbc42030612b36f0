"""Slow tests generate other cases on each run, say which, and repeat them; the usual ones are the same on every run."""

import re

import pytest

pytest_plugins = ["pytester"]

HOOKS = ("-p", "seeds", "-W", "ignore:Module already imported")

TINY = """
import pytest
from hypothesis import given, strategies as st
from seeds import drawing

@pytest.mark.parametrize("count", [20, pytest.param(21, marks=pytest.mark.slow)])
def test_generated(count):
    seen = []
    drawing(count)(given(st.integers(0, 10**9))(lambda case: seen.append(case)))()
    print("drawn", seen)
    assert count == 20, "fails when it is slow"
"""


@pytest.fixture
def drawn(pytester):
    """What a run with these arguments draws, and all that it prints."""
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makepyfile(TINY)

    def run(*arguments):
        text = pytester.runpytest_inprocess(*HOOKS, "-rP", *arguments).stdout.str()
        return re.findall(r"drawn .*", text), text

    return run


def test_the_usual_cases_are_the_same_on_every_run(drawn):
    runs = [drawn("-m", "not slow", *more)[0] for more in ((), (), ("--seed", "7"))]
    assert len(runs[0]) == 1 and runs[0] == runs[1] == runs[2]


def test_slow_cases_are_others_each_time_and_can_be_repeated(drawn):
    (first, text), (second, _) = drawn("-m", "slow"), drawn("-m", "slow")
    assert len(first) == 1 and first != second
    ((said, named),) = re.findall(r"^pytest -m slow --seed (\d+) '?([^']*)'?$", text, re.MULTILINE)
    assert f"slow tests generate cases by --seed {said}" in text
    assert drawn("-m", "slow", "--seed", said, named)[0] == first
    assert drawn("-m", "slow", "--seed", str(int(said) + 1))[0] != first
