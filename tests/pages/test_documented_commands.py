"""Every command in a block of README, CONTRIBUTING and docs is taken by the parser of its verb."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import pytest
from repository import ROOT

from asterism.cli.main import VERBS

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
COMMAND = re.compile(r"(?:^|[ |])asterism (?P<verb>[a-z]+)(?P<words>(?: .*)?)$")


def commands(page: Path) -> Iterator[str]:
    """The lines of fenced blocks of commands, and of blocks that are indented, with those they go on in."""
    fence, whole = "", ""
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip().removeprefix("```") or "text"
        elif fence in ("sh", "console", "bash") or (not fence and line.startswith("    ")):
            whole += line.strip().removeprefix("$ ")
            if whole.endswith("\\"):
                whole = whole.removesuffix("\\")
                continue
            if COMMAND.search(whole.split(" #")[0]):
                yield whole.split(" #")[0]
            whole = ""


ALL = [pytest.param(line, id=f"{page.name}: {line[:80]}") for page in PAGES for line in commands(page)]


def test_commands_are_found():
    assert len(ALL) > 60


@pytest.mark.parametrize("line", ALL)
def test_the_parser_takes_it(line: str):
    found = COMMAND.search(line)
    assert found is not None and found["verb"] in VERBS
    module = import_module(f"asterism.cli.{found['verb']}{'_' * iskeyword(found['verb'])}")
    given = list(words_of(found["words"]))
    if hasattr(module, "read_arguments"):
        module.read_arguments(given)
    else:
        module._parser().parse(given)


def words_of(text: str) -> Iterator[str]:
    """The words up to the next command of a shell, without those that stand for others, or need a run or a file of
    settings that is there."""
    reading = shlex.shlex(text, posix=True, punctuation_chars=True)
    reading.whitespace_split, reading.commenters = True, ""
    before = ""
    for word in reading:
        if set(word) <= set("|<>&;"):
            return
        if word not in ("...", "--resume", "--config") and before != "--config":
            yield word
        before = word
