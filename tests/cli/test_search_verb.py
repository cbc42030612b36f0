"""`asterism search`: from end to end, and what cannot be searched is one line."""

import json
import shlex

import pytest
from command_line import refuses

from asterism.cli.main import VERBS
from asterism.training.run.integrity import seal

TINY = shlex.split("--length 64 --candidates 3 --rungs 1 --steps 2 --width 16 --batch 4 --held-out 4 --budget keys=24")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(VERBS, "search", "find the pattern that a task deserves at equal cost")


@pytest.mark.model
def test_a_text_is_searched_and_the_same_command_prints_the_same(run, text_file, tmp_path):
    command = "search", text_file, *TINY, "--output", tmp_path / "found"
    first = run(*command)
    assert first.code == 0, first.err
    heading, *rows = first.out.split("\n\n")[0].splitlines()
    assert " ".join(heading.split()) == "candidate budget keys of dense rung loss (bits per byte) accuracy seconds"
    assert [row.split()[0] for row in rows][0] == "dense"
    assert {row.split()[0] for row in rows} == {"dense", "window", "bigbird", "selected"}
    assert "keys=24, rung 1, window, seed 0: loss" in first.err
    assert (tmp_path / "found" / "frontier.svg").read_text().startswith("<?xml")
    again = run(*command)
    assert again.out == first.out and not again.err
    record = json.loads(run(*command, "--json").out)
    assert seal(record) == json.loads((tmp_path / "found" / "record.json").read_text())
    refuses(run(*command, "--seed", "1"), 4, "a search with seed 0, not 1; give another --output")
    text_file = tmp_path / "other"
    text_file.write_bytes(b"another text " * 1000)
    refuses(run("search", text_file, *command[2:]), 4, "a search with task")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("recal", 3, "Did you mean 'recall'"),
        ("/nowhere/at/all", 3, "The tasks are recall, needles"),
        ("recall --length 8", 2, "length: must be at least 64"),
        ("recall --budget time=1", 2, "budget: write flops=25%, keys=512 or keys=25%"),
        ("recall --budget flops=0%", 2, "above 0% and at most 100%"),
        ("recall --budget flops=200%", 2, "above 0% and at most 100%"),
        ("recall --budget keys=0.1", 2, r"the nearest is window\(left=0\): keys=1"),
        ("recall --budget keys=3 keys=3", 2, "budgets: give at least one, each once"),
        ("recall --rungs 9", 2, "rungs: must be from 1 to"),
        ("recall --steps 0", 2, "must be a whole number of at least 1"),
        ("recall --bugdet keys=3", 2, "Did you mean '--budget'"),
        ("recall --learning-rate 0", 2, "learning_rate: must be positive"),
    ],
)
def test_what_cannot_be_searched_is_one_line(run, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    refuses(run("search", *words.split()), code, message)
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_too_short_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(b"a few words " * 10)
    refuses(run("search", "text", "--length", "64"), 3, "a shorter context")
    (tmp_path / "text").write_bytes(b"")
    refuses(run("search", "text"), 3, "is empty")
