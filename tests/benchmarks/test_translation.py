"""The benchmark of translation: which pairs it makes, what it holds out, and what it says of patterns."""

import importlib
import json

import numpy as np
import pytest
from repository import ROOT, docs_page

from asterism.patterns import as_schedule
from asterism.reproduce.data import debian_pairs


@pytest.fixture
def debian(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return debian_pairs


@pytest.fixture
def translation(debian):
    return importlib.import_module("translation")


def test_texts_are_asked_for_the_nearest(translation):
    train = ["a tool for mail", "a tool for maps", "games for children"]
    assert list(translation.nearest(train, ["maps", "children with games", "a mail tool", "zebra"])) == [1, 2, 0, 0]


def test_sparse_encoders_read_about_as_many_keys(translation):
    lengths = [8, 22, 30]
    found = {}
    for name, text in translation.encoders().items():
        # counted query by query, which asks the rule nothing but single pairs
        patterns = as_schedule(text).patterns
        each = [
            sum(bool(pattern.allows(np.array(q), np.array(k), n, head)) for q in range(n) for k in range(n))
            for pattern in patterns
            for n in lengths
            for head in range(pattern.heads)
            for _ in range(4 // pattern.heads)
        ]
        found[name] = translation.keys_per_token(text, lengths)
        assert found[name] == pytest.approx(sum(each) / 4 / len(patterns) / sum(lengths))
    dense, narrow = found.pop("dense"), found.pop("strided sequential narrow")
    assert narrow < 0.7 * found["strided union"]
    assert dense == pytest.approx(sum(n * n for n in lengths) / sum(lengths))
    assert max(found.values()) < 1.15 * min(found.values()) < 0.5 * dense


def test_what_theory_says_of_the_forms(translation):
    found = {name: translation.theory(text) for name, text in translation.encoders().items()}
    assert all(one["universal"] for one in found.values()), found
    assert found["dense"]["layers_to_reach_all"] == 1


def test_differences_are_marked_where_they_are_sure(debian, translation):
    texts = [f"Dieses Paket enthält Werkzeug {number} für {number * 7} Dateien." for number in range(20)]
    pairs = [debian.Pair(text.upper(), text) for text in texts]
    worse, like = ([text if n % 10 != bad else "nichts davon" for n, text in enumerate(texts)] for bad in (3, 4))
    found = translation.compared({"first": worse, "like": like, "right": texts, "wrong": ["-"] * 20}, pairs)
    assert found["first"]["bleu_p"] is None and found["right"]["bleu_ci"] == found["wrong"]["chrf_ci"] == 0
    assert found["like"]["chrf_p"] > translation.SURE > max(found["wrong"]["bleu_p"], found["wrong"]["chrf_p"])
    assert found["first"]["bleu_ci"] > 1
    score = {"bleu": 12.34, "chrf": 50.0}
    sure = {"bleu_ci": 1.66, "bleu_p": 0.01, "chrf_ci": 2.0, "chrf_p": 0.2}
    assert list(translation._scores(score, sure)) == ["12.3 ± 1.7*", "50.0 ± 2.0"]
    assert list(translation._scores(score, {})) == ["12.3", "50.0"]
    assert translation.scores(texts, pairs)["bleu"] == pytest.approx(100)


def test_the_page_has_the_figures_of_the_results(translation, capsys):
    page, results = docs_page("translation.md").read_text(), ROOT / "benchmarks" / "results"
    translation.report(json.loads((results / "translation.json").read_text()))
    table, rest = capsys.readouterr().out.split("\n\n", 1)
    assert table in page and len(table.splitlines()) == 2 + 9 + 2
    assert all(line.strip() in page for line in rest.splitlines()[:2])
    importlib.import_module("copying").show(record := json.loads((results / "copying.json").read_text()))
    assert capsys.readouterr().out.strip() in page
    assert {row["exact_match"] for row in record["rows"]} == {1.0}
