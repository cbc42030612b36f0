"""Trees, compared with a walk from each token up its parents."""

import time

import numpy as np
import oracle
import pytest
import strategies
import torch
from hypothesis import strategies as st
from laws import check_spans, check_verdict
from refusals import refusing
from strategies import hold, tiers

from asterism import compile_pattern, patterns
from asterism.errors import PatternError
from asterism.patterns import Verdict, parents_in_row, tree
from asterism.patterns.pattern import Ranges
from asterism.theory import certify


def walked(parents) -> np.ndarray:
    """bool [tokens, tokens]: by the definition, one step up at a time."""
    found = np.zeros((len(parents), len(parents)), bool)
    for token in range(len(parents)):
        ancestor = token
        while ancestor >= 0:
            found[token, ancestor] = True
            ancestor = parents[ancestor]
    return found


def branching(prompt: int, answers: int, answer: int, prompts: int = 1) -> np.ndarray:
    """Parents of prompts, each with answers behind it."""
    found: list[int] = []
    for _ in range(prompts):
        last = len(found) + prompt - 1
        found += [-1, *range(len(found), last)]
        for _ in range(answers):
            found += [last, *range(len(found), len(found) + answer - 1)]
    return np.array(found)


def by_depth(parents: np.ndarray) -> np.ndarray:
    """The same tree with its tokens level by level."""
    order = np.argsort([len(oracle.path_to(parents, token)) for token in range(len(parents))], kind="stable")
    place = np.argsort(order)
    return np.array([-1 if parents[token] < 0 else place[parents[token]] for token in order])


@pytest.mark.parametrize("count", tiers(40, 2000))
def test_a_walk_up_the_parents(count):
    def law(parents):
        n = len(parents)
        pattern, expected = tree(parents), walked(parents)
        np.testing.assert_array_equal(pattern.dense(n)[0], expected)
        for tile in (16, 64):
            np.testing.assert_array_equal(compile_pattern(pattern, n, tile=tile).to_dense()[0], expected)
        assert patterns.parse(pattern.text) == pattern == tree(list(parents), n)
        np.testing.assert_array_equal(pattern.forest.parents(), parents)

    hold(law, st.sampled_from(strategies.LENGTHS).flatmap(strategies.parents), count)


@pytest.mark.parametrize("count", tiers(40, 2000))
def test_spans_and_verdicts(count):
    @st.composite
    def questions(draw):
        drawn = draw(strategies._tree(67))
        return drawn, draw(strategies.ranges(67)), draw(strategies.ranges(67))

    def law(question):
        drawn, queries, keys = question
        pattern, expected = strategies.build(drawn), oracle.picture(drawn, 67)[0]
        check_spans(pattern, expected, queries, 67, 0)
        check_verdict(pattern, expected, queries, keys, 67, 0)
        if pattern.forest.is_depth_first and not drawn.parts:  # then no pair need be looked at
            assert pattern.verdict(queries, keys, 67) != Verdict.UNKNOWN

    hold(law, questions(), count)


def depth_first_trees(tokens: int):
    """The parents of every forest of so many tokens in depth-first order."""
    if tokens == 0:
        yield []
        return
    for before in depth_first_trees(tokens - 1):
        for parent in (-1, *oracle.path_to(before, tokens - 2)):
            yield [*before, parent]


