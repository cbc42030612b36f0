"""Patterns as values: what they allow, which parts they have, how they compare."""

import inspect
import pickle

import numpy as np
import oracle
import pytest
from known_patterns import ALL, PUBLISHED, named
from oracle import rule
from refusals import refusing
from strategies import build

from asterism import patterns
from asterism.errors import PatternError

LENGTHS = (1, 2, 7, 63, 64, 65, 100, 257)


# ---------------------------------------------------------------------------------------------------------------------
# The rule itself.


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_dense_is_the_predicate(drawn):
    pattern = build(drawn)
    for length in LENGTHS:
        found = pattern.dense(length)
        assert found.dtype == np.bool_
        np.testing.assert_array_equal(found, oracle.picture(drawn, length), err_msg=f"{length=}")


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_fewer_queries_than_keys(drawn):
    pattern = build(drawn)
    for n_queries, n_keys, offset in ((1, 64, None), (7, 65, None), (0, 5, None), (3, 65, 60), (10, 100, 0)):
        expected = oracle.picture(drawn, n_queries, n_keys, offset)
        np.testing.assert_array_equal(pattern.dense(n_queries, n_keys, offset), expected)


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_allows_broadcasts(drawn):
    pattern = build(drawn)
    queries, keys = np.arange(20, 40), np.arange(0, 64, 3)
    for head in range(pattern.heads):
        grid = pattern.allows(queries[:, None], keys[None, :], 64, head=head)
        np.testing.assert_array_equal(grid, oracle.picture(drawn, 64)[head][20:40, ::3])
        assert bool(pattern.allows(np.int64(30), np.int64(3), 64, head=head)) == oracle.allowed(drawn, 30, 3, 64, head)


def test_no_tokens():
    assert patterns.bigbird(block=4).dense(0).shape == (1, 0, 0)


def test_more_queries_than_keys_is_refused():
    with refusing(PatternError, "queries-beyond-positions", "5", "4", "0"):
        patterns.causal().dense(5, 4)


# ---------------------------------------------------------------------------------------------------------------------
# Parts of published patterns.


@pytest.mark.parametrize("drawn", PUBLISHED, ids=named)
def test_body_is_the_same_pattern(drawn):
    pattern = build(drawn)
    np.testing.assert_array_equal(pattern.body.dense(100), pattern.dense(100))


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (
            rule("strided", stride=5),
            (rule("window", left=5) & rule("causal"), rule("stride", period=5) & rule("causal")),
        ),
        (
            rule("fixed", stride=6, summary=2),
            (
                rule("blocks", size=6) & rule("causal"),
                rule("columns", period=6, first=4, count=2) & rule("causal"),
            ),
        ),
        (rule("yun_strided", w=4), (rule("yun_window", w=4), rule("stride", period=4))),
    ],
    ids=named,
)
def test_factors(whole, parts):
    found = build(whole).parts
    assert len(found) == len(parts)
    for part, expected in zip(found, parts, strict=True):
        np.testing.assert_array_equal(part.dense(65), oracle.picture(expected, 65))


def test_factors_of_yun_fixed():
    first, second = patterns.yun_fixed(w=4).parts
    np.testing.assert_array_equal(first.dense(65), oracle.picture(rule("blocks", size=4), 65))
    summary = oracle.picture(rule("columns", period=4, first=3) | rule("window"), 65)
    np.testing.assert_array_equal(second.dense(65), summary)


def test_factors_with_heads_have_as_many_heads():
    local, summary = patterns.fixed(stride=8, summary=2, heads=3).parts
    union = local.dense(64) | summary.dense(64)
    np.testing.assert_array_equal(union, oracle.picture(rule("fixed", stride=8, summary=2, heads=3), 64))


def test_signatures_of_published_patterns_say_what_they_return():
    """A Named pattern, which has parts: they said Sequence, and `strided(32).parts` needed a cast."""
    for published in (patterns.strided, patterns.bigbird, patterns.longformer, patterns.yun_star):
        assert inspect.signature(published).return_annotation is patterns.Named
    assert [str(part) for part in patterns.strided(32).parts] == ["window(left=32)", "stride(period=32) & causal()"]


# ---------------------------------------------------------------------------------------------------------------------
# Values.


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_equal_by_value(drawn):
    one, other = build(drawn), build(drawn)
    assert one == other
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1
    assert one != patterns.window(left=77)
    assert one != one.text


def test_unequal_where_an_argument_differs():
    assert patterns.window(left=1) != patterns.window(left=2)
    assert patterns.stride(3) != patterns.blocks(3)
    assert patterns.random_blocks(2, 1, seed=1) != patterns.random_blocks(2, 1, seed=2)
    assert patterns.explicit("0:0", size=2) != patterns.explicit("0:1", size=2)
    assert patterns.fixed(8) != patterns.fixed(8, heads=2)


def test_arguments_by_position_and_by_name_are_one_value():
    assert patterns.window(3, 1) == patterns.window(left=3, right=1)
    assert patterns.global_tokens(0) == patterns.global_tokens((0,)) == patterns.global_tokens([0])
    assert patterns.bigbird(16) == patterns.bigbird(block=16)


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_frozen(drawn):
    pattern = build(drawn)
    with pytest.raises((AttributeError, TypeError)):
        pattern.something = 1
    for field in getattr(pattern, "__dataclass_fields__", {}):
        with pytest.raises(AttributeError):
            setattr(pattern, field, None)


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_pickles(drawn):
    """Data loaders and multiprocessing move patterns between processes."""
    pattern = build(drawn)
    assert pickle.loads(pickle.dumps(pattern)) == pattern


def test_heads():
    assert patterns.causal().heads == 1
    assert patterns.fixed(8, summary=2, heads=4).heads == 4
    assert patterns.bigbird(block=4, heads=3).heads == 3
    assert patterns.per_head([patterns.causal(), patterns.dense()]).heads == 2
    two = patterns.per_head([patterns.stride(2), patterns.stride(3)])
    assert (two & patterns.causal()).heads == 2
    assert (~two).heads == 2
    assert patterns.shifted(two, 3).heads == 2


def test_different_numbers_of_heads_do_not_combine():
    two = patterns.per_head([patterns.causal()] * 2)
    three = patterns.per_head([patterns.causal()] * 3)
    for combine in (lambda: two | three, lambda: two & three):
        with refusing(PatternError, "heads-differ", "2", "3"):
            combine()


@pytest.mark.parametrize(
    ("misuse", "operator"),
    [
        (lambda p, q: p and q, "&"),
        (lambda p, q: p or q, "|"),
        (lambda p, q: not p, "~"),
        (lambda p, q: bool(p), "&"),
        (lambda p, q: 1 if p else 0, "|"),
        (lambda p, q: bool(p | q), "~"),
    ],
)
def test_and_or_not_name_the_operator_meant(misuse, operator):
    with pytest.raises(PatternError) as refused:
        misuse(patterns.causal(), patterns.star())
    assert operator in str(refused.value)


@pytest.mark.parametrize("other", (1, True, "causal()", None, np.eye(3, dtype=bool)))
def test_operators_take_patterns_only(other):
    for combine in (lambda: patterns.causal() | other, lambda: patterns.causal() & other):
        with pytest.raises((TypeError, PatternError)):
            combine()
