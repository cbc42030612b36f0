"""The page on reports: its commands run, and its limits are those of the code."""

import re
import shlex
from pathlib import Path

from repository import docs_page
from run_folders import causal, finished, write_run

import asterism.report
from asterism.cli.main import main
from asterism.report import LARGEST_PAGE
from asterism.report.compared import MOST_RUNS
from asterism.report.described import MOST_PREDICTIONS
from asterism.report.predictions import MOST_PREDICTED
from asterism.report.reading import MOST_BYTES

TEXT = docs_page("report.md").read_text()


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "second", causal(seed=3))
    (block,) = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for command in block.splitlines():
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["compared.html", "report.html"]


def test_the_limits_are_those_of_the_code():
    named = re.findall(r"^\| (\d+) (MB|predictions|MiB|runs)", TEXT, re.MULTILINE)
    assert [(int(number), unit) for number, unit in named] == [
        (LARGEST_PAGE // 10**6, "MB"),
        (MOST_PREDICTIONS, "predictions"),
        (MOST_BYTES // 2**20, "MiB"),
        (MOST_PREDICTED // 2**20, "MiB"),
        (MOST_BYTES // 2**20, "MiB"),
        (MOST_RUNS, "runs"),
    ]


def test_the_parts_are_those_of_the_page():
    template = (Path(asterism.report.__file__).parent / "page.html").read_text()
    for names in re.findall(r"^\| ([A-Z][\w, ]+) \|", TEXT, re.MULTILINE):
        for name in names.split(", "):
            assert f">{name}</h" in template, name
