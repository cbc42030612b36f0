"""What the pages of docs/ show is true: their output is the output, their code runs, their links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from repository import DOCS, docs_page

from asterism.cli.main import main
from asterism.patterns.text import VOCABULARY

WITH_OUTPUT = ("theory.md", "turing-machines.md", "howto/devices.md")
WITH_PYTHON = (*WITH_OUTPUT, "patterns.md", pytest.param("models.md", marks=pytest.mark.model))


def blocks(page: str, kind: str) -> list[str]:
    text = docs_page(page).read_text()
    found = re.findall(rf"(?<!-->\n)^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)  # but those not to be run
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
    commands = re.findall(r"^asterism (\w+) (.*)$", docs_page("import.md").read_text(), re.MULTILINE)
    assert [verb for verb, _ in commands] == ["import", "train", "finetune"]
    train = shlex.split(commands[1][1])
    Path(train[train.index("--data") + 1]).touch()  # which must be there, also to be told the cost
    for verb, words in commands[:2]:
        assert main([verb, *shlex.split(words), *(["--dry-run"] if verb == "train" else [])]) == 0
    assert main(["finetune", *shlex.split(commands[2][1])]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("asterism: error: model: runs/long-bert is not the folder of a model or a run")


@pytest.mark.parametrize("page", sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")))
def test_the_links_lead_somewhere(page: str):
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text())
    assert [
        link for link in links if not link.startswith("http") and not (DOCS / page).parent.joinpath(link).exists()
    ] == []
