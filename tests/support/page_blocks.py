"""The blocks of a page of docs/ or of README.md: what stands in them, and what running them means.

A page runs from top to bottom: Python in one namespace, commands in one folder. A block that cannot run in a test
has the comment `<!-- not run: REASON -->` on the line above it.
"""

import io
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from repository import DOCS, ROOT

from asterism.cli.main import main

PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
PYTHON, COMMANDS, SESSION = ("python", "py"), ("sh", "bash", "shell"), ("console",)
READ = ("", "text", "json", "yaml", "csv", "c", "cpp", "diff", "ini", "toml")
"""Kinds of blocks that show something, and are not run."""

_REASON = re.compile(r"^<!-- not run: (\S.*\S) -->$")
_TOOLS = {"cat", "cp", "cut", "head", "ls", "mkdir", "mv", "printf", "rm", "tail", "wc"}
"""Programs of every system that pages run as they are."""
_CHECKED = {
    "accelerate",
    "cd",
    "export",
    "git",
    "hf",
    "make",
    "pip",
    "python",
    "source",
    "srun",
    "sbatch",
    "torchrun",
} | {
    *("llama-cli", "vllm"),
}
"""Programs whose commands are checked and not run: they install, take minutes, or need several processes."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its text, its first line on the page, and why it is not run (else None)."""

    kind: str
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start, kind = None, ""
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start, kind = number, line.removeprefix("```").strip()
            continue
        found = _REASON.match(lines[start - 1]) if start else None
        text = "".join(f"{one}\n" for one in lines[start + 1 : number])
        yield Block(kind, text, start + 1, found and found[1])
        start = None
    assert start is None, f"{page}: the block that begins in line {(start or 0) + 1} has no end"


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that is shown below it (of a console block, else "")."""
    if block.kind not in SESSION:
        whole = block.text.replace("\\\n", " ").splitlines()
        return [(line.split(" #")[0].strip(), "") for line in whole if line.strip() and not line.startswith("#")]
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not parts[0], f"line {block.line}: a console block begins with `$ `"
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts[1:])]


class Reader:
    """Runs a page as somebody would who reads it: in one folder, which is the current one, and in one namespace."""

    def __init__(self, page: Path, monkeypatch, capsysbinary) -> None:
        self.page, self.monkeypatch, self.capsysbinary = page, monkeypatch, capsysbinary
        self.namespace: dict[str, object] = {"__name__": page.stem}

    def run(self) -> None:
        """Run every block that is not excused, and check the others."""
        for block in blocks(self.page):
            self.one(block)

    def one(self, block: Block) -> None:
        """Run a block, or check it if there is a reason not to."""
        where = f"{self.page.name}, line {block.line}"
        if block.kind in PYTHON:
            code = compile("\n" * block.line + block.text, str(self.page), "exec")
            if block.reason is None:
                exec(code, self.namespace)
                self.capsysbinary.readouterr()
        elif block.kind in (*COMMANDS, *SESSION):
            for command, shown in commands(block):
                if block.reason is not None:
                    check(command)
                    continue
                printed = self.command(command)
                assert block.kind not in SESSION or printed == shown, f"{where}: {command}"
        else:
            assert block.kind in READ, f"{where}: blocks of the kind {block.kind!r} are not known"

    def command(self, line: str) -> str:
        """What a command prints to stdout; it must succeed."""
        if shlex.split(line)[0] in _CHECKED:
            check(line)
            return ""
        stages = [stage.strip() for stage in _outside_quotes(line, "|")]
        text = b""
        for stage in stages:
            text = self._stage(stage, text)
        return text.decode(errors="replace")

    def _stage(self, stage: str, given: bytes) -> bytes:
        (words, *target) = (part.strip() for part in _outside_quotes(stage, ">"))
        program, *rest = shlex.split(words)
        if program == "asterism":
            self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
            code = main(rest)
            printed, err = self.capsysbinary.readouterr()  # what a model of bytes writes need not be UTF-8
            assert code == 0, f"{stage}: exit code {code}\n{err.decode()}"
        else:
            assert program in _TOOLS, f"{stage}: {program} is no program that pages run"
            done = subprocess.run(["sh", "-c", words], input=given, capture_output=True, check=False)
            assert done.returncode == 0, f"{stage}: {done.stderr.decode()}"
            printed = done.stdout
        if target:
            Path(shlex.split(target[0])[0]).write_bytes(printed)
            return b""
        return printed


def _outside_quotes(line: str, mark: str) -> list[str]:
    """The line cut at a character where it stands outside of quotes."""
    parts, quote = [""], ""
    for letter in line:
        if letter == quote:
            quote = ""
        elif not quote and letter in "\"'":
            quote = letter
        if letter == mark and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


# --- commands that are not run ---------------------------------------------------------------------------------------


def check(line: str) -> None:
    """Whether a command that is not run could be: its words, and the targets, extras and scripts that it names."""
    for stage in _outside_quotes(line, "|"):
        _check_stage(stage)


def _check_stage(line: str) -> None:
    program, *rest = dropwhile(re.compile(r"[A-Z_]+=").match, shlex.split(line))  # but `OMP_NUM_THREADS=1`
    if program == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert targets and set(targets) <= set(known), f"{line}: make has the targets {', '.join(known)}"
    elif program == "pip":
        asked = {extra for word in rest for found in re.findall(r"\[(.*?)\]", word) for extra in found.split(",")}
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert rest[0] == "install" and asked <= set(known), f"{line}: the extras are {', '.join(known)}"
    elif program == "python":
        scripts = [word for word in rest if word.startswith("benchmarks/")]
        assert all((ROOT / script).exists() for script in scripts), f"{line}: the script does not exist"
    else:
        assert program in {"asterism", *_TOOLS, *_CHECKED}, f"{line}: {program} is no program that pages name"
