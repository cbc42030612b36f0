"""`asterism evaluate --ruler`: a run is asked from end to end, and what cannot be asked is one line."""

import json

import pytest
from command_line import refuses

pytestmark = pytest.mark.model

ASKED = ("--ruler", "vt", "--lengths", "400", "--samples", "1")


def test_a_run_is_asked_and_resumed(run, tiny_run, tmp_path):
    record = tmp_path / "record.json"
    first = run("evaluate", tiny_run, *ASKED, "--record", record)
    assert first.code == 0, first.err
    heading, row = first.out.splitlines()
    assert heading.split()[:4] == ["task", "tokens", "samples", "recall"]
    assert row.split()[:4] == ["vt", "400", "1", "0.000"]
    refuses(run("evaluate", tiny_run, *ASKED, "--record", record), 4, "exists; add --resume")
    more = run("evaluate", "--ruler", "vt", "fwe", *ASKED[2:], "--record", record, "--resume", "--json", tiny_run)
    assert [cell["task"] for cell in json.loads(more.out)["cells"]] == ["vt", "fwe"]
    assert "fwe, 400 tokens: 1 of 1 samples" in more.err and "vt" not in more.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--samples 3", 2, "--samples needs --ruler TASK"),
        ("--pattern native", 2, "--pattern needs --ruler TASK"),
        ("--seed 0", 2, "--seed needs --ruler TASK"),
        ("--ruler vt --limit 3", 2, "--limit is not for --ruler"),
        ("--ruler vt --minimum-context 3", 2, "--minimum-context is not for --ruler"),
        ("--ruler vt --dense-exchange", 2, "--dense-exchange is not for --ruler"),
        ("--ruler vt --resume", 2, "--resume needs --record"),
        ("--ruler", 2, "--ruler: expected at least one argument"),
        ("--ruler vtt", 2, r"there is no task 'vtt'\. Did you mean 'vt'\?"),
        ("--ruler vt --lengths 0", 2, "must be a whole number of at least 1, got '0'"),
        ("--ruler vt --lengths 5", 2, "5 is not between 128 and 131,072 tokens"),
        ("--ruler vt --lengths 256 4096", 2, "made for 1,024 tokens, which is less than 4,096"),
        ("--ruler vt --lengths 256 --pattern native", 2, "is a run, which has its own patterns"),
        ("--ruler vt --lengths 256 --record here.txt", 2, r"the file name must end in \.json"),
    ],
)
def test_what_cannot_be_asked_is_one_line(run, tiny_run, words, code, message):
    refuses(run("evaluate", tiny_run, *words.split()), code, message)


def test_a_folder_without_a_model_is_refused(run, tmp_path):
    refuses(run("evaluate", tmp_path, "--ruler", "vt"), 4, "neither config.json nor run.json")


def test_several_processes_are_refused(run, tiny_run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--ruler is the work of one process" in run("evaluate", tiny_run, *ASKED).err
