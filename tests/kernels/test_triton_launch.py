"""Launches of Triton kernels, with one made up in place of Triton's: what is compiled, and what is started again."""

import pytest
import torch

from asterism.kernels.triton import launch as launching
from asterism.kernels.triton.launch import launch


class Kernel:
    """Compiles for what Triton compiles for, and writes down what was compiled and what was started."""

    arg_names = ("x", "first", "second", "WIDTH")
    constexprs = (3,)

    def __init__(self) -> None:
        self.compiled, self.started = [], []

    def __getitem__(self, grid):
        def run(**arguments):
            self.compiled.append(arguments)
            return Compiled(self, len(self.compiled) - 1)

        return run


class Compiled:
    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel, self.number = kernel, number

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.started.append((self.number, grid, arguments))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "_COMPILED", {})
    monkeypatch.setattr(launching, "_CONSTANTS", {})
    return Kernel()


X = torch.zeros(64)


def test_equal_calls_are_compiled_once_and_started_with_their_own_arguments(kernel):
    for first in (32, 48, 160):
        launch(kernel, 7, {"x": X, "first": first, "second": 3, "WIDTH": 8, "num_warps": 4})
    assert len(kernel.compiled) == 1
    assert kernel.started == [(0, (7, 1, 1), (X, 48, 3, 8)), (0, (7, 1, 1), (X, 160, 3, 8))]
    launch(kernel, 0, {"x": X, "first": 5, "second": 3, "WIDTH": 8, "num_warps": 4})
    assert len(kernel.compiled) == 1 and len(kernel.started) == 2


@pytest.mark.parametrize(
    "change",
    (
        {"first": 33},
        {"first": 1},
        {"first": 2**35},
        {"first": None},
        {"second": 2.5},
        {"WIDTH": 9},
        {"num_warps": 8},
        {"x": X.half()},
        {"x": X[1:]},
    ),
    ids=str,
)
def test_what_triton_would_compile_anew_is_compiled_anew(kernel, change):
    asked = {"x": X, "first": 32, "second": 3, "WIDTH": 8, "num_warps": 4}
    for arguments in (asked, asked | change):
        launch(kernel, 1, arguments)
    assert len(kernel.compiled) == 2 and not kernel.started


def test_the_order_of_arguments_means_nothing(kernel):
    """Of two callers with orders of their own, the second's odd number must not pass for a multiple of 16."""
    launch(kernel, 1, {"x": X, "first": 32, "second": 3, "WIDTH": 8})
    launch(kernel, 1, {"x": X, "second": 32, "first": 3, "WIDTH": 8})
    assert len(kernel.compiled) == 2
    launch(kernel, 1, {"x": X, "WIDTH": 8, "second": 5, "first": 64})
    assert kernel.started == [(0, (1, 1, 1), (X, 64, 5, 8))]


def test_what_compiles_nothing_is_called_each_time(kernel, monkeypatch):
    """As Triton's interpreter."""
    monkeypatch.setattr(Compiled, "__new__", lambda *_: None)
    for _ in range(2):
        launch(kernel, 1, {"x": X, "first": 32, "second": 3, "WIDTH": 8})
    assert len(kernel.compiled) == 2 and not kernel.started
