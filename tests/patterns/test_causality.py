"""What a pattern proves about itself: that it reads no future, and that it never changes."""

import numpy as np
import oracle
import pytest
from known_patterns import CAUSAL, NOT_CAUSAL, STABLE, UNSTABLE
from refusals import refusing

from asterism import patterns
from asterism.errors import PatternError


@pytest.mark.parametrize("text", CAUSAL)
def test_causal(text):
    pattern = patterns.parse(text)
    assert pattern.is_causal is True
    assert not np.triu(pattern.dense(40), 1).any()


@pytest.mark.parametrize("text", NOT_CAUSAL)
def test_not_causal(text):
    pattern = patterns.parse(text)
    assert pattern.is_causal is False
    assert np.triu(pattern.dense(40), 1).any()


def pictures(pattern):
    return [pattern.dense(length) for length in (*range(1, 24), 40, 41, 64)]


@pytest.mark.parametrize("text", STABLE)
def test_prefix_stable(text):
    pattern = patterns.parse(text)
    assert pattern.unstable_part() is None
    assert oracle.is_prefix_stable(pictures(pattern))


@pytest.mark.parametrize("text", UNSTABLE)
def test_not_prefix_stable(text):
    pattern = patterns.parse(text)
    part = pattern.unstable_part()
    assert part is not None
    assert not oracle.is_prefix_stable(pictures(pattern))
    assert not oracle.is_prefix_stable(pictures(part))


@pytest.mark.parametrize("text", [*STABLE, *NOT_CAUSAL, *UNSTABLE, "bigbird(block=4, random=0, globals=(0,))"])
def test_depends_on_length(text):
    """Of the published patterns, exactly those depend on the length whose pictures, whole ones, change with it."""
    pattern = patterns.parse(text)
    assert pattern.depends_on_length == (not oracle.is_stable(pictures(pattern)))


def test_a_draw_among_earlier_blocks_never_changes():
    for pattern in (patterns.random_blocks(4, 2, earlier=True, heads=2), patterns.bigbird_causal(block=4, heads=2)):
        assert oracle.is_prefix_stable(pictures(pattern))


@pytest.mark.parametrize("text", CAUSAL)
def test_require_causal_accepts(text):
    assert patterns.require_causal(patterns.parse(text)) is None


@pytest.mark.parametrize("text", NOT_CAUSAL)
def test_require_causal_refuses_the_future(text):
    with pytest.raises(PatternError) as refused:
        patterns.require_causal(patterns.parse(text))
    message = str(refused.value)
    assert text.partition("(")[0].lstrip("~") in message
    assert "causal" in message


@pytest.mark.parametrize("text", UNSTABLE)
def test_require_causal_refuses_the_unstable_and_names_the_part(text):
    with pytest.raises(PatternError) as refused:
        patterns.require_causal(patterns.parse(text))
    assert UNSTABLE[text] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ("bigbird(block=4)", "bigbird(block=4) & causal()", "bigbird() & causal()"))
def test_require_causal_names_the_stable_relative(text):
    with refusing(PatternError, "not-prefix-stable", "bigbird_causal"):
        patterns.require_causal(patterns.parse(text))


def test_an_unstable_pattern_that_no_table_knows_is_refused_too(monkeypatch):
    monkeypatch.setattr("asterism.patterns.causality._STABLE_RELATIVES", {})
    with refusing(PatternError, "not-prefix-stable", "one that does not depend on the length"):
        patterns.require_prefix_stable(patterns.bigbird(block=4))
