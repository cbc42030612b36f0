"""Notebooks are whole, show what they compute, and compute it again: slow tests execute them."""

import ast
import re
import resource
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from repository import ROOT, docs_page

FOLDER = ROOT / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.name for path in PATHS]

MOST_BYTES = 400_000
MOST_SECONDS = 120
"""CPU time of a notebook on one thread: on two cores it takes less by the clock."""

each = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tree(cell: NotebookNode) -> ast.Module:
    return ast.parse(cell.source)


def text_of(output: NotebookNode) -> str:
    """What an output shows as text: nothing for pictures, whose last bits depend on fonts and versions."""
    if output.output_type == "stream":
        return output.text
    return "" if "image/png" in output.data else output.data.get("text/plain", "")


def kinds(cell: NotebookNode) -> list[str]:
    """The outputs of a cell, by what they are."""
    return [
        one.name if one.output_type == "stream" else "picture" if "image/png" in one.data else "value"
        for one in cell.outputs
    ]


def test_there_are_five_in_reading_order():
    assert [name[:3] for name in NAMES] == ["01-", "02-", "03-", "04-", "05-"]


@each
def test_it_is_a_valid_small_notebook(path: Path):
    nbformat.validate(read(path))
    assert path.stat().st_size < MOST_BYTES


@each
def test_its_outputs_are_stored_and_without_errors(path: Path):
    for number, cell in enumerate(code(read(path)), start=1):
        assert cell.execution_count == number, "run `make notebooks`"
        assert "stderr" not in kinds(cell)
        assert not [one for one in cell.outputs if one.output_type == "error"]


@each
def test_it_names_no_folder_of_a_machine(path: Path):
    assert re.findall(r"(?<![\w.:/])/(?:work|home|root|tmp|usr|Users)/", path.read_text(encoding="utf-8")) == []


@each
def test_it_uses_public_names_only(path: Path):
    for cell in code(read(path)):
        for node in ast.walk(tree(cell)):
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_") or node.attr.endswith("__"), node.attr
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "asterism":
                assert not any(part.startswith("_") for part in node.module.split("."))
                module = import_module(node.module)
                for name in node.names:
                    assert name.name in getattr(module, "__all__", dir(module)), f"{node.module}.{name.name}"


@each
def test_it_checks_its_claims_and_its_pictures_have_captions(path: Path):
    cells = read(path).cells
    asserts = [node for cell in code(read(path)) for node in ast.walk(tree(cell)) if isinstance(node, ast.Assert)]
    assert len(asserts) >= 3
    shown = [number for number, cell in enumerate(cells) if cell.cell_type == "code" and "picture" in kinds(cell)]
    assert len(shown) >= 1
    for number in shown:
        caption = cells[number + 1]
        assert caption.cell_type == "markdown" and re.match(r"\*[^*]+\*", caption.source), cells[number].source


@each
def test_its_links_lead_somewhere(path: Path):
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose)
    assert links and "Where to go next" in prose
    assert [link for link in links if not link.startswith("http") and not (FOLDER / link).exists()] == []


def test_the_page_lists_them_all():
    assert re.findall(r"\]\(\.\./\.\./notebooks/([^)]+\.ipynb)\)", docs_page("notebooks.md").read_text()) == NAMES


@pytest.mark.slow
@each
def test_it_runs_and_prints_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    execute = import_module("execute")
    before = children_seconds()
    again = execute.executed(path, {"OMP_NUM_THREADS": "1"})
    assert children_seconds() - before < MOST_SECONDS
    for stored, now in zip(code(read(path)), code(again), strict=True):
        assert kinds(now) == kinds(stored), stored.source
        if not execute.is_measured(stored):
            shown = [[text_of(one) for one in cell.outputs] for cell in (stored, now)]
            assert shown[0] == shown[1], stored.source


def children_seconds() -> float:
    """CPU time of the processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_text_that_depends_on_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A changed output would be seen: execution gives the true one."""
    monkeypatch.syspath_prepend(FOLDER)
    wrong = nbformat.v4.new_output("stream", name="stdout", text="3\n")
    cell = nbformat.v4.new_code_cell("import asterism\nprint(1 + 1)", outputs=[wrong])
    path = tmp_path / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    (now,) = code(import_module("execute").executed(path))
    assert [text_of(one) for one in now.outputs] == ["2\n"]
    assert sys.modules["execute"].is_measured(now) is False
