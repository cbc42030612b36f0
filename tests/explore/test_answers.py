"""What the page is told: pictures agree with the rule, refusals say where, and nothing that is typed escapes."""

import json
import random
import subprocess
import sys
import time
from base64 import b64decode
from math import log

import numpy as np
import pytest
from explore_texts import random_texts, without_defects
from refusals import refusing

from asterism.errors import ConfigurationError, PatternError
from asterism.explore.cost import cost_by_length
from asterism.explore.gallery import GALLERY
from asterism.explore.questions import MOST_CHARACTERS, MOST_TOKENS, answer
from asterism.explore.vocabulary import vocabulary
from asterism.explore.worker import respond
from asterism.patterns import interleave, parse, parse_schedule
from asterism.patterns.text import TRANSFORMS, VOCABULARY


def picture(text, n, rows=None, columns=None, cells=64, layer=0, head=0):
    part = {"rows": rows or [0, n], "columns": columns or [0, n], "cells": cells}
    return answer({"question": "picture", "text": text, "length": n, "layer": layer, "head": head, **part})


def levels_of(told):
    shape = len(told["rows"]) - 1, len(told["columns"]) - 1
    return np.frombuffer(b64decode(told["levels"]), np.uint8).reshape(shape)


def shares_of(told, pattern, n, head=0):
    """The share of allowed pairs of each cell, by the rule."""
    allowed = pattern.dense(n)[head]
    rows, columns = np.array(told["rows"]), np.array(told["columns"])
    counts = np.add.reduceat(np.add.reduceat(allowed.astype(int), rows[:-1], axis=0), columns[:-1], axis=1)
    return counts / np.outer(np.diff(rows), np.diff(columns))


