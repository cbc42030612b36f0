"""Public functions of arrays give shapes and dtypes, as benchmarks/docstrings.py reads them."""

import importlib

import pytest
from repository import BENCHMARKS, ROOT


@pytest.fixture
def docstrings(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("docstrings")


def test_functions_of_arrays_give_shapes_and_dtypes(docstrings):
    lacking = list(docstrings.lacking(ROOT / "src" / "asterism"))
    assert not lacking, "\n".join(lacking)


CASES = {
    "def f(x: Tensor): ...": "f: shape and dtype",
    "def f(x: Tensor):\n    'Of float32.'": "f: shape",
    "def f(x: 'np.ndarray') -> int:\n    'Of [B, N].'": "f: dtype",
    "def f(x: Integers):\n    'Sorted.'": "f: shape",
    "def f() -> tuple[int, Tensor]:\n    'Two.'": "f: shape and dtype",
    "class A:\n    'Rows.'\n    def f(self, x: Tensor): ...": "A.f: shape and dtype",
    "def f(x: Tensor):\n    'Of float32 [B, N].'": None,
    "def f(x: Integers):\n    'Of [B, N].'": None,
    "def f(x: int): ...": None,
    "def _f(x: Tensor): ...": None,
    "class A:\n    'float32 [B, N] everywhere.'\n    def f(self, x: Tensor): ...": None,
    "class A:\n    def f(self, x: Tensor):\n        'float32 [B]'\nclass B(A):\n    def f(self, x: Tensor): ...": None,
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_the_reader_of_docstrings_finds_what_is_missing(text, expected, docstrings, tmp_path):
    (tmp_path / "a.py").write_text(text)
    found = [line.partition(" ")[2] for line in docstrings.lacking(tmp_path)]
    assert found == ([] if expected is None else [expected])
