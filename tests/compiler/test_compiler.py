"""Plans: the inverse of every plan is its pattern, the arrays are well formed, and compiling is cheap.

`decode` reads a plan a second time, from the documented fields alone; `Plan.to_dense` is compared with it and with the
pattern. So a mistake that `to_dense` shares with the compiler is still seen.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import strategies
from hypothesis import strategies as st
from known_patterns import ALL, named
from oracle import rule, shifted
from plans import PEAK, assert_plan_is, decode, needs_proc
from strategies import LENGTHS, TILES, build, hold, tiers

from asterism import compile_pattern, patterns
from asterism.compiler import terms
from asterism.errors import PatternError
from asterism.memo import Store, remembering
from asterism.patterns.by_text import by_text, remember

COMPILED_LENGTHS = (1, 2, 7, 63, 64, 65, 100, 257, 1000)
COMPILED_TILES = (16, 32, 64, 128)
DRAWN_AT_RANDOM = [
    rule("random_blocks", block=8, count=3, heads=3),
    rule("random_blocks", block=5, count=2, earlier=True, window_blocks=3, avoid=(0,)),
    rule("bigbird", block=16),
    rule("bigbird", block=10, window_blocks=5, random=2, globals=(0, 3, -1), heads=2),
    rule("bigbird_etc", block=9, random=2, globals=11),
    rule("bigbird_causal", block=16, heads=2),
    rule("yun_random", count=5),
]
EVERY = ALL + DRAWN_AT_RANDOM


def lengths_for(drawn) -> list[int]:
    limit = 257 if {"explicit", "tree"} & set(drawn.names) else max(COMPILED_LENGTHS)
    return [length for length in COMPILED_LENGTHS if length <= limit]


@pytest.mark.parametrize("drawn", EVERY, ids=named)
def test_plan_is_the_pattern(drawn):
    """Every length; the tiles take turns. The slow tier has the whole grid."""
    pattern = build(drawn)
    for number, length in enumerate(lengths_for(drawn)):
        assert_plan_is(pattern, length, tile=COMPILED_TILES[number % len(COMPILED_TILES)])


@pytest.mark.slow
@pytest.mark.parametrize("tile", COMPILED_TILES)
@pytest.mark.parametrize("drawn", EVERY, ids=named)
def test_plan_is_the_pattern_for_every_tile(drawn, tile):
    for length in lengths_for(drawn):
        assert_plan_is(build(drawn), length, tile=tile)


@pytest.mark.parametrize("drawn", EVERY, ids=named)
def test_the_compiler_may_choose_the_tile(drawn):
    for length in (1, 65, 257):
        assert_plan_is(build(drawn), length)


@pytest.mark.parametrize("drawn", EVERY, ids=named)
def test_fewer_queries_than_keys(drawn):
    for n_queries, n_keys, offset in ((1, 200, None), (1, 100, 40), (70, 200, None), (70, 200, 13), (33, 100, 0)):
        assert_plan_is(build(drawn), n_queries, n_keys, query_offset=offset, tile=32)


@pytest.mark.parametrize("tile", COMPILED_TILES)
def test_nothing_to_do(tile):
    for pattern in (patterns.causal(), patterns.bigbird(), ~patterns.dense()):
        assert compile_pattern(pattern, 0, tile=tile).to_dense().shape == (1, 0, 0)
        assert compile_pattern(pattern, 0, 70, tile=tile).to_dense().shape == (1, 0, 70)
    plan = assert_plan_is(~patterns.dense(), 100, tile=tile)
    assert (plan.tiles, plan.pairs) == (0, 0)
    json.dumps(plan.summary())
    assert plan.describe()


@pytest.mark.parametrize("tile", COMPILED_TILES)
def test_a_rule_beside_itself_shifted(tile):
    """A layout that gathers the keys of `columns` takes it as true, but not where it is shifted to other keys."""
    for leaf in (rule("columns", period=2), rule("global_queries", positions=(0, 1, 2, 9)), rule("stride", period=2)):
        for other in (shifted(leaf, 1), ~shifted(leaf, 1), ~shifted(leaf, 3)):
            assert_plan_is(build(leaf & other), 130, tile=tile)


@st.composite
def _plans(draw):
    """A rule, a length, fewer queries now and then, and a tile."""
    n_keys = draw(st.sampled_from((*LENGTHS, 130)))
    drawn = draw(strategies.rules(130, heads=3))
    start, stop = draw(st.one_of(st.just((0, n_keys)), strategies.ranges(n_keys)))
    return drawn, stop - start, n_keys, start, draw(st.sampled_from(TILES))


@pytest.mark.parametrize("count", tiers(50, 2000))
def test_plans_of_compositions(count):
    def law(case):
        drawn, n_queries, n_keys, offset, tile = case
        assert_plan_is(build(drawn), n_queries, n_keys, query_offset=offset, tile=tile)

    hold(law, _plans(), count)


def test_the_decoder_sees_a_wrong_plan():
    """A plan of another pattern, and one with an entry moved, must not pass."""
    plan = compile_pattern("window(left=20)", 100, tile=16)
    assert not np.array_equal(decode(plan), patterns.window(left=21).dense(100))
    part, *others = plan.passes
    forged = replace(plan, passes=(replace(part, kinds=np.zeros_like(part.kinds)), *others))
    assert not np.array_equal(decode(forged), decode(plan))


# ---------------------------------------------------------------------------------------------------------------------
# Layouts.


@pytest.mark.parametrize("text", ("fixed(stride=128, summary=8)", "strided(stride=128)"))
def test_published_patterns_are_packed_well(text):
    plan = compile_pattern(text, 16_384)
    assert plan.packing <= 2
    described = plan.describe()
    assert any(f"{plan.packing:.{digits}f}" in described for digits in (1, 2, 3))


def test_pairs_of_long_sequences_are_counted_exactly():
    n, stride = 16_384, 128
    window = sum(min(q, stride) + 1 for q in range(n))
    beyond = sum(q // stride - (q >= stride) for q in range(n))
    assert compile_pattern(patterns.strided(stride), n).pairs == window + beyond


def test_a_band_needs_no_new_order():
    plan = compile_pattern(patterns.window(left=127), 4096, tile=64)
    assert len(plan.passes) == 1
    assert plan.passes[0].query_index is None and plan.passes[0].key_index is None
    assert plan.tiles <= 64 * 3
    assert len(plan.masks) <= 4, "masks are shared between tiles"


def test_scattered_edges_are_gathered():
    """A path with shuffled names is a band after reordering."""
    pytest.importorskip("scipy")
    n = 1024
    order = np.random.Generator(np.random.Philox(3)).permutation(n)
    edges = np.stack([order[:-1], order[1:]], axis=1)
    pattern = patterns.explicit(np.concatenate([edges, edges[:, ::-1]]), size=n)
    plan = assert_plan_is(pattern, n, tile=32)
    assert plan.tiles <= 5 * (n // 32)


def test_one_pass_serves_equal_heads():
    """A pattern that is the same for all heads is compiled once."""
    same = patterns.per_head([patterns.window(left=9)] * 3)
    assert_plan_is(same, 100, tile=16)
    assert compile_pattern(patterns.window(left=9), 100, tile=16).heads == 1


# ---------------------------------------------------------------------------------------------------------------------
# The plan as a value and as a report.


def test_cached_by_value():
    first = compile_pattern(patterns.fixed(8, summary=2), 300)
    assert compile_pattern(patterns.fixed(stride=8, summary=2), 300) is first
    assert compile_pattern("fixed(stride=8, summary=2)", 300) is first
    assert compile_pattern(patterns.fixed(8, summary=2), 300, 300, query_offset=0) == first
    assert compile_pattern(patterns.fixed(8, summary=2), 301) is not first
    assert compile_pattern(patterns.fixed(8, summary=3), 300) is not first


def test_threads_that_meet_at_a_new_pattern_share_one_plan():
    """`lru_cache` gives each thread a plan of its own, and all but one of them die while they are computed with."""
    for period in range(200, 212):
        together = threading.Barrier(4)

        def compiled(text=f"strided({period})", together=together):
            together.wait()
            return compile_pattern(text, 3000)

        with ThreadPoolExecutor(4) as threads:
            plans = [thread.result() for thread in [threads.submit(compiled) for _ in range(4)]]
        assert all(plan is plans[0] for plan in plans)


@pytest.mark.parametrize("unions", [5, 63, 64, 65])
def test_a_conjunction_of_many_unions_is_not_multiplied_out(monkeypatch, unions):
    """Of 63 unions of two the number of terms, 2**63, has no int64, and of 64 it is 0 there."""
    monkeypatch.setattr(terms, "product", None)
    pattern = patterns.parse(" & ".join(f"(window({i + 2}, {i}) | columns({i + 3}))" for i in range(unions)))
    np.testing.assert_array_equal(compile_pattern(pattern, 90).to_dense(), pattern.dense(90))


class TestMemo:
    def test_it_forgets_the_oldest(self):
        asked = []
        # Of a budget of nothing the latest four stay.
        double = remembering(lambda x: asked.append(x) or 2 * x, Store(0))
        assert [double(x) for x in (1, 2, 3, 4, 1, 5, 1, 2)] == [2, 4, 6, 8, 2, 10, 2, 4]
        assert asked == [1, 2, 3, 4, 5, 2]

    def test_what_is_kept_stays_within_the_budget(self):
        store = Store(10_000)
        zeros = remembering(lambda x: np.zeros(x, np.int8), store)
        for size in range(300, 2000, 100):
            zeros(size)
            largest = sorted(weight for _, weight in store.results.values())[-4:]
            assert store.weight == sum(weight for _, weight in store.results.values())
            assert store.weight <= max(store.budget, sum(largest))
        assert 4 < len(store.results) < 17 and zeros(1900) is zeros(1900)
        store.clear()
        assert not store.results and not store.weight

    def test_a_failure_is_not_kept_and_wakes_those_who_wait(self):
        calls = []
        together = threading.Barrier(2)

        @remembering
        def fails_once(x):
            calls.append(x)
            if len(calls) == 1:
                time.sleep(0.2)
                raise PatternError("first", "the first time")
            return x

        def ask():
            together.wait()
            try:
                return fails_once(7)
            except PatternError:
                return None

        with ThreadPoolExecutor(2) as threads:
            results = [thread.result() for thread in [threads.submit(ask) for _ in range(2)]]
        assert sorted(results, key=str) == [7, None] and calls == [7, 7]

    @pytest.mark.parametrize("compute", (list, lambda: [][0]))
    def test_an_interrupt_leaves_nobody_waiting(self, compute):
        """Python answers signals wherever its own code runs, as that which hashes keys: before, amid and after the
        computation."""

        class Key:
            hashed, interrupted = 0, 0

            def __hash__(self):
                self.hashed += 1
                if self.hashed == self.interrupted:
                    raise KeyboardInterrupt
                return 7

        for Key.interrupted in range(1, 20):
            store, key = Store(), Key()
            with contextlib.suppress(KeyboardInterrupt, IndexError):
                store.get(key, compute)
            store.clear()
            key.hashed = 100  # from here on nobody interrupts
            asker = threading.Thread(target=store.get, args=(key, list), daemon=True)
            asker.start()
            asker.join(20)
            assert not asker.is_alive(), Key.interrupted

    def test_a_computation_that_asks_for_itself_does_not_wait(self):
        """Nor does the handler of a signal that comes amid it."""
        store = Store()
        assert store.get("key", lambda: store.get("key", list) + [1]) == [1]
        assert store.get("key", list) == [1] and not store.running

    def test_what_is_forgotten_dies_when_the_store_is_free(self):
        """Else who asks the store as it dies would wait for itself."""

        class AsksOnceMore:
            def __del__(self):
                free.append(not store.lock.locked())

        store, free = Store(0), []
        for key in range(6):
            store.get(key, AsksOnceMore)
        assert free == [True] * 2
        store.clear()
        assert free == [True] * 6

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_child_does_not_wait_for_its_parents_threads(self):
        """Forked while another thread computes, which the child does not have."""
        code = """
