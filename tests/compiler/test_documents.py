"""Sequences of documents: their plans are joined from those of the documents, and are the pattern all the same."""

import numpy as np
import oracle
import pytest
import strategies
import torch
from hypothesis import strategies as st
from plans import assert_plan_is
from strategies import build, hold, tiers

from asterism import attend, clear_caches, compile_pattern, patterns
from asterism.compiler import compile as compiling
from asterism.memo import KEPT

INNER = (
    "causal()",
    "bigbird(block=16, heads=2)",
    "strided(7)",
    "fixed(32, summary=3) | global_tokens(-1)",
    "per_head([star_transformer(), random_blocks(8, 2), ~dense()])",
)


def joined(pattern, length, tile):
    """The plan, after seeing that it is not compiled like any other."""
    plan = assert_plan_is(pattern, length, tile=tile)
    assert len(plan.passes) <= len(compile_pattern(pattern.pattern, 256).passes) + plan.heads
    return plan


@st.composite
def _sequences(draw):
    """A rule, lengths up to 130 and gaps, tokens behind the last document, and a tile."""
    drawn = draw(strategies.rules(130, heads=3, depth=3))
    sizes = st.one_of(st.integers(-70, 130), st.sampled_from((16, 32, 64, -16, -32, 128)))
    some = draw(st.lists(sizes, max_size=7))
    return drawn, some, draw(st.sampled_from((0, 0, 1, 64))), draw(st.sampled_from((16, 32, 64, 128, None)))


@pytest.mark.parametrize("count", tiers(30, 2000))
def test_plans_of_documents(count):
    def law(case):
        drawn, sizes, behind, tile = case
        pattern = patterns.documents(build(drawn), *sizes)
        assert_plan_is(pattern, sum(map(abs, sizes)) + behind, tile=tile)

    hold(law, _sequences(), count)


@pytest.mark.parametrize("tile", (16, 64))
@pytest.mark.parametrize("text", ("columns(period=2)", "global_queries((0, 2, 4, 6, 8, 10, 12, 14, 16))"))
def test_masks_end_where_the_tokens_do(text, tile):
    """One side of a tile is a tail among others, and the other one is the last, which need not fill its tile."""
    for last in (2 * tile + 1, 33, 35):
        pattern = patterns.documents(patterns.parse(text), 1, last)
        assert_plan_is(pattern, 1 + last, tile=tile)
        q, k, v = torch.randn(3, 1, 1, 1 + last, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found, expected = (attend(q, k, v, pattern, implementation=way) for way in ("eager", "reference"))
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("tile", (16, 64, 128))
@pytest.mark.parametrize("text", INNER)
def test_documents_of_all_kinds(text, tile):
    """None, one, tails that share tiles, that reach into two, and that have room for themselves."""
    for sizes in ((), (70,), (0, 0, 5), (1,) * 150, (20, 7, 64, 1, -5, 100, 60), (100, -28, 128, 30, -98, 17)):
        joined(patterns.documents(patterns.parse(text), *sizes), sum(map(abs, sizes)), tile)


def test_whole_tiles_stay_what_they_are():
    """A document's tiles are those of its own plan, whatever stands before it."""
    inner = patterns.bigbird(block=16, random=1)
    alone = compile_pattern(inner, 160, tile=16)
    both = joined(patterns.documents(inner, 37, 160), 197, 16)
    (part,) = both.passes
    tail = compile_pattern(inner, 37, tile=16).tiles
    assert np.count_nonzero(part.kinds == 0) >= alone.tiles
    assert both.tiles <= alone.tiles + tail


def test_documents_that_begin_with_tiles_need_no_order():
    """Rows of a padded batch laid end to end, in a grid of tiles."""
    plan = joined(patterns.documents(patterns.window(left=9, right=9), 100, -28, 128, 5, -123), 384, 64)
    (part,) = plan.passes
    assert part.query_index is None and part.key_index is None
    assert plan.tiles == sum(compile_pattern("window(left=9, right=9)", n, tile=64).tiles for n in (100, 128, 5))


def test_padding_fills_the_tiles_of_tails():
    """Rows of no whole number of tiles: only the longest, which has no padding, has its tail elsewhere."""
    plan = joined(patterns.documents(patterns.window(left=9, right=9), 100, -31, 131, 70, -61, 5, -126), 524, 64)
    (part,) = plan.passes
    assert plan.tiles == sum(compile_pattern("window(left=9, right=9)", n, tile=64).tiles for n in (100, 131, 70, 5))
    assert [list(part.query_index[t * 64 : t * 64 + 64 : 63]) for t in range(6)] == [
        [0, 63], [64, 127], [131, 194], [195, 258], [262, 325], [326, 389]
    ]  # fmt: skip


def test_a_pass_has_all_tokens_in_natural_order_or_another():
    """So that a kernel can write what it gives, and need not add to what is there."""
    plan = joined(patterns.documents(patterns.strided(7), 30, -5, 50), 90, 16)
    first = plan.passes[0]
    assert sorted(first.query_index) == sorted(first.key_index) == list(range(90))


def test_only_new_lengths_are_compiled(monkeypatch):
    inner = patterns.window(left=11, right=12)
    seen = []
    arrange = compiling._arrange
    monkeypatch.setattr(
        compiling,
        "_arrange",
        lambda pattern, lengths, shares: seen.append(lengths.n_keys) or arrange(pattern, lengths, shares),
    )
    compile_pattern(patterns.documents(inner, 33, 70, 33), 136, tile=16)
    compile_pattern(patterns.documents(inner, 70, 33), 103, tile=16)
    compile_pattern(patterns.documents(inner, 70, 34), 104, tile=16)
    assert seen == [33, 70, 34]


def test_lengths_that_keep_changing_fill_no_memory(monkeypatch):
    monkeypatch.setattr(KEPT, "_budget", 2**20)
    clear_caches()
    for length in range(1, 800):
        compile_pattern(patterns.documents(patterns.causal(), length, 3), length + 3, tile=16)
    assert KEPT.weight <= 2**20 and len(KEPT.results) > 4


def test_documents_in_documents():
    inner = patterns.documents(patterns.bigbird(block=4), 9, 20)
    assert_plan_is(patterns.documents(inner, 40, 29, 13), 82, tile=16)


def test_fewer_queries_and_shorter_sequences():
    """Where documents are cut, they are compiled like any other rule."""
    pattern = build(oracle.documents(oracle.rule("bigbird", block=4), 30, 0, 50, 20))
    for question in ((10, 100), (100, 100), (40, 70, 5), (0, 3), (64, 64)):
        n_queries, n_keys, *offset = question
        assert_plan_is(pattern, n_queries, n_keys, query_offset=offset[0] if offset else None, tile=16)
