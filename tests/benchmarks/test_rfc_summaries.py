"""What benchmarks/rfc.py counts, and says of an RFC without a model; and the table of benchmarks/rfc_summaries.py."""

import importlib
import json

import pytest
from repository import BENCHMARKS, docs_page
from small_rfcs import ABSTRACT, SENTENCES, row, write_rfcs

from asterism.reproduce.data.rfcs import candidates, document_of, read, split_of


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def rfc(script):
    return script("rfc")


def test_each_split_is_a_file(rfc, tmp_path):
    names = [f"rfc{number}" for number in range(40)]
    rows = [*(row(id=name) for name in names), row(id="lost", abstract="")]
    said = rfc.write_splits(write_rfcs(tmp_path / "rfcs.jsonl.xz", rows), tmp_path / "data")
    found = {split: [one["id"] for one in read(tmp_path / "data" / f"{split}.jsonl")] for split in said["left"]}
    assert said["given"] == 41 and sorted(sum(found.values(), [])) == sorted(names)
    assert said["left"] == {split: len(some) for split, some in found.items()}
    assert all(split_of(name) == split for split, some in found.items() for name in some)
    assert said["repeating"] == 1  # the last sentence of the abstract stands in section 2, too
    assert not rfc.repeats({"document": "Nothing of it.", "summary": ABSTRACT})


def test_baselines_by_hand(rfc):
    found = document_of(row())
    assert rfc.BASELINES["lead"](found["document"], 2).split("\n") == candidates(found["document"])[:2]
    assert rfc.oracle(found["document"], found["summary"]) == SENTENCES[3]
    text = (
        "T\nThe crumb is a crumb of toast. The crumb of toast is a crumb. Nobody knows why rain falls. It is late now."
    )
    said = rfc.BASELINES["centroid"](text, 2)
    assert "Nobody" not in said and "\n" in said


def test_what_is_copied(script):
    copied = script("rfc_summaries").copied
    assert copied("a b c d e", "x a b c d y") == 0.5 and copied("a b c", "a b c") == 0


def test_the_table_shows_what_there_is(script, capsys):
    scores = dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), 0.125)
    said = {"scores": scores, "words_per_summary": 40.2}
    costs = {"copied": 0.3, "tokens_per_document": 4001.2, "seconds_per_document": 1.25, "peak_bytes": 2**30}
    run = {"steps": 1200, "training_seconds": 90.0, "training_peak_bytes": 2**30}
    record = {
        "date": "2026-11-22",
        "settings": {"seed": 0},
        "baselines": [{"name": "lead", "sentences": 3, **said}, {"name": "oracle", "sentences": None, **said}],
        "trained": {"long": run},
        "rows": [{"model": "long", "reader": "whole()", **said, **costs}],
    }
    script("rfc_summaries").report(record)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| lead, 3 sentences | | 0.125 | 0.125 | 0.125 | 0.125 | 40 | | | | |"
    assert lines[4] == "| `long` | `whole()` | 0.125 | 0.125 | 0.125 | 0.125 | 40 | 0.30 | 4,001 | 1.25 | 1,024 |"
    assert "| long | 1,200 | 1.5 | 1,024 |" in lines and lines[-1] == "2026-11-22, {'seed': 0}"


def test_the_page_shows_the_results(script, capsys):
    record = json.loads((BENCHMARKS / "results" / "rfc-summaries.json").read_text())
    script("rfc_summaries").report(record)
    said, costs, _ = capsys.readouterr().out.split("\n\n")
    page = docs_page("summaries.md").read_text()
    assert said in page and costs in page and len(said.splitlines()) == 15
    assert f"{sum(record['data']['left'].values()):,} are left" in page and record["date"] in page
