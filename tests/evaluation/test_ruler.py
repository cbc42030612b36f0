"""Scores: an oracle has all, a guesser what guessing has; records resume."""

import json

import pytest
from reading_prompts import Answerer, counted_bytes, counted_words, guesser, oracle
from refusals import refusing
from scipy.stats import binomtest

from asterism.errors import CheckpointError, ConfigurationError
from asterism.evaluation.ruler import evaluate_ruler
from asterism.evaluation.scores import interval, recall
from asterism.evaluation.tasks import TASKS


def test_an_oracle_is_always_right():
    scores = evaluate_ruler(oracle(), lengths=[1024, 4096], samples=3, progress=False)
    assert [(cell.task, cell.length) for cell in scores.cells] == [(name, n) for name in TASKS for n in (1024, 4096)]
    for cell in scores.cells:
        assert cell.recall == cell.high == 1
        assert cell.low == pytest.approx(binomtest(3, 3).proportion_ci(method="wilson").low)
        assert cell.length - 16 < cell.tokens[0] <= cell.tokens[1] <= cell.length


def test_silence_scores_nothing():
    scores = evaluate_ruler(Answerer(lambda prompt: ""), lengths=[1024], samples=2, progress=False)
    assert {cell.recall for cell in scores.cells} == {0}


def test_a_guesser_scores_what_picks_do():
    scores = evaluate_ruler(guesser(), lengths=[1024], samples=25, progress=False)
    for cell in scores.cells:
        assert cell.low <= cell.pick <= cell.high, cell
    picks = {cell.task: cell.pick for cell in scores.cells}
    assert picks["niah_single_2"] == picks["niah_multivalue"] == picks["vt"] == 1
    assert picks["niah_multikey_1"] == pytest.approx(1 / 4, abs=0.03)
    assert picks["niah_multikey_2"] < 0.1


def test_recall_counts_the_answers_that_were_found():
    assert recall("1234567 and 7654321.", ["1234567", "7654321", "1111111", "2222222"]) == 0.5
    assert recall("abcde", ["ABCDE"]) == 1
    assert recall("123 4567", ["1234567"]) == 0


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (3, 50), (49, 50), (250, 500)])
def test_intervals_are_wilsons(right, count):
    expected = binomtest(right, count).proportion_ci(confidence_level=0.95, method="wilson")
    assert interval(right / count, count) == pytest.approx(tuple(expected), abs=1e-6)


def test_an_unfinished_record_is_resumed(tmp_path):
    path = tmp_path / "record.json"
    stopping = Answerer(lambda prompt: "")

    def write(prompt):
        if stopping.asked > 5:
            raise KeyboardInterrupt
        return oracle().write(prompt)

    stopping.write = write
    with pytest.raises(KeyboardInterrupt):
        evaluate_ruler(stopping, ["vt", "fwe"], [512], samples=4, record=path, progress=False)
    assert [cell["task"] for cell in json.loads(path.read_text())["cells"]] == ["vt"]
    with refusing(CheckpointError, "output-exists", str(path)):
        evaluate_ruler(oracle(), ["vt", "fwe"], [512], samples=4, record=path, progress=False)
    second = oracle()
    resumed = evaluate_ruler(second, ["fwe", "vt"], [512], samples=4, record=path, resume=True, progress=False)
    assert second.asked == 4
    assert [(cell.task, cell.recall) for cell in resumed.cells] == [("fwe", 1), ("vt", 1)]
    again = oracle()
    assert str(evaluate_ruler(again, ["fwe", "vt"], [512], samples=4, record=path, resume=True)) == str(resumed)
    assert again.asked == 0


def test_records_of_other_settings_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "record.json"
    evaluate_ruler(oracle(), ["vt"], [512], samples=1, record=path, progress=False)
    with refusing(CheckpointError, "output-of-other-settings", "'seed'"):
        evaluate_ruler(oracle(), ["vt"], [512], samples=1, seed=1, record=path, resume=True)
    document = json.loads(path.read_text())
    for damaged in (
        [],
        {},
        {"cells": 3},
        {"cells": [{}]},
        document | {"cells": [document["cells"][0] | {"recall": "x"}]},
    ):
        path.write_text(json.dumps(damaged))
        with refusing(CheckpointError, "damaged-file", str(path)):
            evaluate_ruler(oracle(), ["vt"], [512], samples=1, record=path, resume=True)


def test_scores_as_a_table():
    scores = evaluate_ruler(oracle(), ["vt"], [4096], samples=50, progress=False)
    assert str(scores).splitlines() == [
        "task  tokens  samples  recall   95 % interval  random pick",
        "vt     4,096       50   1.000  0.929 to 1.000        1.000",
    ]
    assert json.loads(json.dumps(scores.as_json()))["cells"][0]["recall"] == 1


def test_what_cannot_be_asked_is_refused_before_anything_is():
    small, unasked = oracle(), oracle(counted_words)
    small.positions = 1000
    with refusing(ConfigurationError, "length-beyond-positions", "1,000", "1,001"):
        evaluate_ruler(small, ["vt"], [512, 1001])
    for lengths in ([127], [131_073]):
        with refusing(ConfigurationError, "length-range", f"{lengths[0]:,}"):
            evaluate_ruler(unasked, ["vt"], lengths)
    with refusing(ConfigurationError, "no-length"):
        evaluate_ruler(unasked, ["vt"], [])
    with refusing(ConfigurationError, "prompt-too-long", "cwe, 128 tokens"):
        evaluate_ruler(unasked, ["vt", "cwe"], [4096, 128])
    for wrong in ({"samples": 0}, {"seed": -1}):
        with refusing(ConfigurationError, "setting-range", *wrong):
            evaluate_ruler(unasked, ["vt"], [512], **wrong)
    assert not unasked.asked


def test_longer_texts_are_asked_about_at_all_lengths():
    scores = evaluate_ruler(oracle(counted_bytes), ["niah_multikey_2", "fwe"], [131_072], samples=1, progress=False)
    assert all(cell.recall == 1 and cell.tokens[0] > 131_000 for cell in scores.cells)
