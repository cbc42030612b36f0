"""What makes a wheel with libraries: a hook of hatchling, off unless HATCH_BUILD_HOOK_ENABLE_CUSTOM=true.

One library of the CPU kernel for each instruction set of the machine that the compiler makes programs for; CXX names
another compiler than g++, such as aarch64-linux-gnu-g++. Equal sources and compilers give equal bytes: no path, time or
random number goes into a library. A library holds libstdc++, leaves OpenMP to the one that PyTorch brings
(kernels/cpu/shipped.py), and asks for no C library newer than MANYLINUX says, which `make wheel` has auditwheel check.
"""

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MANYLINUX = "manylinux_2_27"

INTO = "asterism/kernels/cpu"
"""Where the libraries lie in the wheel."""


class Libraries(BuildHookInterface):
    """Builds the libraries, adds them to the wheel, and names the wheel after the machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        self._folder = tempfile.TemporaryDirectory()
        machine = built(root, Path(self._folder.name))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{MANYLINUX}_{machine}"
        build_data["force_include"][self._folder.name] = f"{INTO}/libraries"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def built(root: Path, folder: Path) -> str:
    """Builds into the folder, with the list that shipped.py reads. Returns the machine that the libraries are for."""
    sources = module(root / "src" / INTO / "sources.py")
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if "Free Software Foundation" not in output([*compiler, "--version"]):
        raise SystemExit(f"{shlex.join(compiler)} is not g++, and PyTorch brings g++'s OpenMP: set CXX to a g++")
    machine = output([*compiler, "-dumpmachine"]).partition("-")[0]
    if machine not in sources.INSTRUCTION_SETS:
        raise SystemExit(
            f"{shlex.join(compiler)} makes programs for {machine}: a wheel holds libraries for"
            f" {' or '.join(sources.INSTRUCTION_SETS)}; set CXX to a compiler for one of these"
        )
    digests = {}
    for name in sources.INSTRUCTION_SETS[machine]:
        print(f"building the kernel for {machine}, {name}", flush=True)
        library = linked(root, [*compiler, *sources.FLAGS, *sources.options(machine, name)], sources.units())
        (folder / f"{name}.so").write_bytes(library)
        digests[name] = hashlib.sha256(library).hexdigest()
    listed = {"machine": machine, "sources": sources.digest(*sources.contents()), "libraries": digests}
    (folder / "libraries.json").write_text(json.dumps(listed, indent=1) + "\n")
    return machine


def linked(root: Path, command: list[str], units: list[Path]) -> bytes:
    """The library of these sources."""
    own = root / "distribution"
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for number, unit in enumerate([*units, own / "portable.cpp"]):
            objects.append(f"{folder}/{number}.o")
            named = [f"-ffile-prefix-map={root}=.", f"-frandom-seed={unit.name}"]
            output([*command, *named, "-c", "-o", objects[-1], str(unit)])
        # Without -fopenmp, which would name a file that no manylinux promises.
        linker = ["--gc-sections", "--build-id=none", "--strip-all", f"--version-script={own / 'exports.map'}"]
        plain = [argument for argument in command if argument != "-fopenmp"]
        library = f"{folder}/library.so"
        output([*plain, "-shared", "-static-libstdc++", f"-Wl,{','.join(linker)}", "-o", library, *objects])
        return Path(library).read_bytes()


def output(command: list[str]) -> str:
    """What a program says. Ends the build if there is no such program, or it fails."""
    if not shutil.which(command[0]):
        raise SystemExit(f"a wheel with libraries takes g++, {command[0]} is not on the PATH: install it, or set CXX")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr.strip()}")
    return done.stdout.strip()


def module(file: Path) -> Any:
    """The module in a file, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
