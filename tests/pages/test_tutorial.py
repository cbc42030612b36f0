"""The tutorial from top to bottom: every block runs, and every output shown is what comes out."""

import contextlib
import io
import re
import shlex

import pytest
from repository import docs_page

from asterism.cli.main import main

TEXT = docs_page("tutorial.md").read_text()
BLOCKS = re.findall(r"^(?:<!-- (not run: [^\n]+) -->\n)?```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
DECIMALS = re.compile(r"\d\.\d\d$", re.MULTILINE)
"""Accuracies end a line. Their last digits depend on the machine."""


def test_what_is_not_run_is_the_installation_alone():
    assert [(reason, text) for reason, _, text in BLOCKS if reason] == [
        ("not run: installs packages", 'pip install ".[train]"\n')
    ]
    assert {kind for reason, kind, _ in BLOCKS if not reason} == {"console", "python", "text"}


def test_commands_print_what_is_shown(capsys: pytest.CaptureFixture[str]):
    shown = [text for _, kind, text in BLOCKS if kind == "console"]
    assert len(shown) == 4
    for text in shown:
        command, _, expected = text.removeprefix("$ ").partition("\n")
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.model
def test_the_python_prints_what_is_shown():
    namespace: dict[str, object] = {}
    printed, compared = "", 0
    for _, kind, text in BLOCKS:
        if kind == "python":
            assert printed == ""  # what a block prints stands below it
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, "tutorial.md", "exec"), namespace)
            printed = output.getvalue()
        elif kind == "text":
            assert DECIMALS.sub("", printed) == DECIMALS.sub("", text)
            found, expected = (list(map(float, DECIMALS.findall(some))) for some in (printed, text))
            assert found == pytest.approx(expected, abs=0.08)
            printed, compared = "", compared + 1
    assert printed == "" and compared == 4
