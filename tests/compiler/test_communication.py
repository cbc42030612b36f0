"""The communication plan by its law: every allowed pair is computed by one rank in one way, from rows it has."""

import numpy as np
import pytest
from hypothesis import strategies as st
from refusals import refusing
from strategies import build, hold, questions, tiers

from asterism import patterns
from asterism.compiler.devices import (
    ByHeads,
    ByResidues,
    ByRows,
    Communication,
    Ring,
    RowShape,
    Shards,
    Way,
    communicate,
    needed_keys,
    without_pattern,
)
from asterism.compiler.devices.communicate import candidates
from asterism.errors import PatternError

SHAPE = RowShape(heads=4, key_heads=2, key_dim=8, value_dim=8, itemsize=4)


def members(intervals: np.ndarray) -> set[int]:
    return {position for start, stop in intervals.tolist() for position in range(start, stop)}


def available(plan: Communication, way: ByRows, rank: int) -> np.ndarray:
    """Whether each key is with the rank once rows have travelled."""
    has = np.zeros(plan.keys.length, bool)
    has[slice(*plan.keys.range(rank))] = True
    for source in range(plan.keys.devices):
        has[way.direct.positions(source, rank)] = True
    has[list(members(way.shared))] = True
    return has


def pairs_of(plan: Communication, way: Way, rank: int) -> np.ndarray:
    """Whether the rank brings each query and key of a way together, bool [queries, keys], by the way's docstring;
    for ByHeads, where it has some heads of all pairs, the pairs of rank 0."""
    n_queries, n_keys = plan.queries.length, plan.keys.length
    own_queries, own_keys = np.zeros(n_queries, bool), np.zeros(n_keys, bool)
    own_queries[slice(*plan.queries.range(rank))] = True
    own_keys[slice(*plan.keys.range(rank))] = True
    match way:
        case ByRows():
            asking = np.zeros(n_queries, bool)
            asking[list(members(way.asking))] = True
            return (own_queries & ~asking)[:, None] & available(plan, way, rank) | asking[:, None] & own_keys
        case ByResidues(period=period):
            assert plan.queries == plan.keys
            first, past = Shards.even(period, plan.devices).range(rank)
            residue = np.arange(n_keys) % period
            mine = (residue >= first) & (residue < past)
            return mine[:, None] & mine
        case ByHeads():
            assert SHAPE.heads % plan.devices == SHAPE.key_heads % plan.devices == 0
            return np.full((n_queries, n_keys), rank == 0)
        case Ring():
            return own_queries[:, None] & np.ones(n_keys, bool)


def check(plan: Communication) -> None:
    """Every allowed pair is computed by one rank in one way, and no other pair is."""
    allowed = plan.pattern.dense(plan.queries.length, plan.keys.length, query_offset=plan.query_offset)
    counts = np.zeros(allowed.shape, np.int64)
    for way in plan.ways:
        own = way.pattern.dense(*allowed.shape[1:], query_offset=plan.query_offset)
        for rank in range(plan.devices):
            counts += own & pairs_of(plan, way, rank)
    np.testing.assert_array_equal(counts, allowed)


def even_parts(intervals: np.ndarray, ranks: int) -> list[list[int]]:
    rows = sorted(members(intervals))
    return [rows[slice(*Shards.even(len(rows), ranks).range(rank))] for rank in range(ranks)]


