"""The page on fine-tuning, from its first line to its last: what it runs works, and what it shows is what comes out."""

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from repository import docs_page

from asterism.cli.main import main
from asterism.training.settings.registry import TASKS

TEXT = docs_page("finetuning.md").read_text()
BLOCKS = re.findall(r"(?<! -->\n)^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
"""All blocks but those under a comment that says why they are not run."""

pytestmark = pytest.mark.model


def rounded(text: str) -> str:
    """Its numbers with two decimals: the rest depends on the machine."""
    return re.sub(r"\d\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.1f}", text)


def piped(command: str, monkeypatch, capsys) -> None:
    """`cat FILE | asterism ... | head -N`, in this process."""
    before, verb, after = (shlex.split(part) for part in command.split("|"))
    assert before[0] == "cat" and after[0] == "head"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(before[1]).read_bytes())))
    assert main(verb[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= int(after[1][1:])


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    for package in ("rouge_score", "sacrebleu"):  # the extra `seq2seq`
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "finetuning.md", "exec"), namespace)
        elif kind == "sh":
            for command in text.splitlines():
                if "|" in command:
                    piped(command, monkeypatch, capsys)
                else:
                    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
        else:
            assert kind == "text"
            assert rounded(Path("predicted.csv").read_text()) == rounded(text)
    assert namespace["report"].scores["accuracy"] == 1.0
    for folder, wanted in (("notes", "summary"), ("short", "target")):
        first = json.loads(Path(f"runs/{folder}/predictions.jsonl").read_text().splitlines()[0])
        assert {wanted, f"predicted_{wanted}"} < first.keys()
        assert first[wanted] in Path(f"runs/{folder}/report.md").read_text()
    summaries = [json.loads(line) for line in Path("summaries.jsonl").read_text().splitlines()]
    assert len(summaries) == 400 and all("predicted_summary" in one for one in summaries)
    written = [line.split("\t") for line in Path("written.txt").read_text().splitlines()]
    assert [one for one, _ in written] == Path("notes.long").read_text().splitlines()
    lines = Path("runs/reviews/predictions.jsonl").read_text().splitlines()
    assert len(lines) == 40 and all("predicted_label" in json.loads(line) for line in lines)


def test_the_table_names_every_task_and_its_formats():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", TEXT, re.MULTILINE)
    assert [name for name, _ in rows] == list(TASKS)
    names = {"JSONL": "jsonl", "CSV": "csv", "CoNLL": "conll", "SQuAD's JSON": "json", "lines of text": "text"}
    names |= {"FASTA": "fasta", "lines of bases": "sequences", "intervals of a genome": "intervals"}
    for name, read in rows:
        assert {names[one] for one in names if one in read} == set(TASKS.load(name).examples.formats)