import os, sys, threading
from asterism.memo import Store, remembering
begun, go_on = threading.Event(), threading.Event()
@remembering
def slow(x):
    if os.getpid() == parent:
        begun.set()
        go_on.wait()
    return x
parent = os.getpid()
thread = threading.Thread(target=slow, args=(5,))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    os._exit(slow(5))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
"""
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "5\n", done.stderr

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_child_does_not_wait_for_a_property_that_a_thread_computes(self):
        """The lock of functools.cached_property in Python 3.11 is one for all plans."""
        code = """
import os, signal, threading
from asterism import compile_pattern
from asterism.compiler.plan import Plan
one, other = (compile_pattern(text, 64) for text in ("causal()", "window(3)"))
begun, go_on, count, parent = threading.Event(), threading.Event(), Plan._pairs, os.getpid()
def slow(plan, part):
    if os.getpid() == parent and plan is one:
        begun.set()
        go_on.wait()
    return count(plan, part)
Plan._pairs = slow
one.__dict__.pop("pairs", None), other.__dict__.pop("pairs", None)
threading.Thread(target=lambda: one.pairs).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(5)
    os._exit(other.pairs == other.to_dense().sum())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
"""
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "1\n", done.stderr


def test_a_pattern_is_not_parsed_again_while_it_lives(monkeypatch):
    """The text of an explicit pattern may be megabytes. Operators, whose schemas hold strings, find the pattern."""
    pattern = patterns.explicit(np.tri(40, dtype=bool))
    text = remember(pattern)
    assert by_text(text) is pattern
    other = patterns.explicit(np.eye(41, dtype=bool)).text
    assert by_text(other).text == other
    monkeypatch.setattr("asterism.patterns.by_text.parse", None)
    assert by_text(text) is pattern
    del pattern
    with pytest.raises(TypeError):
        by_text(text)


def test_full_tiles_at_a_partial_end_have_kinds_of_their_own():
    """20 keys in tiles of 16: four are left, and every kernel that reads whole tiles must cut there."""
    plan = compile_pattern("dense()", 20, tile=16)
    (part,) = plan.passes
    assert part.kinds.tolist() == [0, 0, 0, 0] and not len(plan.masks)
    kinds = plan.kinds_with_ends(part)
    assert kinds.tolist() == [0, 1, 0, 1] and kinds.dtype == np.int32
    full, cut = plan.tile_masks(np.arange(2, dtype=np.int32))
    assert full.all() and cut[:, :4].all() and not cut[:, 4:].any()
    whole = compile_pattern("causal()", 32, tile=16)
    np.testing.assert_array_equal(whole.kinds_with_ends(whole.passes[0]), whole.passes[0].kinds)
    assert len(whole.masks_with_ends) == 1 + len(whole.masks)


def test_a_plan_cannot_be_changed():
    plan = compile_pattern(patterns.window(left=20), 300, tile=64)
    with pytest.raises(AttributeError):
        plan.tile = 3
    with pytest.raises(AttributeError):
        plan.passes[0].layout = "other"
    for array in (plan.masks, plan.passes[0].columns, plan.passes[0].row_offsets):
        with pytest.raises(ValueError):
            array[...] = 0


@pytest.mark.parametrize("text", ("strided(stride=128)", "fixed(stride=128, summary=8, heads=4)", "bigbird(block=64)"))
def test_describe_fits_one_screen_and_says_it_all(text):
    plan = compile_pattern(text, 4096)
    described = plan.describe()
    assert len(described.splitlines()) <= 40
    assert max(map(len, described.splitlines())) <= 120
    for word in ("pass", "tile", "densit", "flop", "4096"):
        assert word in described.lower().replace(",", "").replace("_", "")
    summary = plan.summary()
    assert json.loads(json.dumps(summary)) == summary


def test_flops_and_bytes_grow_with_the_tiles():
    short, long = (compile_pattern(patterns.window(left=127), n, tile=64) for n in (4096, 8192))
    assert 0 < short.flops(64) < long.flops(64) < 2.2 * short.flops(64)
    assert short.flops(128) > 1.9 * short.flops(64)
    assert short.flops(64, backward=True) > short.flops(64)
    assert 0 < short.bytes < long.bytes < 2.2 * short.bytes
    pairs_in_tiles = short.tiles * 64 * 64
    assert 4 * 64 * short.pairs <= short.flops(64) <= 1.5 * 4 * 64 * pairs_in_tiles


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((patterns.causal(), 5, 4), {}),
        ((patterns.causal(), -1), {}),
        ((patterns.causal(), 3, -4), {}),
        ((patterns.causal(), 5, 10), {"query_offset": 6}),
        ((patterns.causal(), 5, 10), {"query_offset": -1}),
        ((patterns.causal(), 64), {"tile": 0}),
        ((patterns.causal(), 64), {"tile": -16}),
        (("causl()", 64), {}),
        ((patterns.explicit("0:0", size=4), 64), {}),
    ],
    ids=str,
)
def test_refusals(arguments, keywords):
    with pytest.raises(PatternError) as refused:
        compile_pattern(*arguments, **keywords)
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# Cost.

MEASURE = f"""{PEAK}
import sys, time
from asterism import compile_pattern
started = time.process_time()
plan = compile_pattern(sys.argv[1], int(sys.argv[2]))
seconds = time.process_time() - started
print(seconds, peak(), plan.tiles, "torch" in sys.modules)
"""


def measured(text: str, length: int) -> tuple[float, float]:
    """Processor seconds and peak MiB of compiling in a fresh process."""
    command = [sys.executable, "-W", "error", "-c", MEASURE, text, str(length)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    seconds, peak, tiles, torch_loaded = output.split()
    assert int(tiles) > 0 and torch_loaded == "False"
    return float(seconds), float(peak)


@needs_proc
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("bigbird(block=64)", 3), ("strided(stride=1024)", 10), ("fixed(stride=1024, summary=16)", 10)],
)
def test_a_million_tokens(text, seconds):
    """The best of three runs, because other work on the machine is not the compiler's fault."""
    taken = [measured(text, 1_048_576)]
    while min(taken)[0] >= seconds and len(taken) < 3:
        taken.append(measured(text, 1_048_576))
    assert min(taken)[0] < seconds
    assert max(peak for _, peak in taken) < 1024


@pytest.mark.parametrize("text", ("bigbird(block=64)", "window(left=127) | global_tokens(0)", "sinks(4, 128)"))
def test_no_square_array(text):
    """A square of 32,768 tokens would be 1 GiB of booleans."""
    pattern = patterns.parse(text)
    tracemalloc.start()
    try:
        compile_pattern(pattern, 32_768, tile=64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20
