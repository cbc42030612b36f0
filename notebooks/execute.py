"""Execute notebooks and store what they print and draw: `make notebooks`.

    python notebooks/execute.py [NOTEBOOK ...]

Without names, all notebooks of this folder. Each runs in an empty folder, with the library of this checkout. A cell
that raises an error ends the run, and its file stays as it was. Needs nbclient and ipykernel (the extra `dev`).

A cell with the tag "measured" prints times or scores of this machine; all other text is the same everywhere, and
`tests/pages/test_notebooks.py` compares it.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
SECONDS = 600
"""The most that a cell may take, on a machine that does other work besides."""


def notebooks() -> list[Path]:
    """The notebooks, in reading order."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, variables: Mapping[str, str] | None = None) -> NotebookNode:
    """The notebook with the outputs of this machine; `variables` are added to the environment.

    Raises CellExecutionError where a cell raises, CellTimeoutError where one takes longer than `SECONDS`.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": empty}},
        )
        client.execute(env=_environment() | dict(variables or {}))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = NotebookNode(name="python")  # its version changes from machine to machine
    return notebook


def is_measured(cell: NotebookNode) -> bool:
    """Whether what the cell prints depends on the machine."""
    return "measured" in cell.metadata.get("tags", ())


def _environment() -> dict[str, str]:
    """This process's, with the library of this checkout in front."""
    library = str(FOLDER.resolve().parent / "src")
    paths = os.pathsep.join(filter(None, (library, os.environ.get("PYTHONPATH"))))
    quiet = "ignore:IProgress not found"  # tqdm's advice to install ipywidgets, where transformers is imported
    return os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": quiet}


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one: where a stream is cut depends on the clock."""
    kept: list[NotebookNode] = []
    for one in outputs:
        if kept and one.output_type == "stream" == kept[-1].output_type and one.name == kept[-1].name:
            kept[-1].text += one.text
        else:
            kept.append(one)
    return kept


def main() -> None:
    """Execute and store, one after the other; print the seconds that each took."""
    for path in [Path(name) for name in sys.argv[1:]] or notebooks():
        start = time.perf_counter()
        notebook = executed(path)
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
