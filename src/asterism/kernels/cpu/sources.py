"""The sources and flags of the kernel's library, and the instruction sets of a wheel.

It needs the standard library alone: what builds a wheel (distribution/hook.py) runs this file before anything is
installed.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent

FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
"""What every library is compiled with, beside an instruction set."""

INSTRUCTION_SETS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "amx": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16"),
        "avx512_bf16": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"),
        "avx512": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
        "avx2": ("avx2", "fma"),
        "baseline": (),
    },
    "aarch64": {"neon": ()},  # its vectors are part of the machine
}
"""By machine the instruction sets that a wheel has a library for, best first, and what each takes.

The names are those that Linux gives the features of a processor that it lets programs use (/proc/cpuinfo).
"""


def options(machine: str, instruction_set: str) -> list[str]:
    """What a compiler is told to make exactly that set: a library takes no feature that is not asked for."""
    if machine != "x86_64":
        return ["-march=armv8-a"]
    spelled = {"avx512_bf16": "avx512bf16", "amx_tile": "amx-tile", "amx_bf16": "amx-bf16"}
    features = INSTRUCTION_SETS[machine][instruction_set]
    return ["-march=x86-64", *(f"-m{spelled.get(feature, feature)}" for feature in features)]


def units() -> list[Path]:
    """The translation units."""
    return sorted(_FOLDER.glob("*.cpp"))


def contents() -> list[str]:
    """Names and texts of all sources."""
    files = [*units(), *sorted(_FOLDER.glob("*.hpp"))]
    return [part for file in files for part in (file.name, file.read_text(encoding="utf-8"))]


def digest(*parts: str) -> str:
    """A short name for what the parts say together."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
