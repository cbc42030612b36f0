"""The CPU kernel for aarch64 (NEON), run by qemu-user on whatever machine this is, against the same float64 formulas.

The kernel is built by the very functions that build it at first use, with a cross-compiler. A process of the other
machine gets the memory of a call, computes, and returns it.
"""

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from kernel_cases import DTYPES_OF, Case, check
from oracle import rule

from asterism.kernels.cpu import compiling, interface, kernel, sources

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [name for name in (COMPILER, EMULATOR) if not shutil.which(name)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (g++-aarch64-linux-gnu, qemu-user)"),
]

RULES = (
    rule("causal"),
    rule("window", left=20, right=7),
    rule("strided", stride=24),
    rule("fixed", stride=32, summary=4),
    rule("bigbird", block=16, random=1, seed=1),
    rule("global_tokens", positions=(0, 70)) | rule("window", left=9, right=9),
)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The emulator with a program that calls the kernel."""
    folder = tmp_path_factory.mktemp("aarch64")
    library, program = folder / "kernel.so", folder / "driver"
    flags = [*sources.FLAGS, *sources.options("aarch64", "neon")]
    compiling.compile_and_link([COMPILER, *flags], sources.units(), library, cores=2)
    driver = Path(__file__).with_name("aarch64_driver.cpp")
    subprocess.run([COMPILER, *flags, str(driver), str(library), "-o", str(program)], check=True)
    return [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(program)]


class Emulated:
    """Stands in for the library: what it is called for is computed by the program."""

    def __init__(self, command: list[str]) -> None:
        self.command, self.calls, self.known = command, 0, {}

    def asterism_forward(self, problem: interface.Problem) -> int:
        return self._run(problem, backward=False)

    def asterism_backward(self, problem: interface.Problem) -> int:
        return self._run(problem, backward=True)

    def remember(self, x: torch.Tensor) -> None:
        """A tensor that a later call may point to."""
        storage = x.untyped_storage()
        self.known[storage.data_ptr()] = storage

    def _run(self, problem: interface.Problem, backward: bool) -> int:
        tiles = problem.holds[0]
        structures = [problem, *tiles.passes, *filter(None, [problem.given_terms])]
        arrays = [tiles.masks, tiles.live, tiles.has_unread, *tiles.lists]
        for part in tiles.plan.passes:
            arrays += [part.row_offsets, part.columns, part.kinds]
            arrays += [x for x in (part.query_index, part.key_index) if x is not None]
        spans = {ctypes.addressof(x): ctypes.sizeof(x) for x in structures}
        spans[ctypes.addressof(tiles.passes)] = ctypes.sizeof(tiles.passes)  # they lie side by side
        spans |= {x.ctypes.data: x.nbytes for x in arrays} | {at: x.nbytes() for at, x in self.known.items()}
        blocks = [ctypes.addressof(problem), *(at for at in spans if at != ctypes.addressof(problem))]
        pointers = []
        for structure in structures:
            for at, target in pointers_in(structure, ctypes.addressof(structure)):
                pointers += [*place(at, blocks, spans), *place(target, blocks, spans)]
        sizes = [spans[at] for at in blocks]
        head = struct.pack(
            f"{3 + len(sizes) + len(pointers)}q", backward, len(sizes), len(pointers) // 4, *sizes, *pointers
        )
        given = head + b"".join(ctypes.string_at(at, spans[at]) for at in blocks)
        done = subprocess.run(self.command, input=given, capture_output=True, check=False)
        assert not done.stderr and done.returncode < 100, done
        self.calls += 1
        begin = 0
        for at, size in zip(blocks, sizes, strict=True):
            if at in self.known and not done.returncode:
                ctypes.memmove(at, done.stdout[begin : begin + size], size)
            begin += size
        assert done.returncode or begin == len(done.stdout)
        return done.returncode


def pointers_in(structure: ctypes.Structure, base: int) -> list[tuple[int, int]]:
    """Where its pointers lie, and what they point to."""
    found = []
    for name, kind in structure._fields_:
        value, at = getattr(structure, name), base + getattr(type(structure), name).offset
        if kind is ctypes.c_void_p and value:
            found.append((at, value))
        elif kind is interface.Tensor:
            found += pointers_in(value, at)
    return found


def place(address: int, blocks: list[int], spans: dict[int, int]) -> tuple[int, int]:
    """The block, and the bytes from its beginning."""
    base = max((at for at in blocks if at <= address < at + max(spans[at], 1)), default=None)
    assert base is not None, "a pointer to memory that nobody told of"
    return blocks.index(base), address - base


@pytest.fixture
def emulated(command, monkeypatch):
    found = Emulated(command)
    taken, strided, of = interface.pointer, interface.strided_pointer, interface.Tensor.of

    def told(function):
        def pointer(name, x, *rest):
            found.remember(x)
            return function(name, x, *rest)

        return pointer

    monkeypatch.setattr(kernel, "pointer", told(taken))
    monkeypatch.setattr(kernel, "strided_pointer", told(strided))
    monkeypatch.setattr(interface.Tensor, "of", told(of))
    monkeypatch.setattr(kernel, "library", lambda: found)
    yield found
    assert found.calls, "nothing was computed there"


def test_structures_lie_where_they_lie_here(command):
    out = subprocess.run(command, input=b"", capture_output=True, check=True).stdout.decode()
    assert out == f"neon\n{interface.layout()}"


@pytest.mark.parametrize("dtype", DTYPES_OF["cpu"], ids=str)
@pytest.mark.parametrize("drawn", RULES, ids=str)
def test_as_good_as_plain_arithmetic(emulated, drawn, dtype):
    heads = {"batch": 2, "heads": 2, "kv_heads": 1}
    check(Case(drawn, n_queries=100, n_keys=100, **heads, width=64, value_width=64, dtype=dtype), "cpu")
    cut = {"padding": True, "segments": True, "memory": "tokens first", "seed": 1}
    check(Case(drawn, n_queries=67, n_keys=67, **heads, width=20, value_width=9, dtype=dtype, **cut), "cpu")
