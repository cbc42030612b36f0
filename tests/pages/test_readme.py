"""What the README shows is true: its Python runs, its output is the output, its commands and files exist."""

import math
import re
import shlex
import tomllib
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import pytest
from repository import ROOT

from asterism.cli.main import main
from asterism.training.settings.parallel import mesh_sizes

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for kind, text in BLOCKS if kind == "sh" for line in (raw.split(" #")[0].strip() for raw in text.splitlines())
]


def test_every_block_is_of_a_known_kind():
    assert {kind for kind, _ in BLOCKS} == {"console", "python", "sh"}


def test_the_python_runs():
    namespace: dict[str, object] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "README.md", "exec"), namespace)


def test_the_output_shown_is_the_output(capsys: pytest.CaptureFixture[str]):
    for kind, text in BLOCKS:
        if kind == "console":
            command, _, expected = text.removeprefix("$ ").partition("\n")
            assert main(shlex.split(command)[1:]) == 0
            assert capsys.readouterr().out == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, verb, *rest = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    if "--data" in rest and "train" in (verb, *rest):  # what is trained on must be there, also to be told the cost
        Path(rest[rest.index("--data") + 1]).touch()
    if program == "make":
        assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert (verb, *rest) == ("install", ".[train]") and "train" in extras
    elif program == "torchrun":
        start = rest.index("asterism")
        mesh = rest.index("--parallel")
        assert math.prod(mesh_sizes(rest[mesh + 1]).values()) == int(rest[rest.index("--nproc-per-node") + 1])
        assert main([*rest[start + 1 : mesh], *rest[mesh + 2 :], "--dry-run"]) == 0
    elif verb in ("show", "plan", "train"):
        assert main([verb, *rest, *(["--dry-run"] if verb == "train" else [])]) == 0
    elif verb == "finetune":
        assert main([verb, *rest]) == 4  # all there is to complain of is that the model is not there
    else:
        import_module(f"asterism.cli.{verb}{'_' * iskeyword(verb)}")._parser().parse(rest)


def test_it_is_read_in_one_sitting():
    assert len(README.splitlines()) <= 150


def test_the_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
