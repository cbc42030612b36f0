"""Which model `asterism explore` is started with, and what is refused before anything is served."""

import json

import pytest
from command_line import refuses

from asterism.explore.subject import Subject


@pytest.fixture
def folders(tmp_path):
    for name, file in (("run", "run.json"), ("model", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "text").write_text("a text")
    return tmp_path


def test_the_server_is_told_the_model(run, folders, monkeypatch):
    told = []
    monkeypatch.setattr("asterism.explore.server.serve", lambda port, patience, ready, subject: told.append(subject))
    text = folders / "text"
    assert run("explore", folders / "run", "--text", text, "--no-browser").code == 0
    assert run("explore", "--model", folders / "model", "--pattern", "causal()", "--no-browser").code == 0
    assert run("explore", "--no-browser").code == 0
    first = Subject(run=str(folders / "run"), text=str(text))
    assert told == [first, Subject(model=str(folders / "model"), pattern="causal()"), None]
    assert Subject.from_json(first.to_json()) == first
    assert json.loads(first.to_json())["text"] == str(text)


def test_what_does_not_go_together_is_refused(run, folders):
    model, text = folders / "model", folders / "text"
    refuses(run("explore", folders / "run", "--model", model), 2, "not both")
    refuses(run("explore", "--text", text), 2, "--text needs a run or --model")
    refuses(run("explore", folders / "run", "--pattern", "causal()"), 2, "--pattern needs --model")
    refuses(run("explore", folders / "run", "--text", folders / "nowhere"), 3, "there is no file")
    refuses(run("explore", folders / "nowhere"), 4, "is not a run folder")
    refuses(run("explore", "--model", folders / "nowhere"), 4, "is not the folder of a model")
