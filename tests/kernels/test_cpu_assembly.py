"""The inner loops of the CPU kernel's products, as the compiler makes them for each instruction set.

What a loop holds beside its multiply-adds competes with them: one vector of B for each column, one broadcast from
memory for each row of A (from a register it would take the port of a multiply-add on Intel), and the loop itself.
"""

import platform
import re
import subprocess
from collections import Counter

import pytest
from kernel_cases import has_compiler

from asterism.kernels.cpu import build, sources

pytestmark = pytest.mark.skipif(
    not has_compiler() or platform.machine() != "x86_64", reason="needs a C++ compiler for x86-64"
)

MACHINES = {
    "haswell": {("FloatUnits", 6, 2)},
    "skylake-avx512": {("FloatUnits", 6, 4), ("FloatUnits", 8, 3), ("FloatUnits", 12, 2), ("FloatUnits", 12, 1)},
    "cooperlake": {("BFloat16Pairs", 6, 4), ("BFloat16Pairs", 8, 3), ("BFloat16Pairs", 12, 2), ("FloatUnits", 6, 4)},
}
"""By the processor that is compiled for, loops that must be there: units, rows, vectors."""

STRAY = 5
"""Instructions that step through A and B, count, compare and jump."""

SPILLED = 3
"""Addresses of rows that twelve rows do not leave registers for."""


def loops(machine: str, prefixes: tuple[str, ...]) -> dict[tuple[str, int, int], list[list[str]]]:
    """The instructions of the innermost loop of every product, by units, rows and vectors, in some of the sources."""
    command = ["c++", *build._flags(), f"-march={machine}", "-S", "-o", "-"]
    passes = [str(unit) for unit in sources.units() if unit.name.startswith(prefixes)]
    texts = [subprocess.run([*command, unit], capture_output=True, text=True, check=True).stdout for unit in passes]
    text = "\n".join(texts)
    found: dict[tuple[str, int, int], list[list[str]]] = {}
    for function in re.split(r"^(?=_Z\w+:)", text, flags=re.MULTILINE):
        if name := re.match(r"_Z\w*run_of_units\w*?(FloatUnits|BFloat16Pairs)ELb[01]ELi(\d+)ELi(\d+)E", function):
            key = (name[1], int(name[2]), int(name[3]))
            found.setdefault(key, []).append(innermost([line.strip() for line in function.splitlines()]))
    return found


def innermost(lines: list[str]) -> list[str]:
    """The loop with the most multiply-adds, from its label to the jump back to it."""
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    bodies = []
    for at, line in enumerate(lines):
        target = line.split()[-1] if line.startswith("j") else None
        if target in labels and labels[target] < at:
            bodies.append([line for line in lines[labels[target] + 1 : at + 1] if line and line[0] not in ".#"])
    return max(bodies, key=lambda body: sum(map(is_multiply_add, body)), default=[])


def is_multiply_add(instruction: str) -> bool:
    return instruction.startswith(("vfmadd", "vdpbf16ps"))


@pytest.mark.parametrize(
    ("machine", "prefixes"),
    [
        ("skylake-avx512", ("forward_float32",)),  # which holds every loop once
        *(pytest.param(machine, ("forward", "backward"), marks=pytest.mark.slow) for machine in MACHINES),
    ],
)
def test_nothing_stray_in_the_loops_of_products(machine, prefixes):
    found = loops(machine, prefixes)
    assert MACHINES[machine] <= found.keys()
    for (units, rows, vectors), bodies in found.items():
        if rows == 1:
            continue
        for body in bodies:
            counts = Counter(line.split()[0] for line in body)
            broadcasts = [line for line in body if line.startswith("vpbroadcast") or line.startswith("vbroadcast")]
            assert sum(map(is_multiply_add, body)) == rows * vectors, (units, rows, vectors, counts)
            assert len(broadcasts) == rows and all("(" in line for line in broadcasts), broadcasts
            others = len(body) - rows * vectors - rows - vectors
            assert others <= STRAY + (SPILLED if rows == 12 else 0), (units, rows, vectors, counts)
