"""A way to share a sequence is two files: no other code asks which it is, and no other calls torch.distributed."""

import ast
from pathlib import Path

import pytest

import asterism
from asterism import parallel
from asterism.compiler.devices.ways import WAYS

SOURCE = Path(asterism.__file__).parent
CORE = ("patterns", "compiler", "kernels", "parallel", "layers", "models")
FILES = [file for folder in CORE for file in sorted((SOURCE / folder).rglob("*.py"))]


def names(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return modules | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_way_is_two_files_of_one_name(way):
    name = f"{way.__module__.rpartition('.')[2]}.py"
    assert (SOURCE / "compiler" / "devices" / "ways" / name).exists()
    assert (Path(parallel.__file__).parent / "ways" / name).exists()


def test_no_other_code_asks_which_way_it_is():
    """`describe` prints what two ways that ignore patterns would move, as a yardstick."""
    ways = {way.__name__ for way in WAYS}
    asking = {file.relative_to(SOURCE).as_posix() for file in FILES if ways & names(file) and "ways" not in file.parts}
    assert asking == {"compiler/devices/describe.py"}


def test_one_file_calls_torch_distributed():
    calling = [file for file in FILES if any(module.startswith("torch.distributed") for module in imported(file))]
    assert [file.relative_to(SOURCE).as_posix() for file in calling] == ["parallel/collectives.py"]


def test_layers_and_models_name_no_rank():
    """They ask `SequenceParallel` for their own tokens and their turn, and need not index by a rank.

    The adapter of the Trainer deals whole batches out to ranks, as a training loop does.
    """
    naming = {
        file.relative_to(SOURCE).as_posix()
        for file in FILES
        if {"layers", "models"} & set(file.relative_to(SOURCE).parts)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("rank", "ranks")
    }
    assert naming == {"models/drop_in/trainer.py"}
