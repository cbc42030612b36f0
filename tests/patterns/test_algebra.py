"""Laws of the algebra on generated patterns: spans, verdicts, set laws, and the proofs a pattern gives about itself."""

import numpy as np
import oracle
import pytest
import strategies
from hypothesis import strategies as st
from laws import check_spans, check_verdict
from strategies import LENGTHS, RANDOM, build, hold, is_predictable, tiers

from asterism import patterns
from asterism.patterns import Verdict


@st.composite
def _questions_with_ranges(draw):
    drawn, length = draw(strategies.questions())
    return drawn, length, draw(strategies.ranges(length)), draw(strategies.ranges(length))


@st.composite
def _pairs(draw, number: int = 2):
    length = draw(st.sampled_from(LENGTHS))
    drawn = [draw(strategies.rules(length, draws=True, depth=3)) for _ in range(number)]
    return drawn, length


def same(one, other, length: int) -> None:
    np.testing.assert_array_equal(one.dense(length), other.dense(length))


@pytest.mark.parametrize("count", tiers(50, 1000))
def test_dense_is_the_predicate(count):
    def law(case):
        drawn, length = case
        np.testing.assert_array_equal(build(drawn).dense(length), oracle.picture(drawn, length))

    hold(law, strategies.questions(draws=False), count)


@pytest.mark.parametrize("count", tiers(50, 2000))
def test_verdicts_and_spans_agree_with_the_picture(count):
    def law(case):
        drawn, length, queries, keys = case
        pattern = build(drawn)
        for head, picture in enumerate(pattern.dense(length)):
            check_spans(pattern, picture, queries, length, head)
            check_verdict(pattern, picture, queries, keys, length, head)

    hold(law, _questions_with_ranges(), count)


EVERY_RECTANGLE = [
    "causal()",
    "window(left=2, right=1)",
    "window(left=1, right=2, dilation=2)",
    "stride(3)",
    "blocks(3)",
    "blocks(2, left=1)",
    "blocks(2, right=2)",
    "columns(4, first=1, count=2)",
    "grid(3, radius=1)",
    "grid(4, radius=(1, 2))",
    "grid(2, radius=(2, 1), dilation=2)",
    "grid(5, radius=(0, 2), dilation=2)",
    "grid(2, radius=(1, 0), channels=2)",
    "grid(9, radius=1, dilation=3)",
    "~grid(3, radius=(0, 1))",
    "grid(2, radius=(300, 0)) & causal()",
    "across(grid(3, radius=1), step=2)",
    "global_keys((1, -2))",
    "global_queries((0, -1), block=2)",
    "global_tokens(1, block=3)",
    "random_blocks(2, 2, window_blocks=1)",
    "yun_random(2)",
    'explicit("0:0-3,7;2:1;5:0-8", size=9)',
    "shifted(blocks(3), by=2)",
    "documents(causal(), 3, 0, 5)",
    "documents(star_transformer(), 4, -1, 5)",
    "~documents(window(left=2, right=1), 2, -2, 4)",
    "documents(stride(2) & dense(), 2, 9)",
    "across(window(left=1, right=1), step=2)",
    "across(window(left=1), step='2/3')",
    "across(stride(3) | global_keys(1), step='3/2')",
    "~across(blocks(2) & causal(), step=3)",
    "across(documents(causal(), 3, 5), step='1/2')",
    "across(random_blocks(2, 2), step=4) | across(global_queries(5), step=2)",
    "shifted(across(columns(3) & window(3, 3), step='5/4'), by=1)",
    "~window(left=2, right=1)",
    "~(blocks(3) & causal())",
    "strided(3)",
    "fixed(4, summary=2)",
    "bigbird(block=2)",
    "star_transformer()",
]


@pytest.mark.parametrize("text", EVERY_RECTANGLE)
def test_every_rectangle_of_a_small_picture(text):
    """All pairs of ranges of 9 tokens: no verdict or span is wrong by one."""
    n = 9
    pattern = patterns.parse(text)
    (picture,) = pattern.dense(n)
    ranges = [(start, stop) for start in range(n) for stop in range(start + 1, n + 1)]
    for queries in ranges:
        check_spans(pattern, picture, queries, n, 0)
        for keys in ranges:
            check_verdict(pattern, picture, queries, keys, n, 0)


def test_the_verdict_check_can_fail():
    class Liar:
        def verdict(self, *question):
            return Verdict.FULL

        def spans(self, *question):
            return np.zeros((0, 2), dtype=np.int64)

    picture = np.eye(4, dtype=bool)
    with pytest.raises(AssertionError):
        check_verdict(Liar(), picture, (0, 2), (0, 2), 4, 0)
    with pytest.raises(AssertionError):
        check_spans(Liar(), picture, (0, 2), 4, 0)


def test_verdicts_are_ordered():
    assert [Verdict.EMPTY, Verdict.UNKNOWN, Verdict.MIXED, Verdict.FULL] == [0, 1, 2, 3]


