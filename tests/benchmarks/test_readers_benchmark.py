"""benchmarks/readers.py and others: they find what they take of the library, and pages have their tables."""

import importlib
import json
import re

import pytest
from repository import ROOT, docs_page

from asterism.reproduce.data.long_documents import Sizes, write_long_range


@pytest.fixture
def script(monkeypatch):
    """What imports a script of benchmarks/, as it is found by another."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.parametrize("name", ["copying", "qmsum", "readers", "selection"])
def test_the_scripts_find_what_they_take_of_the_library(script, name):
    assert callable(script(name).main)


def test_a_search_for_words_solves_both_tasks(script, tmp_path):
    """So the table of readers shows what is read, and not what only a model could understand."""
    write_long_range(tmp_path / "data", sizes=Sizes(train=40, test=20, text=1))
    baselines = script("readers").BASELINES
    assert baselines["classify"](tmp_path / "data") == 1
    assert baselines["qa"](tmp_path / "data") >= 0.95


@pytest.mark.parametrize("name", ["readers", "qmsum"])
def test_the_tables_of_readers_are_those_of_the_results(script, name, capsys):
    record = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    script(name).report(record)
    table = capsys.readouterr().out.partition("\n\n")[0]
    assert table.count("\n") >= 7 and table in docs_page("results/readers.md").read_text()


def test_the_table_of_what_readers_see_is_that_of_the_results(script, capsys):
    record = json.loads((ROOT / "benchmarks" / "results" / "selection.json").read_text())
    script("selection").report(record)
    *table, _, sizes = capsys.readouterr().out.splitlines()
    page = docs_page("results/readers.md").read_text()
    assert len(table) == 7 and "\n".join(table) in page
    for number in re.findall(r"[\d,]{3,}", sizes):
        assert number in page
