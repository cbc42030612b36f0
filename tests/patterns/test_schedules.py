"""Schedules: patterns over layers and heads."""

import numpy as np
import oracle
import pytest
from oracle import per_head, rule
from refusals import refusing

from asterism import patterns
from asterism.errors import PatternError


def test_interleave_cycles():
    schedule = patterns.interleave(patterns.causal(), patterns.strided(4), patterns.fixed(4))
    assert schedule.period == 3
    assert [schedule.layer(i) for i in range(5)] == [schedule.layer(i % 3) for i in range(5)]
    assert schedule.layer(4) == patterns.strided(4)


def test_merge_is_the_union():
    merged = patterns.merge(patterns.window(left=2), patterns.stride(5), patterns.star())
    expected = rule("window", left=2) | rule("stride", period=5) | rule("star")
    np.testing.assert_array_equal(merged.dense(30), oracle.picture(expected, 30))


def test_split_heads_gives_contiguous_equal_groups():
    pattern = patterns.split_heads(patterns.causal(), patterns.star(), patterns.dense(), heads=6)
    expected = per_head(*(rule(name) for name in ("causal", "causal", "star", "star", "dense", "dense")))
    assert pattern.heads == 6
    np.testing.assert_array_equal(pattern.dense(9), oracle.picture(expected, 9))


def test_split_heads_refuses_a_remainder():
    with refusing(PatternError, "split-heads-unevenly", "5", "2"):
        patterns.split_heads(patterns.causal(), patterns.dense(), heads=5)


@pytest.mark.parametrize("make", (patterns.interleave, patterns.merge, lambda: patterns.Schedule(())))
def test_nothing_makes_no_schedule(make):
    with pytest.raises(PatternError):
        make()
