"""Arguments that mean nothing are refused in a line."""

import time

import numpy as np
import pytest
from refusals import refusing

from asterism import patterns
from asterism.errors import PatternError

BAD = {
    "window": [dict(left=-1), dict(right=-1), dict(dilation=0), dict(dilation=-2), dict(left=1.5), dict(left="3")],
    "stride": [dict(period=0), dict(period=-4), dict(period=2.0), dict(period=None)],
    "blocks": [dict(size=0), dict(size=-1), dict(size=4, left=-1), dict(size=4, right=-1)],
    "columns": [dict(period=0), dict(period=-2), dict(period=4, first=-1), dict(period=4, count=0)],
    "grid": [
        dict(width=0, radius=1),
        dict(width=-5, radius=1),
        dict(width=4, radius=-1),
        dict(width=4, radius=1.5),
        dict(width=4, radius="12"),
        dict(width=4, radius=()),
        dict(width=4, radius=(1, 2, 3)),
        dict(width=4, radius=(1, -2)),
        dict(width=4, radius=(True, 2)),
        dict(width=4, radius=None),
        dict(width=4, radius=1, dilation=0),
        dict(width=4, radius=1, channels=0),
        dict(width=2**31, radius=1),
        dict(width=2**20, radius=1, channels=2**11),
        dict(width=2**29, radius=2**30, dilation=4),
        dict(width=1, radius=(0, 2**40), dilation=2**40),
    ],
    "global_keys": [dict(positions="0"), dict(positions=0.5), dict(positions=0, block=0)],
    "global_queries": [dict(positions=(1, 2.5)), dict(positions=0, block=-3)],
    "global_tokens": [dict(positions=None), dict(positions=0, block=0)],
    "random_blocks": [
        dict(block=0, count=1),
        dict(block=4, count=-1),
        dict(block=4, count=1, heads=0),
        dict(block=4, count=1, seed=-1),
        dict(block=4, count=1, seed=0.5),
        dict(block=4, count=1, window_blocks=2),
        dict(block=4, count=1, window_blocks=-1),
    ],
    "shifted": [dict(pattern=None, by=1), dict(pattern=3, by=1)],
    "documents": [dict(pattern=None), dict(pattern="causal()")],
    "per_head": [dict(patterns=[]), dict(patterns=[1, 2])],
    "strided": [dict(stride=0), dict(stride=-1)],
    "fixed": [
        dict(stride=0),
        dict(stride=8, summary=0),
        dict(stride=8, summary=-1),
        dict(stride=8, summary=9),
        dict(stride=8, heads=0),
    ],
    "bigbird": [
        dict(block=0),
        dict(block=-64),
        dict(window_blocks=2),
        dict(window_blocks=-1),
        dict(window_blocks=0),
        dict(random=-1),
        dict(heads=0),
    ],
    "bigbird_etc": [dict(globals=-1), dict(block=0), dict(window_blocks=4)],
    "bigbird_causal": [dict(globals=(-1,)), dict(globals=(0, -2)), dict(block=0), dict(window_blocks=2)],
    "longformer": [dict(window=-2), dict(dilation=0)],
    "yun_strided": [dict(w=0), dict(w=-1)],
    "yun_fixed": [dict(w=0)],
    "yun_window": [dict(w=0)],
    "yun_random": [dict(count=-1)],
    "sinks": [dict(first=-1), dict(window=0), dict(window=-5)],
}


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, cases in BAD.items() for arguments in cases], ids=str
)
def test_bad_arguments_get_one_clear_line(name, arguments):
    with pytest.raises(PatternError) as refused:
        getattr(patterns, name)(**arguments)
    message = str(refused.value)
    assert "\n" not in message
    assert name in message or any(argument in message for argument in arguments)


def test_a_negative_shift_is_refused():
    with refusing(PatternError, "below-minimum", "-1"):
        patterns.shifted(patterns.causal(), by=-1)


@pytest.mark.parametrize(
    ("length", "message"),
    ((1.5, "whole numbers, got 1.5"), ("3", "whole numbers, got '3'"), (True, "got True"), (2**61, "at most")),
)
def test_documents_of_no_length_are_refused(length, message):
    with pytest.raises(PatternError, match=message):
        patterns.documents(patterns.causal(), 4, length)


def test_a_hundred_thousand_documents_are_read_and_judged_quickly():
    """Nothing in the rule, its text or its spans recurses, or looks at documents one by one."""
    started = time.process_time()
    pattern = patterns.parse(patterns.documents(patterns.strided(3), *[5, 1, 0, -1] * 25_000).text)
    assert pattern.spans((174_990, 175_000), 175_000).tolist() == [[174_986, 174_992], [174_993, 174_999]]
    assert pattern.allows([6, 7, 11], [6, 5, 8], 175_000).tolist() == [False, False, True]
    assert pattern.verdict((0, 5), (5, 175_000), 175_000) == patterns.Verdict.EMPTY
    assert time.process_time() - started < 5


def test_numpy_integers_are_integers():
    assert patterns.window(left=np.int64(3)) == patterns.window(left=3)
    assert patterns.window(left=np.int64(3)).text == patterns.window(left=3).text
