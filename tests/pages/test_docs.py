"""The table of patterns names every pattern, and the commands of the page on imports convert a checkpoint."""

import re
import shlex
from pathlib import Path

import pytest
from repository import docs_page

from asterism.cli.main import main
from asterism.patterns.text import VOCABULARY


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
    commands = re.findall(r"^asterism (\w+) (.*)$", docs_page("import.md").read_text(), re.MULTILINE)
    assert [verb for verb, _ in commands] == ["import", "train", "finetune", "train"]
    train = shlex.split(commands[1][1])
    Path(train[train.index("--data") + 1]).touch()  # which must be there, also to be told the cost
    for verb, words in commands[:2]:
        assert main([verb, *shlex.split(words), *(["--dry-run"] if verb == "train" else [])]) == 0
    assert main(["finetune", *shlex.split(commands[2][1])]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("asterism: error: model: runs/long-bert is not the folder of a model or a run")
