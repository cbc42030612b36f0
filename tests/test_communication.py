"""The communication plan by its law: every allowed pair is computed by one rank in one share, from rows it has."""

import numpy as np
import pytest
from hypothesis import strategies as st
from strategies import build, hold, questions, tiers

from asterism import patterns
from asterism.compiler.devices import Communication, Rows, RowShape, Shards, communicate, needed_keys

SHAPE = RowShape(heads=4, key_heads=2, key_dim=8, value_dim=8, itemsize=4)


def members(intervals: np.ndarray) -> set[int]:
    return {position for start, stop in intervals.tolist() for position in range(start, stop)}


def available(plan: Communication, share: Rows, rank: int) -> np.ndarray:
    """Whether each key is with the rank once rows have travelled."""
    has = np.zeros(plan.keys.length, bool)
    has[slice(*plan.keys.range(rank))] = True
    for source in range(plan.keys.ranks):
        has[share.direct.positions(source, rank)] = True
    has[list(members(share.shared))] = True
    return has


def computed(plan: Communication) -> np.ndarray:
    """How often each pair [heads, queries, keys] is computed, by all ranks and shares together."""
    counts = np.zeros((plan.pattern.heads, plan.queries.length, plan.keys.length), np.int64)
    for share in plan.shares:
        allowed = share.pattern.dense(*counts.shape[1:], query_offset=plan.query_offset)
        asking = np.zeros(plan.queries.length, bool)
        asking[list(members(share.asking))] = True
        for rank in range(plan.keys.ranks):
            own_queries, own = np.zeros(plan.queries.length, bool), np.zeros(plan.keys.length, bool)
            own_queries[slice(*plan.queries.range(rank))] = True
            own[slice(*plan.keys.range(rank))] = True
            pairs = (own_queries & ~asking)[:, None] & available(plan, share, rank) | asking[:, None] & own
            counts += allowed & pairs
    return counts


def check(plan: Communication) -> None:
    allowed = plan.pattern.dense(plan.queries.length, plan.keys.length, query_offset=plan.query_offset)
    np.testing.assert_array_equal(computed(plan), allowed)


@st.composite
def shards(draw, length: int, ranks: int) -> Shards:
    """Even shards, or uneven ones, of which some may be empty."""
    if draw(st.booleans()):
        return Shards.even(length, ranks)
    cuts = sorted(draw(st.lists(st.integers(0, length), min_size=ranks - 1, max_size=ranks - 1)))
    return Shards((0, *cuts, length))


@st.composite
def exchanges(draw):
    rule, length = draw(questions())
    ranks = draw(st.integers(1, 5))
    pattern = build(rule)
    queries = draw(shards(length, ranks))
    keys = draw(shards(length, ranks)) if pattern.crosses else queries
    return pattern, queries, keys


@pytest.mark.parametrize("count", tiers(60, 5000))
def test_every_pair_is_computed_once(count):
    hold(lambda case: check(communicate(*case, SHAPE)), exchanges(), count)


def test_keys_that_are_needed():
    window = patterns.parse("window(left=3)")
    assert needed_keys(window, (10, 12), 100).tolist() == [[7, 12]]
    assert needed_keys(patterns.parse("fixed(stride=4, summary=1)"), (10, 12), 100).tolist() == [[3, 4], [7, 12]]
    assert needed_keys(window, (5, 5), 100).tolist() == []