def rows_travelling(plan: Communication, way: Way) -> list[tuple[int, np.ndarray]]:
    """Row by row, by the docstrings: (bytes of a row, how many go from each rank to each) of every all-to-all."""
    ranks, found = plan.devices, []

    def note(row: int, goes) -> None:
        counts = np.array([[0 if a == b else goes(a, b) for b in range(ranks)] for a in range(ranks)]).reshape(
            ranks, -1
        )
        found.append((row, counts))

    def owner(shards: Shards, row: int) -> int:
        return next(rank for rank in range(ranks) if row in range(*shards.range(rank)))

    match way:
        case ByRows(direct=direct):
            keys = even_parts(way.shared, ranks)
            asked = even_parts(way.asking, ranks)
            key_owner = {row: owner(plan.keys, row) for part in keys for row in part}
            asker = {row: owner(plan.queries, row) for part in asked for row in part}
            first = [[sum(key_owner[row] == a for row in keys[b]) for b in range(ranks)] for a in range(ranks)]
            note(SHAPE.key, lambda a, b: first[a][b] + len(direct.positions(a, b)))
            note(SHAPE.key, lambda a, b: sum(key_owner[row] != b for row in keys[a]))
            note(SHAPE.query, lambda a, b: sum(asker[row] == a for row in asked[b]))
            note(SHAPE.query, lambda a, b: sum(asker[row] != b for row in asked[a]))
            note(SHAPE.result, lambda a, b: len(asked[b]))
            note(SHAPE.result, lambda a, b: sum(asker[row] == b for row in asked[a]))
        case ByResidues(period=period):
            lives = Shards.even(period, ranks).owners(np.arange(plan.keys.length) % period)
            goes = [[int((lives[slice(*plan.keys.range(a))] == b).sum()) for b in range(ranks)] for a in range(ranks)]
            note(SHAPE.key + SHAPE.query, lambda a, b: goes[a][b])
            note(SHAPE.result, lambda a, b: goes[b][a])
        case ByHeads():
            note(SHAPE.query // ranks, lambda a, b: plan.queries.sizes[a])
            note(SHAPE.key // ranks, lambda a, b: plan.keys.sizes[a])
            note(SHAPE.result // ranks, lambda a, b: plan.queries.sizes[b])
        case Ring():
            for step in range(ranks - 1):
                held = [plan.keys.sizes[(rank - step) % ranks] for rank in range(ranks)]
                note(SHAPE.key, lambda a, b, held=held: held[a] if b == (a + 1) % ranks else 0)
    return found


def rows_travelling_back(plan: Communication, way: Way) -> list[tuple[int, np.ndarray]]:
    """The same backward: the gradients the other way, but round the ring the shards again, and their gradients from
    the first that computes with them to the last, and from there to their owner."""
    forward = rows_travelling(plan, way)
    if not isinstance(way, Ring):
        return [(row, counts.T) for row, counts in forward]
    found, ranks = [], plan.devices
    for owner, size in enumerate(plan.keys.sizes):
        for reader in range(owner + 1, owner + ranks):
            counts = np.zeros((ranks, ranks), int)
            counts[reader % ranks, (reader + 1) % ranks] = size
            found.append((SHAPE.key, counts))
    return forward + found


def check_direct(plan: Communication, way: ByRows) -> None:
    """What goes straight is another's own, goes once, and is not among what all get."""
    for rank in range(plan.devices):
        for source in range(plan.devices):
            rows = way.direct.positions(source, rank).tolist()
            assert set(rows) <= set(range(*plan.keys.range(source))) - members(way.shared)
            assert len(rows) == len(set(rows)) and (source != rank or not rows)


def check_travel(plan: Communication) -> None:
    """Bytes and messages in closed form are those of rows counted one by one, there and back."""
    for way in plan.ways:
        if isinstance(way, ByRows):
            check_direct(plan, way)
    zero = np.zeros(plan.devices, int)
    for counted, traffic in ((rows_travelling, plan.traffic(SHAPE)), (rows_travelling_back, plan.backward(SHAPE))):
        travelling = [entry for way in plan.ways for entry in counted(plan, way)]
        sent = sum((row * counts.sum(axis=1) for row, counts in travelling), zero)
        received = sum((row * counts.sum(axis=0) for row, counts in travelling), zero)
        assert (traffic.sent.tolist(), traffic.received.tolist()) == (sent.tolist(), received.tolist())
        if not any(isinstance(way, ByHeads) for way in plan.ways):  # queries, keys and values are one message there
            targets = sum(((counts > 0).sum(axis=1) for _, counts in travelling), zero)
            assert traffic.messages.tolist() == targets.tolist()


@st.composite
def shards(draw, length: int, ranks: int) -> Shards:
    """Even shards, or uneven ones, of which some may be empty."""
    if draw(st.booleans()):
        return Shards.even(length, ranks)
    cuts = sorted(draw(st.lists(st.integers(0, length), min_size=ranks - 1, max_size=ranks - 1)))
    return Shards((0, *cuts, length))


@st.composite
def exchanges(draw):
    """A pattern, shards of queries and of keys, the shape of rows, and where the first query stands."""
    rule, length = draw(questions())
    ranks = draw(st.integers(1, 5))
    pattern = build(rule)
    if pattern.takes_any_query:
        number, offset = draw(st.integers(0, 2 * length)), 0
    else:
        number = draw(st.one_of(st.just(length), st.integers(0, length)))
        offset = draw(st.sampled_from((0, length - number)))
    keys = draw(shards(length, ranks))
    same = number == length and draw(st.integers(0, 3)) > 0
    return pattern, keys if same else draw(shards(number, ranks)), keys, SHAPE, offset


@pytest.mark.parametrize("count", tiers(30, 5000))
def test_every_pair_is_computed_once(count):
    def law(case):
        for plan in candidates(*case):
            check(plan)
            check_travel(plan)

    hold(law, exchanges(), count)


@pytest.mark.parametrize(
    "text",
    [
        "strided(stride=4)",
        "strided(stride=6) | global_tokens((0, 17))",
        "window(left=3) | stride(4) & causal() | stride(6)",
        "per_head([stride(3) | window(left=2), stride(6), dense(), window(left=9)])",
    ],
)
def test_pairs_that_two_shares_could_have_are_one_s(text):
    """Neighbours that also have equal residues, whose terms go different ways."""
    shards = Shards((0, 11, 11, 30))
    plans = list(candidates(patterns.parse(text), shards, shards, SHAPE))
    assert any(len(plan.ways) == 2 for plan in plans)
    for plan in plans:
        check(plan)
        check_travel(plan)


DEVICES = RowShape(heads=8, key_heads=8, key_dim=64, value_dim=64, itemsize=2)


def on_eight(text: str, length: int = 131072) -> Communication:
    return communicate(text, Shards.even(length, 8), Shards.even(length, 8), DEVICES)


def test_a_window_and_globals_move_a_hundredth():
    """131,072 tokens on 8 devices: 1.3 MB come to a rank, where all-gather brings 234.9 MB.

    A halo of 512 keys of 2,048 bytes, 64 keys that all read, 64 queries of 1,024 bytes that read all, and 8 results of
    1,056 bytes from each of 7 ranks. Merged results come to rank 0 alone, which has no halo; with these for all ranks
    the sum would be 1.4 MB.
    """
    plan = on_eight("window(left=512) | global_tokens((0,), block=64)")
    (way,) = plan.ways
    assert way.shared.tolist() == way.asking.tolist() == [[0, 64]]
    assert DEVICES.key == 2048 and DEVICES.query == 1024 and DEVICES.result == 1056
    received = plan.traffic(DEVICES).received
    assert received[1:].tolist() == [512 * 2048 + 64 * 2048 + 64 * 1024 + 7 * 8 * 1056] * 7 == [1_304_320] * 7
    assert received[0] == 7 * 8 * 1056 + 56 * 1056
    gathered = without_pattern(plan.queries, plan.keys, DEVICES)["all-gather"]
    assert gathered == 131072 * 7 // 8 * 2048 == 234_881_024


def test_a_million_tokens_on_64_devices():
    """Window 4,096, 128 globals, 32 query heads and 8 key heads of 128 in bfloat16: 19.4 MB come to a rank, and 20.9 MB
    leave the one that sends most; all-gather brings 4,228 MB, and Ulysses would bring 332, if 64 divided the heads.

    A halo of 4,096 keys and 128 shared ones of 4,096 bytes each, 128 queries of 8,192 bytes, and 2 results of 8,320
    bytes from each of 63 ranks. With partial results in float32 (16,512 bytes a row) and merged ones for every rank it
    would be 21.5 MB; but merged results come to their owner only, rank 0, which has no halo.
    """
    shape = RowShape(heads=32, key_heads=8, key_dim=128, value_dim=128, itemsize=2)
    shards = Shards.even(2**20, 64)
    plan = communicate("window(left=4096) | global_tokens((0,), block=128)", shards, shards, shape)
    moved = plan.traffic(shape)
    assert moved.received.max() == 4096 * 4096 + 128 * 4096 + 128 * 8192 + 63 * 2 * 8320 == 19_398_400
    assert moved.sent.max() == 20_922_112
    assert not plan.is_dense


@pytest.mark.parametrize(
    ("text", "heads", "kinds", "dense"),
    [
        ("window(left=512)", 8, [ByRows], False),
        ("fixed(stride=128, summary=8)", 8, [ByRows], False),
        ("strided(stride=4096)", 12, [ByRows, ByResidues], False),
        ("strided(stride=4096)", 8, [ByHeads], False),
        ("bigbird(block=64)", 8, [ByHeads], False),
        ("bigbird(block=64)", 12, [ByRows], False),
        ("stride(64)", 12, [ByResidues], False),
        ("blocks(16384)", 8, [ByRows], False),
        ("dense()", 8, [ByHeads], True),
        ("dense()", 12, [Ring], True),
        ("causal()", 12, [Ring], True),
    ],
)
def test_the_cheapest_way_is_taken(text, heads, kinds, dense):
    """On 8 devices; with 8 heads Ulysses moves 59.2 MB a rank, and the ring 234.9; 8 divides 12 heads in no way."""
    shape = RowShape(heads=heads, key_heads=heads, key_dim=64, value_dim=64, itemsize=2)
    plan = communicate(text, Shards.even(131072, 8), Shards.even(131072, 8), shape)
    assert [type(way) for way in plan.ways] == kinds
    assert plan.is_dense == dense


def test_one_rank_moves_nothing():
    plan = communicate("dense()", Shards.even(100, 1), Shards.even(100, 1), SHAPE)
    assert [type(way) for way in plan.ways] == [ByRows] and not plan.is_dense
    assert plan.traffic(SHAPE).most == plan.backward(SHAPE).most == 0


def test_a_query_of_a_long_cache_asks():
    """One query, the last of 4,096 positions, whose keys lie on 4 ranks."""
    keys = Shards.even(4096, 4)
    plan = communicate("causal()", Shards((0, 0, 0, 0, 1)), keys, SHAPE, 4095)
    check(plan)
    assert plan.ways[0].asking.tolist() == [[0, 1]] and not plan.is_dense


def test_memory_is_the_shard_and_what_comes():
    plan = on_eight("window(left=512) | global_tokens((0,), block=64)")
    own = 131072 // 8
    assert plan.memory(DEVICES).tolist() == [own * 2048] + [(own + 512 + 64) * 2048] * 7
    ring = on_eight("dense()")
    assert ring.memory(DEVICES).tolist() == [own * 2048 + 131072 * 2048 // 8] * 8


def wanted_by(plan: Communication, rank: int) -> set[int]:
    """The keys of others that the rank's queries can read, pair by pair."""
    first, past = plan.queries.range(rank)
    allowed = plan.pattern.dense(plan.queries.length, plan.keys.length, query_offset=plan.query_offset)
    return set(np.flatnonzero(allowed[:, first:past].any(axis=(0, 1))).tolist()) - set(range(*plan.keys.range(rank)))


@pytest.mark.parametrize(
    "text",
    [
        "window(left=40)",
        "window(left=200, right=3)",
        "window(left=9, right=9, dilation=4)",
        "blocks(48)",
        "fixed(stride=32, summary=3)",
        "fixed(stride=32, summary=3, heads=4)",
        "sinks(first=4, window=50)",
        "bigbird(block=8, random=2)",
        "bigbird_causal(block=8, random=2, heads=3)",
        "bigbird_etc(block=8, globals=5)",
        "longformer(window=16, dilation=2, globals=(3, 100))",
        "star_transformer()",
        "yun_fixed(8)",
        "random_blocks(block=7, count=2, seed=5)",
        "grid(16, radius=2, channels=3) & causal()",
        "documents(fixed(stride=16, summary=2), 70, 100, 130)",
        "shifted(columns(16) & causal(), 5)",
        "columns(16, 3) & causal() & ~global_keys((19, 35))",
        "per_head([window(left=3), global_keys((0, 50, 299))])",
        "explicit('0:5-9,299;250:1,3;299:0', size=300)",
        "across(window(left=9, right=9), step='3/2')",
    ],
)
def test_no_row_travels_that_nobody_reads(text):
    """Straight from their owners come exactly the keys that a rank's queries can read."""
    pattern = patterns.parse(text)
    keys, queries = Shards((0, 71, 71, 150, 240, 300)), Shards((0, 71, 71, 150, 240, 300))
    if pattern.crosses:
        queries = Shards.even(200, 5)
    plan = next(p for p in candidates(pattern, queries, keys, SHAPE) if not p.ignores_the_pattern)
    assert not len(plan.ways[0].shared) and not len(plan.ways[0].asking)
    for rank in range(5):
        received = np.concatenate([plan.ways[0].direct.positions(source, rank) for source in range(5)])
        assert set(received.tolist()) == wanted_by(plan, rank)


def test_keys_that_are_needed():
    window = patterns.parse("window(left=3)")
    assert needed_keys(window, (10, 12), 100).tolist() == [[7, 12]]
    assert needed_keys(patterns.parse("fixed(stride=4, summary=1)"), (10, 12), 100).tolist() == [[3, 4], [7, 12]]
    assert needed_keys("window(left=3)", (5, 5), 100).tolist() == []
    assert needed_keys("across(window(left=1), step=2)", (3, 60), 8).tolist() == [[5, 8]]


@pytest.mark.parametrize("wrong", [(-1, 4), (5, 4), (90, 101)])
def test_ranges_that_are_none(wrong):
    with refusing(PatternError, "query-range", "100"):
        needed_keys("causal()", wrong, 100)


def test_ranks_must_be_the_same():
    with refusing(PatternError, "ranks-differ", "2", "3"):
        communicate("causal()", Shards.even(9, 2), Shards.even(9, 3), SHAPE)
