"""The page on several devices and that on imports, whose blocks need more than a folder of their own."""

import re
import shlex
from pathlib import Path

import pytest
from repository import docs_page

from asterism.cli.main import main
from asterism.patterns.text import VOCABULARY

WITH_OUTPUT = ("devices.md",)
WITH_PYTHON = ("devices.md",)


def blocks(page: str, kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", docs_page(page).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("page", WITH_OUTPUT)
def test_the_output_shown_is_the_output(page: str, capsys: pytest.CaptureFixture[str]):
    for text in blocks(page, "console"):
        command, _, expected = text.removeprefix("$ ").partition("\n")
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_runs(page: str):
    namespace: dict[str, object] = {}
    for text in blocks(page, "python"):
        exec(compile(text, page, "exec"), namespace)


def test_the_table_names_every_pattern():
    table = "\n".join(line for line in docs_page("patterns.md").read_text().splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`(\w+)[(`]", table))
    assert named - VOCABULARY.keys() == set()
    assert VOCABULARY.keys() - named == {"merge", "split_heads"}


@pytest.mark.model
def test_the_commands_about_imports_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """With a tiny BERT in the place of the real one. Of training, what it would cost; so nothing is there to tune."""
    from small_encoders import save_tiny_bert  # needs transformers

    monkeypatch.chdir(tmp_path)
    save_tiny_bert(tmp_path / "bert-base-uncased")
    commands = re.findall(r"^    asterism (\w+) (.*)$", docs_page("import.md").read_text(), re.MULTILINE)
    assert [verb for verb, _ in commands] == ["import", "train", "finetune"]
    train = shlex.split(commands[1][1])
    Path(train[train.index("--data") + 1]).touch()  # which must be there, also to be told the cost
    for verb, words in commands[:2]:
        assert main([verb, *shlex.split(words), *(["--dry-run"] if verb == "train" else [])]) == 0
    assert main(["finetune", *shlex.split(commands[2][1])]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("asterism: error: model: runs/long-bert is no folder of a model or a run")