@pytest.mark.parametrize("along", [None, patterns.window(left=1), patterns.stride(2)], ids=str)
def test_every_rectangle_of_every_small_tree(along):
    n = 7 if along is None else 6
    first, last = np.triu_indices(n)
    queries, keys = Ranges(first[:, None], last[:, None], 1), Ranges(first, last, 1)
    for parents in depth_first_trees(n):
        pattern, allowed = tree(parents, pattern=along), walked(parents)
        depth = allowed.sum(1) - 1
        if along is not None:
            allowed &= along.dense(n)[0][depth[:, None], depth]
        sums = np.pad(allowed.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        # The pairs in a rectangle, from the sums over those that begin at token 0.
        rows = sums[last + 1] - sums[first]
        pairs = rows[:, last + 1] - rows[:, first]
        whole = (last - first + 1)[:, None] * (last - first + 1)
        truth = np.where(pairs == 0, Verdict.EMPTY, np.where(pairs == whole, Verdict.FULL, Verdict.MIXED))
        found = pattern.judge(queries, keys, n, 0)
        assert ((found == truth) | (found == Verdict.UNKNOWN)).all(), parents
        assert along is not None or (found == truth).all(), parents
        row, start, stop = pattern.find_spans(keys, n, 0).triples()
        covered = np.zeros((len(first), n), bool)
        for which, begin, end in zip(row, start, stop, strict=True):
            covered[which, begin:end] = True
        read = np.array([allowed[begin : end + 1].any(0) for begin, end in zip(first, last, strict=True)])
        assert not (read & ~covered).any(), parents
        assert along is not None or (read == covered).all(), parents


@pytest.mark.parametrize("count", tiers(30, 1000))
def test_depth_first_numbers(count):
    def law(parents):
        forest, n = tree(parents).forest, len(parents)
        tokens, reads = np.arange(n), walked(parents)
        number = forest.number(tokens)
        assert sorted(number) == list(range(n))
        np.testing.assert_array_equal(forest.count(tokens), reads.sum(0))
        np.testing.assert_array_equal(forest.depth(tokens), reads.sum(1) - 1)
        assert forest.height == reads.sum(1).max()
        assert forest.renumbered.is_depth_first
        np.testing.assert_array_equal(walked(forest.renumbered.parents())[number][:, number], reads)

    hold(law, st.sampled_from(strategies.LENGTHS).flatmap(strategies.parents), count)


def test_the_window_is_in_the_row_outside_and_along_the_path_inside():
    parents = [-1, 0, 1, 2, 1, 4]
    outside = tree(parents) & patterns.window(left=1)
    inside = tree(parents, pattern=patterns.window(left=1))
    assert not outside.allows(4, 1, 6) and inside.allows(4, 1, 6)
    np.testing.assert_array_equal(inside.dense(6)[0].sum(1), [1, 2, 2, 2, 2, 2])


def test_several_trees_in_a_row():
    trees = [[-1, 0, 0], [-1], [-1, 0, 1, 0]]
    parents = parents_in_row(sum(trees, []), torch.tensor([0, 3, 4, 8]))
    assert parents.tolist() == [-1, 0, 0, -1, -1, 4, 5, 4]
    expected = np.zeros((8, 8), bool)
    for start, own in zip((0, 3, 4), trees, strict=True):
        expected[start : start + len(own), start : start + len(own)] = walked(own)
    np.testing.assert_array_equal(tree(parents).dense(8)[0], expected)


def test_one_tree_in_each_of_several_documents():
    pattern = patterns.documents(tree([-1, 0, 0, 1, 1]), 5, -1, 3)
    expected = np.zeros((9, 9), bool)
    expected[:5, :5], expected[6:, 6:] = walked([-1, 0, 0, 1, 1]), walked([-1, 0, 0])
    np.testing.assert_array_equal(pattern.dense(9)[0], expected)
    np.testing.assert_array_equal(compile_pattern(pattern, 9).to_dense()[0], expected)


def test_parents_of_any_kind():
    expected = tree([-1, 0, 1, 0])
    for given in ((-1, 0, 1, 0), np.array([-1, 0, 1, 0], np.int8), torch.tensor([-1, 0, 1, 0]), range(-1, 3)):
        assert tree(given) == (tree("", size=4) if isinstance(given, range) else expected)
    assert tree("1:0;3:0", size=4) == expected, "1:0 says of a chain what it is"
    assert str(expected) == "tree(parents='3:0', size=4)"
    assert patterns.parse("tree((-1, 0, 1, 0))") == expected


# ---------------------------------------------------------------------------------------------------------------------
# Size and shape.


def test_a_hundred_thousand_tokens_take_as_many_tiles_as_their_pairs_need():
    parents = branching(2047, 63, 251, prompts=6)
    n = len(parents)
    started = time.process_time()
    plan = compile_pattern(tree(parents), n)
    assert time.process_time() - started < 5, "tile by tile, not pair by pair"
    assert n > 1e5
    pairs = 6 * (2047 * 2048 // 2 + 63 * (251 * 2047 + 251 * 252 // 2))
    assert plan.tiles * plan.tile**2 < 1.7 * pairs


@pytest.mark.parametrize("layout", ["natural", "depth first"])
def test_tokens_level_by_level_get_an_order(layout):
    parents = branching(300, 20, 40)
    parents = by_depth(parents) if layout == "depth first" else parents
    plan = compile_pattern(tree(parents), len(parents), tile=32)
    assert [part.layout for part in plan.passes] == [layout]
    np.testing.assert_array_equal(plan.to_dense()[0], walked(parents))


@pytest.mark.parametrize("kind", ["chain", "comb", "star", "two chains in turns"])
def test_a_million_tokens_without_recursion(kind):
    n = 10**6
    token = np.arange(n)
    parents = {
        "chain": token - 1,
        "comb": np.where(token % 2, token - 1, np.maximum(token - 2, -1)),  # a leaf hangs from every tooth
        "star": np.where(token, 0, -1),
        "two chains in turns": np.maximum(token - 2, -1),
    }[kind]
    pattern = tree(parents)
    last = np.array([n - 1, n - 2, n // 2])
    reads = pattern.allows(last, np.array([n - 2, 0, 0]), n)
    assert (
        reads.tolist()
        == {
            "chain": [True, True, True],
            "comb": [True, True, True],
            "star": [False, True, True],
            "two chains in turns": [False, True, True],
        }[kind]
    )
    assert len(pattern.spans((n - 64, n), n)) >= 1


def test_ten_million_tokens():
    pattern = tree(np.arange(-1, 10**7 - 1))
    assert pattern.text == "tree(parents='', size=10000000, pattern=causal())"
    assert pattern.verdict((9_000_000, 9_000_064), (0, 64), 10**7) == Verdict.FULL


# ---------------------------------------------------------------------------------------------------------------------
# What is known of it.


def test_causal_and_prefix_stable():
    pattern = tree([-1, 0, 0], pattern=patterns.window(2, 2))
    assert pattern.is_causal and not pattern.depends_on_length
    patterns.require_causal(pattern)


@pytest.mark.parametrize("parents", [[-1], [-1, 0, 0, 1], [-1, -1, 0, 1], list(range(-1, 11))])
def test_a_certificate_says_that_the_future_is_not_reached(parents):
    certificate = certify(tree(parents), len(parents))
    alone = len(parents) == 1
    assert certificate.yun is alone
    union = certify(tree(parents) | patterns.global_tokens(0) | patterns.window(1, 1), len(parents))
    assert union.star and union.yun


# ---------------------------------------------------------------------------------------------------------------------
# Refusals.


@pytest.mark.parametrize(
    ("parents", "code", "words"),
    [
        ([-1, 1], "tree-parent", ("token 1", "parent 1")),
        ([-1, 2, 0], "tree-parent", ("token 1", "parent 2")),
        ([0, 0], "tree-parent", ("token 0", "parent 0")),
        ([-1, -2], "tree-parent", ("token 1", "-2")),
        ([-1.0, 0.0], "tree-form", ("float64",)),
        ([True, False], "tree-form", ("bool",)),
        ([], "tree-form", ("[0]",)),
        ([[-1, 0]], "tree-form", ("[1, 2]",)),
        ([[-1], [0, 1]], "tree-form", ()),
        (None, "tree-form", ("object",)),
        (3, "tree-form", ("[]",)),
        ([-1, 10**30], "tree-form", ("object",)),
        (np.full(2**22 + 2, -1), "tree-branches", ("4,194,306", "4,194,304")),
    ],
)
def test_bad_parents(parents, code, words):
    with refusing(PatternError, code, *words) as refusal:
        tree(parents)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "size", "code"),
    [
        ("2:0", None, "tree-size"),
        ("2", 4, "tree-text"),
        ("2:0:1", 4, "tree-text"),
        ("a:b", 4, "tree-text"),
        ("4:0", 4, "tree-text"),
        ("3:0;2:0", 4, "tree-text"),
        ("0:-1", 4, "tree-text"),
        ("2:2", 4, "tree-parent"),
        ("2:-2", 4, "tree-parent"),
        ("2:" + "9" * 5000, 4, "tree-text"),
        ("2:" + "9" * 100, 4, "tree-parent"),
        ("", 2**40, "tree-tokens"),
        ("", 0, "below-minimum"),
    ],
)
def test_bad_texts(text, size, code):
    with refusing(PatternError, code) as refusal:
        tree(text, size)
    assert len(str(refusal.value)) < 300


def test_other_refusals():
    with refusing(PatternError, "tree-size", "3", "2"):
        tree([-1, 0], 3)
    with refusing(PatternError, "tree-length", "3", "2"):
        tree([-1, 0]).dense(3)
    with refusing(PatternError, "tree-path-pattern", "bigbird"):
        tree([-1, 0], pattern=patterns.bigbird(block=4))
    with refusing(PatternError, "tree-path-pattern", "cross"):
        tree([-1, 0], pattern=patterns.across(patterns.window(3), 2))
    with refusing(PatternError, "not-a-pattern"):
        tree([-1, 0], pattern="window(3)")
    for bounds in ([0, 1], [1, 2], [0, 2, 1, 2], []):
        with refusing(PatternError, "tree-borders"):
            parents_in_row([-1, 0], bounds)
    with refusing(PatternError, "tree-parent", "token 2"):
        parents_in_row([-1, 0, 0], [0, 2, 3])
