"""The libraries of a wheel: which one is taken, what makes one unfit, and what serves instead.

Nothing is compiled here: the libraries are copies of the one that this process uses, and so is what the stand-in for
the compiler makes (test_kernels_cache.py). tests/house/test_wheel.py builds a real wheel.
"""

import ctypes
import hashlib
import json
import logging
import platform
import shutil
from pathlib import Path

import pytest
from kernel_cases import has_compiler
from test_kernels_cache import found, runs  # noqa: F401  (a fixture)

from asterism.errors import KernelError
from asterism.kernels.cpu import build, shipped, sources

pytestmark = pytest.mark.skipif(
    not has_compiler() or platform.machine() != "x86_64", reason="needs a C++ compiler for x86-64"
)

EVERYTHING = {feature for takes in sources.INSTRUCTION_SETS["x86_64"].values() for feature in takes}


@pytest.fixture
def wheel(runs, tmp_path, monkeypatch):  # noqa: F811
    """The folder of a wheel's libraries; CXX is not set, so that they go before the compiler, which is a stand-in."""
    folder, library = tmp_path / "libraries", build.library()._name
    folder.mkdir()
    for name in sources.INSTRUCTION_SETS["x86_64"]:
        shutil.copy(library, folder / f"{name}.so")
    digests = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    write(folder, machine="x86_64", sources=sources.digest(*sources.contents()), libraries=digests)
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setattr(shipped, "features", lambda: EVERYTHING)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))  # with c++, the stand-in
    (tmp_path / "c++").write_text((tmp_path / "c++").read_text().replace("cp ", "/bin/cp "))
    return folder


def write(folder: Path, **listed: object) -> None:
    (folder / "libraries.json").write_text(json.dumps(listed))


def change(folder: Path, **changed: object) -> None:
    write(folder, **(json.loads((folder / "libraries.json").read_text()) | changed))


def damage(*files: Path) -> None:
    for file in files:
        whole = file.read_bytes()
        file.unlink()  # not written over: this process may have it loaded
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def said(caplog) -> str:
    """The one line that told of a library that is not the best; building says others."""
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    progress = ("building", "the CPU kernel is built,")
    (line,) = (line for line in lines if not line.startswith(progress) and "AMX" not in line)
    assert "\n" not in line
    return line


def runs_of_the_compiler(folder: Path) -> int:
    file = folder.parent / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize(
    ("missing", "taken"),
    (
        (set(), "amx"),
        ({"amx_tile"}, "avx512_bf16"),
        ({"amx_bf16", "avx512_bf16"}, "avx512"),
        ({"avx512vl"}, "avx2"),
        ({"avx512f"}, "avx2"),
        ({"fma"}, "baseline"),
        (EVERYTHING, "baseline"),
    ),
)
def test_the_best_that_the_processor_has_is_taken(wheel, missing, taken, monkeypatch):
    monkeypatch.setattr(shipped, "features", lambda: EVERYTHING - missing)
    assert found() == wheel / f"{taken}.so"


def test_it_needs_neither_a_compiler_nor_a_cache(wheel, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ASTERISM_CACHE", str(wheel.parent / "runs" / "no folder"))
    assert found() == wheel / "amx.so"
    assert not [record for record in caplog.records if "AMX" not in record.message]
    assert not (wheel.parent / "cache").exists()


def test_who_names_a_compiler_gets_what_it_makes(wheel, monkeypatch):
    monkeypatch.setenv("CXX", str(wheel.parent / "c++"))
    assert found().is_relative_to(wheel.parent / "cache") and runs_of_the_compiler(wheel) == 1


def test_a_compiler_that_is_named_and_not_there(wheel, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/missing/c++")
    assert found() == wheel / "amx.so"
    line = said(caplog)
    assert "CXX=/missing/c++ is not a program" in line and "the one that came with asterism" in line


def test_a_damaged_library_gives_way_to_the_next(wheel, caplog):
    damage(wheel / "amx.so")
    (wheel / "avx512_bf16.so").unlink()
    assert found() == wheel / "avx512.so"
    line = said(caplog)
    assert f"{wheel / 'amx.so'} is damaged: reinstall asterism-attention" in line and "avx512_bf16.so" in line
    assert "fewer instructions" in line


def unfit(wheel: Path, how: str) -> str:
    """Makes all libraries unfit, and gives a part of what must be said."""
    if how == "damaged":
        damage(*wheel.glob("*.so"))
        return f"{wheel / 'baseline.so'} is damaged: reinstall asterism-attention"
    if how == "other machine":
        change(wheel, machine="aarch64")
        return "from a wheel for aarch64, but this machine is x86_64"
    if how == "other version":
        change(wheel, sources="0123456789abcdef")
        return "built from other sources than those next to them: reinstall asterism-attention"
    (wheel / "libraries.json").write_text({"cut off": '{"machine": "x8', "no list": "[]"}[how])
    return f"{wheel / 'libraries.json'} cannot be read"


UNFIT = ("damaged", "other machine", "other version", "cut off", "no list")


@pytest.mark.parametrize("how", UNFIT)
def test_unfit_libraries_give_way_to_the_compiler(wheel, how, caplog):
    part = unfit(wheel, how)
    assert found().is_relative_to(wheel.parent / "cache") and runs_of_the_compiler(wheel) == 1
    line = said(caplog)
    assert part in line and "built on this machine" in line


@pytest.mark.parametrize("how", UNFIT)
def test_unfit_libraries_without_a_compiler_are_a_refusal(wheel, how, monkeypatch):
    part = unfit(wheel, how)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelError) as error:
        found()
    line = str(error.value)
    assert part in line and "none of c++, g++, clang++ is on the PATH" in line and "eager" in line and "\n" not in line


def test_a_pytorch_without_openmp(wheel, monkeypatch, caplog):
    """The libraries take it from the process; where there is none, they are not loaded, and the compiler serves."""
    real = ctypes.CDLL

    def without(name, *arguments):
        if name is None:
            return object()  # has no GOMP_parallel
        if name == "libgomp.so.1":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return real(name, *arguments)

    monkeypatch.setattr(shipped.ctypes, "CDLL", without)
    assert found().is_relative_to(wheel.parent / "cache")
    assert "libgomp.so.1: cannot open shared object file" in said(caplog)


def test_where_the_library_came_from(wheel, monkeypatch):
    """Figures that were measured with one library are not taken for those of another."""
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    origins, names = [build.origin()], [build.identity()]
    monkeypatch.setenv("CXX", str(wheel.parent / "c++"))
    origins.append(build.origin())
    names.append(build.identity())
    assert origins == ["wheel", "built"] and names[0] != names[1]
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shipped, "features", lambda: {"avx2", "fma"})
    assert build.identity() not in names


def test_a_checkout_has_none():
    assert not shipped.are_there()


def test_what_a_compiler_is_told():
    """No feature that the processor is not asked for: a program that uses one ends on a machine without it."""
    assert sources.options("x86_64", "baseline") == ["-march=x86-64"]
    assert sources.options("x86_64", "avx2") == ["-march=x86-64", "-mavx2", "-mfma"]
    assert sources.options("x86_64", "amx")[-3:] == ["-mavx512bf16", "-mamx-tile", "-mamx-bf16"]
    assert sources.options("aarch64", "neon") == ["-march=armv8-a"]
    for takes in sources.INSTRUCTION_SETS.values():
        assert list(takes)[-1] in ("baseline", "neon") and not list(takes.values())[-1], "something runs everywhere"