TEXTS = (
    "bigbird(block=16)",
    "fixed(stride=32, summary=3, heads=2)",
    "stride(7) & causal()",
    "~window(left=9)",
    "star()",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("n", (1, 50, 300))
def test_pictures_agree_with_the_rule(text, n):
    pattern = parse(text)
    for head in range(pattern.heads):
        told = picture(text, n, head=head)
        shares = shares_of(told, pattern, n, head)
        levels = levels_of(told)
        assert ((levels == 0) == (shares == 0)).all()
        assert ((levels == 255) == (shares == 1)).all()
        assert told["exact"] and np.abs(levels / 255 - shares).max() < 1 / 255


def test_estimated_shades_are_near_the_share():
    """Above a million pairs shades are estimated; which cells are empty or full is still exact."""
    n = 2048
    for text in ("fixed(stride=64, summary=4)", "bigbird(block=32)", "stride(16)"):
        told = picture(text, n, cells=128)
        shares, levels = shares_of(told, parse(text), n), levels_of(told)
        assert not told["exact"] and told["undecided"] == 0
        assert ((levels == 0) == (shares == 0)).all()
        assert ((levels == 255) == (shares == 1)).all()
        assert np.abs(levels / 255 - shares).max() < 0.2


def test_a_part_of_the_mask():
    told = picture("window(left=3)", 2**20, rows=[700_000, 700_012], columns=[699_995, 700_007])
    queries, keys = np.arange(700_000, 700_012)[:, None], np.arange(699_995, 700_007)[None]
    assert told["rows"] == list(range(700_000, 700_013))
    assert (levels_of(told) == 255 * ((keys <= queries) & (keys >= queries - 3))).all()
    beyond = picture("causal()", 64, rows=[-5, 900], columns=[60, 2000])
    assert (beyond["rows"][0], beyond["rows"][-1]) == (0, 64)
    assert (beyond["columns"][0], beyond["columns"][-1]) == (60, 64)


def test_layers_and_heads_of_a_schedule():
    text = "interleave(window(left=1), per_head([causal(), dense()]), fourier())"
    assert [layer["heads"] for layer in picture(text, 8)["layers"]] == [1, 2, 1]
    assert (levels_of(picture(text, 8, layer=1, head=1)) == 255).all()
    assert picture(text, 8, layer=4, head=99)["head"] == 1
    assert "levels" not in picture(text, 8, layer=2) and "Fourier" in picture(text, 8, layer=2)["note"]
    across = picture("across(window(left=1), step=2)", 20)
    assert across["queries"] == 10 and levels_of(across).shape == (10, 20)


def test_degrees_agree_with_the_rule():
    for text in TEXTS:
        pattern = parse(text)
        told = answer({"question": "degrees", "text": text, "length": 200, "layer": 0, "head": 0})
        counts = pattern.dense(200)[0].sum(axis=1)
        found = told["minimum"], told["mean"], told["maximum"], told["counted"]
        assert found == (counts.min(), pytest.approx(counts.mean()), counts.max(), 200)
        for least, most, queries in told["bars"]:
            assert ((least <= counts) & (counts <= most)).sum() == queries
        assert sum(bar[2] for bar in told["bars"]) == 200


def prices(pair, fixed, dense):
    line = {"points": [[0, 0.0]], "pair": dense}
    return {"cpu": {"points": [[0, fixed]], "pair": pair}, "dense full": line, "dense causal": line}


def test_the_crossing_with_dense():
    """Tiles cost the fixed part, and hardly more for pairs; dense attention costs n * n."""
    told = cost_by_length(parse("window(left=7)"), 1, "float32", prices(1e-9, 1e6, 1.0), "cpu")
    assert told["crossing"] == pytest.approx(1000, rel=1e-3)
    assert [row["length"] for row in told["rows"]][:3] == [64, 128, 256]
    never = cost_by_length(parse("window(left=7)"), 1, "float32", prices(1e-9, 1e30, 1.0), "cpu")
    always = cost_by_length(parse("window(left=7)"), 1, "float32", prices(1e-9, 0.0, 1.0), "cpu")
    assert (never["crossing"], always["crossing"]) == (None, 64.0)
    row = told["rows"][2]
    assert row["mask_bytes"] == 4 * 256 * 64 * 4 + 256**2
    assert log(row["dense"] * 1e9, 2) == pytest.approx(16)
    with refusing(PatternError, "pattern-heads", "3"):
        cost_by_length(parse("fixed(8, heads=2)"), 3, "float32", prices(1, 1, 1), "cpu")


CONDITIONS = {
    "star() | window(1, 1)": (True, True, True, True),
    "star()": (True, True, False, True),
    "window(left=3)": (False, True, True, False),
    "window(1, 1) & ~window()": (False, False, True, False),
    "blocks(8)": (False, True, False, False),
    "interleave(blocks(8), columns(8))": (False, False, True, True),
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_the_certificate_marks_what_shows_it(text):
    told = answer({"question": "certificate", "text": text, "length": 64})
    found = told["conditions"]
    assert [one["holds"] for one in found][:3] == list(CONDITIONS[text])[:3]
    assert bool(found[3]["holds"]) == CONDITIONS[text][3]
    patterns = parse_schedule(text).patterns
    union = sum(pattern.dense(64)[0] for pattern in patterns) > 0
    star, loops, path, _ = found
    for query, key in [*loops["pairs"], *star["pairs"]]:
        one = loops if query == key else star
        assert patterns[one["pattern"]].allows(query, key, 64) == one["holds"]
    if path["holds"]:
        assert len(path["pairs"]) == 63 and all(union[query, key] for query, key in path["pairs"])
    for token in star["rows"]:
        assert patterns[star["pattern"]].dense(64)[star["head"], token].all()
    reach = told["reach"]
    first = np.frombuffer(b64decode(reach["first"]), np.uint8).reshape(64, 64)
    assert ((first == 1) == patterns[0].dense(64)[0]).all()
    if loops["holds"]:  # else a pair that is connected after some layers need not be after more
        assert (first > 0).mean() == pytest.approx(reach["shares"][-1])


def test_the_gallery_can_be_shown():
    assert len({entry.text + entry.name for entry in GALLERY}) == len(GALLERY)
    for entry in GALLERY:
        told = picture(entry.text, entry.length, cells=32, layer=entry.layer)
        assert levels_of(told).any(), entry.name
        assert entry.link[4] == "." and entry.link.replace(".", "").isdigit()


def test_every_name_can_be_completed():
    words = {word["name"]: word for word in vocabulary()}
    assert set(words) == {*VOCABULARY, "interleave", *TRANSFORMS}
    assert words["window"]["arguments"] == ["left=0", "right=0", "dilation=1"]
    assert all(len(word["meaning"]) > 10 for word in words.values())


def test_the_program_draws_the_same():
    text = "interleave(window(left=1), fourier())"
    program = picture(text, 6)["python"]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "layer 0:" in done.stdout and "██····" in done.stdout
    assert str(interleave(*parse_schedule(text).mixers)) == text


def refusal(**question):
    return respond(json.dumps({"layer": 0, "head": 0, **question}).encode())["refused"]


PLACES = {
    "window(": ("unreadable-pattern", "("),
    "causal() | wndow(left=2)": ("unknown-pattern", "wndow(left=2)"),
    "é | causal()": ("unknown-pattern", "é"),
    "  window(left=3, rigth=2) | dense()": ("unknown-argument", "rigth"),
    "window(left=1, left=2)": ("argument-twice", None),
    "causal() & window": ("missing-parentheses", "window"),
    "dense() | shifted(window(left=-1), 3)": ("below-minimum", "window(left=-1)"),
    "dense() + 1": ("not-allowed-in-pattern", None),
}


@pytest.mark.parametrize("text", PLACES)
def test_where_an_error_lies(text):
    refused = refusal(question="picture", text=text, length=64, rows=[0, 9], columns=[0, 9], cells=9)
    code, marked = PLACES[text]
    with pytest.raises(PatternError) as caught:
        parse_schedule(text)
    assert refused["message"] == str(caught.value)
    if marked is not None:
        assert text[slice(*refused["place"])] == marked
        assert refused["code"] == code


HEAVY = {
    "n = 0": ({"text": "causal()", "length": 0}, "number-out-of-range"),
    "n = 10^12": ({"text": "causal()", "length": 10**12}, "number-out-of-range"),
    "n is no number": ({"text": "causal()", "length": "9"}, "number-out-of-range"),
    "n of thousands of digits": ({"text": "causal()", "length": 10**4000}, "number-out-of-range"),
    "a million characters": ({"text": "a" * 10**6, "length": 9}, "text-too-long"),
    "deep nesting": ({"text": "(" * 9999, "length": 9}, "unreadable-pattern"),
    "deep negation": ({"text": "~" * 9000 + "causal()", "length": 9}, None),
    "deep calls": ({"text": "shifted(" * 180 + "causal()" + ", 1)" * 180, "length": 9}, None),
    "a long union": ({"text": " | ".join(["window(1)"] * 1600), "length": 9}, None),
    "many layers": ({"text": f"interleave({', '.join(['causal()'] * 600)})", "length": 9}, "schedule-too-long"),
    "many queries": ({"text": "across(causal(), step='1/1048576')", "length": 64}, "picture-queries"),
    "no text": ({"text": None, "length": 9}, "no-text"),
    "nothing": ({"text": "  ", "length": 9}, "text-empty"),
    "no part": ({"text": "causal()", "length": 9, "rows": "all"}, "part-form"),
    "too many cells": ({"text": "causal()", "length": 9, "cells": 4096}, "number-out-of-range"),
}


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_too_much_is_refused_at_once(name):
    given, code = HEAVY[name]
    begun = time.process_time()
    told = respond(
        json.dumps({**FRAME, **given}, allow_nan=False).encode() if name != "n of thousands of digits" else LONG
    )
    assert time.process_time() - begun < 1
    if code is not None:
        assert told["refused"]["code"] == code
    without_defects(told)


FRAME = {"question": "picture", "layer": 0, "head": 0, "rows": [0, 9], "columns": [0, 9], "cells": 9}
LONG = b'{"question": "picture", "text": "causal()", "length": 1' + b"0" * 4000 + b"}"


@pytest.mark.parametrize(
    "line", (b"", b"{", b"[]", b"3", b'{"question": ["picture"]}', b"[" * 10**5, b'{"question": "x"}', b"\xff")
)
def test_lines_that_are_no_question(line):
    assert respond(line)["refused"]["code"] in ("not-json", "unknown-question")


def test_answer_refuses_unknown_questions():
    with refusing(ConfigurationError, "unknown-question", "picture"):
        answer({"question": "eval"})
    assert (MOST_TOKENS, MOST_CHARACTERS) == (2**20, 20_000)


def test_random_texts_leave_no_defect():
    chance = random.Random(5)
    for text in random_texts(60, seed=5):
        n = chance.choice((1, 7, 64, 200))
        for question in ("picture", "degrees", "certificate") if n <= 64 else ("picture",):
            told = respond(json.dumps({**FRAME, "question": question, "text": text, "length": n}).encode())
            without_defects(told, text)
