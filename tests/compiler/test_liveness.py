"""Until when a key can be read: exact where the pattern says so, never too early anywhere."""

import numpy as np
import pytest
import strategies
from hypothesis import assume
from known_patterns import CAUSAL
from strategies import build, hold, tiers

from asterism import patterns
from asterism.compiler.liveness import FOREVER, last_reader
from asterism.errors import PatternError

NEVER = -1
KEYS = np.arange(200)


def seen_readers(pattern, length: int) -> np.ndarray:
    """The last reader of each key among the first `length` queries; NEVER where there is none."""
    readable = pattern.dense(length).any(0)
    positions = np.where(readable, np.arange(length)[:, None], NEVER)
    return positions.max(0)


def assert_never_too_small(pattern, length: int):
    found = last_reader(pattern, np.arange(length))
    assert found.dtype == np.int64 and found.shape == (length,)
    assert ((found >= NEVER) & (found <= FOREVER)).all()
    assert (found >= seen_readers(pattern, length)).all()


def test_forever_is_far():
    assert FOREVER == 2**62


@pytest.mark.parametrize("text", [*CAUSAL, "bigbird_causal(block=4, heads=3)", "~window(left=5) & causal()"])
def test_never_too_small(text):
    assert_never_too_small(patterns.parse(text), 150)


@pytest.mark.parametrize("count", tiers(50, 1000))
def test_never_too_small_for_compositions(count):
    def law(drawn):
        pattern = build(drawn)
        assume(pattern.is_causal and pattern.unstable_part() is None)
        assert_never_too_small(pattern, 97)

    hold(law, strategies.causal_rules(97, heads=2), count)


EXACT = {
    "causal()": lambda k: FOREVER,
    "window()": lambda k: k,
    "window(left=9)": lambda k: k + 9,
    "window(left=3, dilation=4)": lambda k: k + 12,
    "strided(8)": lambda k: FOREVER,
    "stride(5) & causal()": lambda k: FOREVER,
    "blocks(8) & causal()": lambda k: k // 8 * 8 + 7,
    "grid(4, radius=1) & causal()": lambda k: k + (4 if k % 4 == 3 else 5),
    "grid(4, radius=(2, 0), channels=3) & causal()": lambda k: k // 3 * 3 + 2 + 24,
    "grid(4, radius=(1, 2), dilation=2, channels=2)": lambda k: (k // 2 + 8 + (2 if k // 2 % 4 < 2 else 0)) * 2 + 1,
    "grid(8, radius=(0, 2)) | causal() & grid(8, radius=(1, 0))": lambda k: k + 8,
    "fixed(8)": lambda k: FOREVER if k % 8 == 7 else k // 8 * 8 + 7,
    "fixed(8, summary=3)": lambda k: FOREVER if k % 8 >= 5 else k // 8 * 8 + 7,
    "fixed(8, summary=2, heads=2)": lambda k: FOREVER if k % 8 >= 4 else k // 8 * 8 + 7,
    "sinks(4, 16)": lambda k: FOREVER if k < 4 else k + 15,
    "window(left=9) | columns(10) & causal()": lambda k: FOREVER if k % 10 == 0 else k + 9,
    "global_keys((0, 7)) & causal() | window(left=2)": lambda k: FOREVER if k in (0, 7) else k + 2,
    "per_head([window(left=3), window(left=30)])": lambda k: k + 30,
    "shifted(window(left=9), by=50)": lambda k: k + 9 if k >= 50 else NEVER,
    "shifted(fixed(8), by=3)": lambda k: NEVER if k < 3 else FOREVER if (k - 3) % 8 == 7 else (k - 3) // 8 * 8 + 10,
    "documents(window(left=9), 20, -3, 77)": lambda k: (
        min(k + 9, 19 if k < 20 else 99) if k < 100 and k not in (20, 21, 22) else NEVER
    ),
    "documents(bigbird(block=4), 6, 94)": lambda k: 5 if k < 6 else 99 if k < 100 else NEVER,
    "tree('20:9;60:-1', size=100)": lambda k: (
        59 if k < 10 else 19 if k < 20 else 59 if k < 60 else 99 if k < 100 else NEVER
    ),
    "tree('60:0', size=100) & window(left=9)": lambda k: (
        NEVER if k >= 100 else min(k + 9, 99 if k == 0 or k >= 60 else 59)
    ),
    "across(window(left=9), step=2)": lambda k: (k + 9) // 2,
    "across(blocks(8), step='2/3')": lambda k: -(-(k // 8 + 1) * 8 * 3 // 2) - 1,
    "columns(10) & causal()": lambda k: FOREVER if k % 10 == 0 else NEVER,
    "window(left=9) & columns(10)": lambda k: k + 9 if k % 10 == 0 else NEVER,
}


@pytest.mark.parametrize("text", EXACT)
def test_exact(text):
    expected = [EXACT[text](k) for k in KEYS.tolist()]
    np.testing.assert_array_equal(last_reader(patterns.parse(text), KEYS), expected)


@pytest.mark.parametrize("text", EXACT)
def test_the_expectation_is_what_the_picture_shows(text):
    """The table above is checked too: the reader it names is a reader."""
    length = 100
    pattern = patterns.parse(text)
    readable = pattern.dense(length).any(0)
    for key in range(40):
        last = EXACT[text](key)
        readers = np.flatnonzero(readable[:, key])
        if last == FOREVER:
            assert readers.max() >= length - 10
        elif last == NEVER:
            assert not readers.size
        elif last < length:
            assert readers.max() == last


def test_keys_in_any_order_and_far_away():
    keys = np.array([2**40 + 3, 5, 2**40, 5])
    np.testing.assert_array_equal(last_reader(patterns.window(left=7), keys), keys + 7)
    assert last_reader(patterns.window(left=7), np.array([], dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("text", ("dense()", "bigbird(block=4)", "window(left=3, right=1)", "star()"))
def test_only_for_patterns_that_read_the_past(text):
    """The last query that can read a key is known for good only when nothing changes as the sequence grows."""
    try:
        found = last_reader(patterns.parse(text), KEYS)
    except PatternError as refused:
        assert "\n" not in str(refused)
    else:
        assert (found >= seen_readers(patterns.parse(text), len(KEYS))).all()
