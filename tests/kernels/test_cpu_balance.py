"""How the CPU kernel shares out its work: counted from plans, for more threads than this machine has."""

import heapq
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from kernel_cases import Case, assert_equal_bits, attending, check, differentiated, has_compiler, inputs_of
from oracle import rule
from strategies import build

from asterism import compile_pattern
from asterism.kernels.cpu.schedule import FIELDS, schedule
from asterism.kernels.operands import Operands

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")

PATTERNS = ("bigbird(block=64)", "window(left=511)", "strided(128)", "fixed(128, summary=8)")
ROW, FLOAT = 1.5, 3e-5
"""What a row of tiles costs besides its tiles, and a number that is moved, in tiles of 64 by 64 and 64 features.

Measured on one core (AMD EPYC, AVX-512), with blocks() of growing size: a tile takes 4 to 15 microseconds, by dtype and
direction, and a row 1.2 to 1.7 tiles."""

each_dtype = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
each_direction = pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))


def tasks_of(text, threads, backward, dtype=torch.float32, heads=8, kv_heads=8, n=16384):
    q, k = (torch.empty(1, count, n, 64, dtype=dtype) for count in (heads, kv_heads))
    return schedule(Operands(q, k, k, None, None, None, text, 0, 1.0), threads, backward)


def waiting(tasks, threads, row=ROW) -> float:
    """The share of the time that a thread waits at most, if threads take tasks in order as they become free.

    At most: as if the same thread were the first to be idle in every phase.
    """
    phase, tiles, rows, floats = (tasks[:, FIELDS.index(name)] for name in ("phase", "tiles", "rows", "floats"))
    cost = tiles + row * rows + FLOAT * floats
    ends = waited = 0.0
    for number in np.unique(phase):
        free = [0.0] * threads
        for task in cost[phase == number]:
            heapq.heapreplace(free, free[0] + task)
        ends += max(free)
        waited += max(free) - min(free)
    return waited / ends


def test_waiting_is_seen():
    """One long task among short ones, and a phase of a single task."""
    long = np.array([[0, 100, 0, 0, 0], *([0, 1, 0, 0, 0] for _ in range(100))])
    assert waiting(long, 2) == 0
    assert waiting(long, 4) == pytest.approx(0.67)
    alone = np.array([[0, 8, 0, 0, 0], [1, 8, 0, 0, 0]])
    assert waiting(alone, 4) == 1


@each_dtype
@each_direction
@pytest.mark.parametrize("text", PATTERNS)
def test_no_thread_waits_for_a_tenth_of_the_time(text, backward, dtype):
    for threads in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        tasks = tasks_of(text, threads, backward, dtype)
        for row in (1, ROW, 2):
            assert waiting(tasks, threads, row) < 0.1, (threads, row)


@each_direction
@pytest.mark.parametrize(
    ("heads", "kv_heads", "limit"), ((1, 1, 0.15), (8, 1, 0.1), (8, 2, 0.1), (3, 3, 0.1), (12, 12, 0.1))
)
def test_few_heads_and_grouped_queries(heads, kv_heads, limit, backward):
    for text in PATTERNS:
        for threads in (2, 4, 8, 16):
            tasks = tasks_of(text, threads, backward, heads=heads, kv_heads=kv_heads)
            assert waiting(tasks, threads) < limit, (text, threads)


@each_dtype
@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize("threads", (1, 3, 64))
def test_every_tile_is_computed_once(threads, text, dtype):
    plan = compile_pattern(text, 16384)
    for backward in (False, True):
        tasks = tasks_of(text, threads, backward, dtype)
        assert tasks[:, FIELDS.index("tiles")].sum() == 8 * plan.tiles


@pytest.mark.parametrize("text", PATTERNS[1:])
def test_local_patterns_need_few_sums_of_their_own(text):
    """Sums of keys and values beside those of the heads: 64 threads on 8 heads have no copies of them each."""
    floats = [tasks_of(text, threads, True)[:, FIELDS.index("floats")].sum() for threads in (1, 64)]
    of_all_keys = 8 * 16384 * 128
    assert floats[1] - floats[0] < of_all_keys


def test_grouped_queries_need_no_more_sums_than_single_ones():
    for threads in (2, 16):
        one = tasks_of("window(left=511)", threads, True, heads=1, kv_heads=1)
        group = tasks_of("window(left=511)", threads, True, heads=8, kv_heads=1)
        phases, floats = FIELDS.index("phase"), FIELDS.index("floats")
        assert len(np.unique(one[:, phases])) == len(np.unique(group[:, phases]))
        # Only what there is of queries, their deltas, grows with the heads.
        assert group[:, floats].sum() - one[:, floats].sum() <= 7 * 16384 * 64 + 2**19


# --- the same numbers, however the work is shared out -----------------------------------------------------------------


@contextmanager
def threads_set_to(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


LONG = rule("global_tokens", positions=(0, 700)) | rule("window", left=40, right=40)
SHARED_OUT = (LONG, rule("strided", stride=50), rule("bigbird", block=16, random=2, seed=1), rule("causal"))


def shared_out(drawn, dtype) -> Case:
    sizes = {"n_queries": 1001, "n_keys": 1001, "width": 24, "value_width": 40, "batch": 1}
    return Case(drawn, heads=4, kv_heads=1, dtype=dtype, **sizes)


@each_dtype
@pytest.mark.parametrize("drawn", SHARED_OUT, ids=str)
@pytest.mark.usefixtures("poison", "native_poison")
def test_shared_out_among_many_threads(drawn, dtype):
    """One key head of four query heads in parts, with tiles that several parts read, and rows that are cut."""
    inputs = inputs_of(case := shared_out(drawn, dtype))
    with threads_set_to(7):
        check(case, "cpu")
        first = differentiated(attending(case, inputs, "cpu"), inputs)
        for _ in range(3):
            assert_equal_bits(differentiated(attending(case, inputs, "cpu"), inputs), first)


@each_dtype
def test_the_number_of_threads_changes_no_bit_of_the_output(dtype):
    for drawn in SHARED_OUT:
        inputs = inputs_of(case := shared_out(drawn, dtype))
        found = []
        for count in (1, 2, 7):
            with threads_set_to(count):
                found.append(attending(case, inputs, "cpu")(*inputs.tensors))
        for out, lse in found[1:]:
            assert torch.equal(out, found[0][0]) and torch.equal(lse, found[0][1]), drawn


def test_parts_share_tiles_and_cut_rows_here():
    """What the tests above are about does happen in them."""
    q, k = torch.empty(1, 4, 1001, 24), torch.empty(1, 1, 1001, 24)
    tasks = schedule(Operands(q, k, k, None, None, None, build(LONG).text, 0, 1.0), 7, True)
    tiles, rows, floats = (tasks[:, FIELDS.index(name)] for name in ("tiles", "rows", "floats"))
    parts = tiles > 0
    assert parts.sum() >= 7
    assert (floats[parts] > 0).any(), "no tile is read by several parts"
    plan = compile_pattern(build(LONG), 1001)
    n_rows = sum(int((np.diff(part.row_offsets) > 0).sum()) for part in plan.passes)
    assert rows[parts].sum() > 4 * n_rows, "no row is cut"
