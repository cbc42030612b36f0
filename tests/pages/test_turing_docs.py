"""The page on Turing machines is true of machines and of rounding; test_docs.py checks what it shows."""

import json
import re
import shlex

import pytest
from repository import docs_page

from asterism.cli.main import main
from asterism.theory import TuringMachine
from asterism.theory.machines.machine import sample_names

TEXT = docs_page("turing-machines.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| `asterism (simulate [^`]+)` \| (.+) \|$", TEXT, re.MULTILINE)


def test_the_machine_and_the_names_are_the_samples():
    (machine,) = (text for kind, text in BLOCKS if kind == "text")
    assert TuringMachine.parse(machine, "increment") == TuringMachine.load("increment")
    (listed,) = re.findall(r"A machine is a sample \((.*?)\)", TEXT, re.DOTALL)
    assert sorted(re.findall(r"`([^`]+)`", listed)) == list(sample_names())


@pytest.mark.parametrize(
    ("command", "time"), [pytest.param(*row, marks=pytest.mark.slow if "11000" in row[0] else ()) for row in ROWS]
)
def test_the_times_of_rounding(command: str, time: str, capsys: pytest.CaptureFixture[str]):
    assert main([*shlex.split(command), "--json"]) == 0
    wrong_at = json.loads(capsys.readouterr().out)["wrong_at"]
    assert (f"{wrong_at:,}" if wrong_at else "not within its steps") == time


def test_the_table_is_read():
    assert len(ROWS) == 6
