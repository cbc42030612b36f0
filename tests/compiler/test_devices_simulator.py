"""The simulator beside plans of all ranks, beside pairs counted one by one, and beside the page that shows it."""

import json
import sys

import numpy as np
import pytest
from repository import BENCHMARKS, ROOT, docs_page

from asterism.compiler.devices import RowShape, Shards, communicate
from asterism.patterns import parse

sys.path.insert(0, str(BENCHMARKS))
import devices as benchmark  # noqa: E402
import simulated_devices  # noqa: E402
from simulated_devices import simulate  # noqa: E402

SHAPE = RowShape(heads=3, key_heads=3, key_dim=64, value_dim=64, itemsize=2)
PATTERNS = (
    "window(left=60)",
    "window(left=60) | global_tokens((0,), block=8)",
    "fixed(stride=32, summary=4)",
    "strided(stride=64)",
    "bigbird_causal(block=16, window_blocks=3, random=1)",
    "sinks(first=4, window=64)",
)


@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize("devices", [2, 4])
def test_bytes_are_those_of_the_plan(text, devices):
    shards = Shards.even(4096, devices)
    plan, found = communicate(text, shards, shards, SHAPE), simulate(text, 4096, devices, SHAPE)
    way, moved = found.way("by pattern"), plan.traffic(SHAPE)
    assert (way.received, way.moved, way.messages) == (moved.received.max(), moved.most, moved.messages.max())
    assert way.keys == plan.memory(SHAPE).max()
    assert found.sampled == ()
    assert found.way("all-gather").received == found.way("ring").received == 4096 * (devices - 1) // devices * SHAPE.key


@pytest.mark.parametrize("text", PATTERNS)
def test_sampled_ranks_stand_for_all(text, monkeypatch):
    """Seven ranks, of which five are planned: the first and the last have least and most to fetch."""
    whole = simulate(text, 4096, 7, SHAPE)
    monkeypatch.setattr(simulated_devices, "_CELLS", -1)
    sampled = simulate(text, 4096, 7, SHAPE)
    assert sampled.sampled == (0, 1, 3, 4, 6)
    assert sampled.way("by pattern").received == pytest.approx(whole.way("by pattern").received, rel=0.2)
    assert sampled.way("by pattern").flops == whole.way("by pattern").flops


@pytest.mark.parametrize("text", [*PATTERNS, "dense()", "causal()", "strided(stride=8) | global_tokens((5,))"])
def test_work_is_that_of_all_pairs(text):
    """Against the pattern's own picture: within a tenth, as 16 queries of a rank are looked at."""
    allowed = parse(text).dense(2048)[0]
    found = simulate(text, 2048, 4, SHAPE)
    per_pair = 2 * 128 * SHAPE.heads
    longest = max(int(rows.sum()) for rows in np.split(allowed, 4))
    assert found.way("ring").flops == pytest.approx(longest * per_pair, rel=0.1)
    longest = simulate(text, 2048, 3, SHAPE).way("Ulysses").flops
    assert longest == pytest.approx(allowed.sum() / 3 * per_pair, rel=0.1)


def test_a_million_tokens_on_64_devices():
    shape = RowShape(heads=32, key_heads=8, key_dim=128, value_dim=128, itemsize=2)
    found = simulate("window(left=4096) | global_tokens((0,), block=128)", 2**20, 64, shape)
    assert found.way("by pattern").received == 19_398_400
    assert found.way("all-gather").received == 4_227_858_432
    assert found.way("Ulysses").refusal == "impossible: 64 devices do not divide 32 heads"
    # The longest rank: 16,384 queries that read 4,097 keys and 128 globals, and 128 queries that ask it for its keys.
    pairs = 16384 * (4097 + 128) + 128 * 16384
    assert found.way("by pattern").flops == pairs * 4 * 128 * 32
    assert found.fastest == "by pattern"


@pytest.mark.slow
def test_four_thousand_devices():
    """64 million tokens, within a minute for the pattern that lists most intervals."""
    shape = RowShape(heads=32, key_heads=8, key_dim=128, value_dim=128, itemsize=2)
    found = simulate("fixed(stride=128, summary=8)", 2**26, 4096, shape)
    assert found.sampled == (0, 1023, 2047, 3071, 4095)
    assert found.way("by pattern").received == 2**26 // 128 * 8 * 4095 // 4096 * 4096


def test_the_page_shows_what_is_simulated():
    """Its tables are those of the record, and what is quick of the record is what the simulator says today."""
    record = json.loads((ROOT / "benchmarks" / "results" / "devices.json").read_text())
    page = docs_page("results/devices.md").read_text()
    for line in benchmark.tables(record).splitlines():
        assert line in page
    for case in record["cases"]:
        if case["devices"] <= 64:
            found = simulate(case["pattern"], case["length"], case["devices"], benchmark.SHAPE)
            assert json.loads(json.dumps([vars(way) for way in found.ways])) == case["ways"]
