"""A real wheel, built by `make wheel`, which checks it too: installed, without a compiler, by every instruction set.

`make test-wheel` installs it with all that it needs into an environment of its own, and compares its rate.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT
from test_kernels_build import DIGEST, INSTRUCTION_SETS, REFUSAL, finish, start

from asterism.kernels.cpu.processor import features
from asterism.kernels.cpu.sources import INSTRUCTION_SETS as SETS

SETS_HERE = [name for name, takes in SETS.get(platform.machine(), {}).items() if features().issuperset(takes)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("g++") and shutil.which("make") and SETS_HERE and sys.platform == "linux"),
        reason="a wheel is built by make and g++ on Linux",
    ),
]

OF_ONE_SET = """
import sys
from asterism.kernels.cpu import shipped, library
shipped.features = lambda: set({takes!r})
assert library()._name.endswith("/libraries/{name}.so"), library()._name
"""
TOLD = "from asterism.kernels.cpu import instruction_set, origin; print(origin(), instruction_set())"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    make(folder)
    (file,) = folder.glob("*.whl")
    return file


def make(folder: Path, **environment: str) -> None:
    command = ["make", "wheel", f"DIST={folder}", f"PYTHON={sys.executable}"]
    # Not for the compiler that other tests are told to use.
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
    done = subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "built twice with equal bytes" in done.stdout and done.stdout.count("PASSED") == 2


@pytest.fixture
def installed(wheel, tmp_path):
    """The environment of a process that has the wheel, no compiler, and nothing in its cache."""
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    return {"PYTHONPATH": str(site), "PATH": "", "CXX": "", "ASTERISM_CACHE": str(tmp_path / "cache")}


def test_it_needs_no_compiler(installed, tmp_path):
    out, err = finish(start(TOLD, **installed))
    assert out == f"wheel {SETS_HERE[0]}" or (out.startswith("wheel avx512_bf16") and "does without AMX" in err)
    out, err = finish(start(DIGEST, **installed))
    assert len(out) == 64 and "building" not in err and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", SETS_HERE + (["amx"] if "avx512_bf16" in SETS_HERE and "amx" not in SETS_HERE else []))
def test_every_library_agrees_with_the_oracle(installed, name):
    """That for AMX runs without it where the system refuses it, by the same instructions as the one before."""
    code = OF_ONE_SET.format(name=name, takes=SETS[platform.machine()][name]) + INSTRUCTION_SETS
    assert finish(start(code, **installed))[0] == "agree"


def test_who_names_a_compiler_gets_what_it_makes(installed):
    native = installed | {"PATH": os.environ["PATH"], "CXX": "g++"}
    out, err = finish(start(TOLD, **native))
    assert out.startswith("built ") and "building the CPU kernel" in err


def test_a_damaged_wheel_without_a_compiler(installed):
    for file in Path(installed["PYTHONPATH"]).rglob("libraries/*.so"):
        file.write_bytes(file.read_bytes()[:-1])
    line = finish(start(REFUSAL, **installed))[0].splitlines()[0]
    assert line.startswith("KernelError") and "c++" in line
    assert "baseline.so is damaged: reinstall asterism-attention" in line


@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-g++"), reason="no compiler for aarch64: g++-aarch64-linux-gnu")
def test_a_wheel_for_another_machine(tmp_path):
    """It is built and checked here, and refused in words."""
    make(tmp_path, CXX="aarch64-linux-gnu-g++")
    (file,) = tmp_path.glob("*_aarch64.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(file, site, "zip")
    environment = {"PYTHONPATH": str(site), "PATH": "", "CXX": "", "ASTERISM_CACHE": str(tmp_path / "cache")}
    line = finish(start(REFUSAL, **environment))[0].splitlines()[0]
    assert f"from a wheel for aarch64, but this machine is {platform.machine()}" in line
