"""Random blocks: what a draw must obey."""

import time

import numpy as np
import oracle
import pytest
from known_patterns import named
from oracle import rule

from asterism import patterns

RANDOM_BLOCKS = [
    dict(block=1, count=1),
    dict(block=8, count=3),
    dict(block=8, count=2, window_blocks=3, avoid=(0, -1)),
    dict(block=10, count=4, earlier=True),
    dict(block=5, count=2, earlier=True, window_blocks=5, avoid=(0, 1)),
    dict(block=64, count=3, window_blocks=1, heads=4, seed=7),
]


@pytest.mark.parametrize("arguments", RANDOM_BLOCKS, ids=named)
@pytest.mark.parametrize("length", (1, 7, 64, 100))
def test_random_blocks_obey_their_arguments(arguments, length):
    pattern = patterns.random_blocks(**arguments)
    assert pattern.heads == arguments.get("heads", 1)
    constraint = {"earlier": False, "window_blocks": 0, "avoid": ()} | arguments
    for chosen in oracle.block_picture(pattern.dense(length), arguments["block"]):
        for row, cells in enumerate(chosen):
            told = (constraint[name] for name in ("earlier", "window_blocks", "avoid"))
            candidates, count = oracle.random_choices(row, arguments["count"], len(chosen), *told)
            assert set(np.flatnonzero(cells)) <= candidates
            assert cells.sum() == count


@pytest.mark.parametrize("drawn", (rule("bigbird"), rule("bigbird_causal"), rule("bigbird_etc")), ids=named)
@pytest.mark.parametrize("window", (1, 3, 5))
def test_bigbird_adds_exactly_its_random_blocks(drawn, window):
    block, blocks, random, seed = 4, 40, 3, 2
    first = 8 if drawn.name == "bigbird_etc" else 0
    arguments = {"block": block, "window_blocks": window, "seed": seed, "heads": 2}
    if first:
        arguments["globals"] = first
    length = first + block * blocks
    certain = oracle.picture(rule(drawn.name, **arguments), length)
    full = getattr(patterns, drawn.name)(random=random, **arguments).dense(length)
    assert full.shape[0] == 2
    assert (full >= certain).all()
    extra = oracle.block_picture((full & ~certain)[:, first:, first:], block)
    counts = extra.sum(-1)
    if drawn.name == "bigbird_causal":
        far = window // 2 + 1 + random + 1
        assert (counts[:, far:] == random).all()
        assert (counts <= random).all()
        assert not np.triu(extra).any()
    else:
        ends = 0 if first else 1
        assert (counts[:, ends : blocks - ends] == random).all()


def test_the_default_bigbird_has_the_published_degree():
    """3 window + 2 global + 3 random blocks of 64 in a middle row."""
    degrees = patterns.bigbird().dense(64 * 16)[0].sum(-1)
    assert degrees[64 * 8] == 8 * 64


def test_random_blocks_differ_by_head_and_seed_and_only_by_them():
    def draw(**arguments):
        return patterns.random_blocks(block=2, count=2, **arguments).dense(100)

    one, two, three = draw(heads=3)
    assert not np.array_equal(one, two)
    assert not np.array_equal(two, three)
    assert not np.array_equal(draw(seed=0), draw(seed=1))
    np.testing.assert_array_equal(draw(seed=5, heads=2), draw(seed=5, heads=2))
    np.testing.assert_array_equal(draw(heads=2)[0], draw(heads=3)[0])


@pytest.mark.parametrize("text", ("random_blocks(4, 2, heads=2)", "bigbird(block=4)", "yun_random(3)"))
def test_the_global_generator_is_neither_read_nor_moved(text):
    pictures = []
    for seed in (0, 1):
        np.random.seed(seed)
        before = np.random.get_state()[1].copy()
        pictures.append(patterns.parse(text).dense(90))
        np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.testing.assert_array_equal(*pictures)


def test_rows_of_a_draw_are_not_all_alike():
    for picture in (patterns.random_blocks(1, 3).dense(50)[0], patterns.yun_random(3).dense(50)[0]):
        assert len(np.unique(picture, axis=0)) > 40


@pytest.mark.parametrize("count", (1, 3, 9))
def test_yun_random_reads_itself_and_count_others(count):
    for length in (1, 2, 7, 63, 64, 65, 100, 257):
        (picture,) = patterns.yun_random(count, seed=1).dense(length)
        assert picture.diagonal().all()
        degrees = picture.sum(-1)
        assert (degrees >= min(count, length)).all()
        assert (degrees <= count + 1).all()
    assert not np.array_equal(picture, patterns.yun_random(count, seed=2).dense(length)[0])


def test_more_random_blocks_than_there_are_take_all_at_once():
    """4,096 blocks of a sequence that has two: what is left of the draw costs nothing (it took 38 seconds)."""
    started = time.process_time()
    assert patterns.random_blocks(block=50, count=4096).dense(100).all()
    assert time.process_time() - started < 5
