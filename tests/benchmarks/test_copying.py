"""benchmarks/copying.py: its page has the figures of its results."""

import importlib
import json

from repository import ROOT, docs_page


def test_the_page_has_the_figures_of_the_results(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    record = json.loads((ROOT / "benchmarks" / "results" / "copying.json").read_text())
    importlib.import_module("copying").show(record)
    assert capsys.readouterr().out.strip() in docs_page("translation.md").read_text()
    assert {row["exact_match"] for row in record["rows"]} == {1.0}
