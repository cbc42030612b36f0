"""Which cases generated tests draw: the same on every run in the usual tests, others on each run of the slow ones.

The seed of a run of slow tests is printed in the beginning and with each failure, as the command that repeats it.
Hooks of pytest, which conftest.py takes over, and what draws. A slow test draws by `drawing`, in this process or in one
that it starts: the variable says which tier it is of.
"""

import os
import random
import shlex
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

VARIABLE = "ASTERISM_TEST_SEED"
"""The seed, while a slow test runs."""


def drawing(count: int, **more: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorates what `hypothesis.given` made of a law: `count` cases, with more of Hypothesis's settings."""
    fresh = os.environ.get(VARIABLE)
    chosen = hypothesis.settings(max_examples=count, derandomize=fresh is None, deadline=None, database=None, **more)
    return chosen if fresh is None else lambda law: hypothesis.seed(int(fresh))(chosen(law))


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, help="of generated cases in slow tests; else a fresh one on each run")


def pytest_configure(config):
    if config.option.seed is None:  # the workers of pytest-xdist are told
        config.option.seed = random.SystemRandom().randrange(2**32)


def pytest_report_header(config):
    return f"slow tests generate cases by --seed {config.option.seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    if item.get_closest_marker("slow") is None:
        return (yield)
    os.environ[VARIABLE] = str(item.config.option.seed)
    try:
        return (yield)
    finally:
        del os.environ[VARIABLE]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed and VARIABLE in os.environ:
        command = shlex.join(["pytest", "-m", "slow", "--seed", os.environ[VARIABLE], item.nodeid])
        report.sections.append(("the same cases once more", command))
    return report
