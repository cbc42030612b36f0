"""Patterns that are bands around the diagonal, compared with their dense masks; and what of others is no band."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.patterns import Pattern, causal, dense, parse, window
from asterism.patterns.sides import Sides, beyond_sides, sides_of

LENGTH = 12

bands = st.recursive(
    st.one_of(
        st.builds(window, st.integers(0, 6), st.integers(0, 6)),
        st.sampled_from([causal(), dense()]),
    ),
    lambda inner: st.one_of(st.builds(lambda a, b: a & b, inner, inner), st.builds(lambda a, b: a | b, inner, inner)),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(bands)
def test_sides_are_those_of_the_mask(pattern: Pattern):
    sides = sides_of(pattern)
    assert sides is not None
    left, right = (LENGTH if side is None else side for side in sides)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    assert np.array_equal(pattern.dense(LENGTH)[0], (distance <= left) & (-distance <= right))
    assert beyond_sides(pattern) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("window(left=7) | global_keys(0)", "global keys"),
        ("(window(left=7) | global_tokens(0)) & causal()", "global"),
        ("window(left=2, dilation=3)", "strides"),
        ("blocks(size=4) & causal()", "blocks"),
        ("per_head((window(left=1), window(left=2)))", "heads with patterns of their own"),
        ("sinks()", "global keys"),
        ("~window(left=1)", "~window"),
    ],
)
def test_what_is_no_band_is_named(text: str, words: str):
    pattern = parse(text)
    assert sides_of(pattern) is None
    assert words in beyond_sides(pattern)


def test_equal_heads_are_one_band():
    assert sides_of(parse("per_head((window(left=2), window(left=2)))")) == Sides(2, 0)