DECIDED = [
    ("window(left=63)", (128, 192), (0, 64), Verdict.EMPTY),
    ("window(left=255)", (128, 160), (64, 96), Verdict.FULL),
    ("causal()", (64, 128), (0, 64), Verdict.FULL),
    ("causal()", (0, 64), (64, 128), Verdict.EMPTY),
    ("dense()", (0, 256), (0, 256), Verdict.FULL),
    ("~dense()", (0, 256), (0, 256), Verdict.EMPTY),
    ("~causal()", (0, 64), (64, 128), Verdict.FULL),
    ("blocks(64)", (64, 128), (64, 128), Verdict.FULL),
    ("blocks(64)", (64, 128), (128, 192), Verdict.EMPTY),
    ("window(left=255) & causal()", (128, 160), (64, 96), Verdict.FULL),
    ("global_tokens(0, block=64)", (64, 128), (64, 128), Verdict.EMPTY),
    ("global_tokens(0, block=64)", (0, 64), (64, 128), Verdict.FULL),
    ("shifted(causal(), by=64)", (0, 64), (0, 64), Verdict.EMPTY),
    ("bigbird(block=64, random=0)", (128, 192), (64, 128), Verdict.FULL),
]


@pytest.mark.parametrize(("text", "queries", "keys", "expected"), DECIDED)
def test_plain_tiles_are_decided_without_looking(text, queries, keys, expected):
    """A verdict that is always UNKNOWN contradicts nothing and helps nobody."""
    assert patterns.parse(text).verdict(queries, keys, 256) == expected


def test_spans_of_a_window_are_narrow():
    spans = patterns.window(left=10).spans((500_000, 500_064), 1_000_000)
    assert (spans[:, 1] - spans[:, 0]).sum() <= 64 + 10


def test_spans_of_bigbird_are_few_and_cheap():
    spans = patterns.bigbird(block=64).spans((500_032, 500_096), 1_000_000)
    assert len(spans) <= 2 * (3 + 3 + 2)
    assert (spans[:, 1] - spans[:, 0]).sum() <= 2 * 64 * 9


@pytest.mark.parametrize("count", tiers(20, 500))
def test_set_laws(count):
    def law(case):
        (p, q, r), length = case
        p, q, r = build(p), build(q), build(r)
        nothing, everything = ~patterns.dense(), patterns.dense()
        same(~(p | q), ~p & ~q, length)
        same(~(p & q), ~p | ~q, length)
        same(~~p, p, length)
        same(p | q, q | p, length)
        same(p & q, q & p, length)
        same((p | q) | r, p | (q | r), length)
        same(p & (q | r), (p & q) | (p & r), length)
        same(p | (p & q), p, length)
        same(p | p, p, length)
        same(p & ~p, nothing, length)
        same(p | ~p, everything, length)
        same(p & everything, p, length)
        same(p | nothing, p, length)
        same(patterns.merge(p, q, r), p | q | r, length)

    hold(law, _pairs(3), count)


@pytest.mark.parametrize("count", tiers(50, 500))
def test_operators_act_on_pictures(count):
    def law(case):
        (p, q), length = case
        p, q = build(p), build(q)
        left, right = p.dense(length), q.dense(length)
        np.testing.assert_array_equal((p | q).dense(length), left | right)
        np.testing.assert_array_equal((p & q).dense(length), left & right)
        np.testing.assert_array_equal((~p).dense(length), ~left)
        np.testing.assert_array_equal(patterns.per_head([p, q]).dense(length), np.concatenate([left, right]))
        by = min(3, length)
        moved = np.zeros_like(left)
        moved[:, by:, by:] = p.dense(length - by)
        np.testing.assert_array_equal(patterns.shifted(p, by).dense(length), moved)

    hold(law, _pairs(), count)


@pytest.mark.parametrize("count", tiers(25, 500))
def test_fewer_queries_are_rows_of_the_square(count):
    def law(case):
        drawn, length, (start, stop), _ = case
        pattern = build(drawn)
        square = pattern.dense(length)
        np.testing.assert_array_equal(pattern.dense(stop - start, length, start), square[:, start:stop])
        last = 0 if pattern.crosses else start
        np.testing.assert_array_equal(pattern.dense(length - start, length), square[:, last : last + length - start])

    hold(law, _questions_with_ranges(), count)


@pytest.mark.parametrize("count", tiers(40, 1500))
def test_claims_about_the_future_and_the_prefix_are_true(count):
    def law(case):
        drawn, length = case
        for rule in (drawn, drawn & oracle.rule("causal")):
            pattern = build(rule)
            grown = [pattern.dense(n) for n in range(max(1, length - 3), length + 4)]
            if pattern.is_causal:
                assert not any(np.triu(picture, 1).any() for picture in grown)
            if not pattern.depends_on_length:
                assert oracle.is_stable(grown)

    def questions():
        return st.sampled_from(LENGTHS).flatmap(
            lambda n: st.tuples(strategies.rules(n + 3, heads=2, depth=3), st.just(n))
        )

    hold(law, questions(), count)


def test_the_generator_reaches_the_whole_vocabulary():
    """A strategy that silently drops a name would make every law above weaker."""
    seen: set[str] = set()
    predictable: list[bool] = []

    def collect(drawn):
        seen.update(drawn.names)
        predictable.append(is_predictable(drawn))

    hold(collect, strategies.rules(97, heads=3), 1000)
    assert seen == {
        *oracle.PREDICATES,
        *RANDOM,
        "or",
        "and",
        "not",
        "shifted",
        "documents",
        "per_head",
        "across",
        "tree",
    }
    assert any(predictable) and not all(predictable)
