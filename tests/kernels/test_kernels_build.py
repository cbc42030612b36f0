"""Building the fused CPU kernel: without a compiler, by two processes at once, after damage. Each in a fresh process.

Every build gets a cache folder of its own, so that what this machine has built before plays no part.
"""

import os
import platform
import subprocess
import sys
import time

import pytest
from kernel_cases import has_compiler

from asterism.kernels import cpu
from asterism.kernels.cpu import sources

BUILDING = 180
"""Seconds that two builds at once may take on a busy machine."""

WORK = """
import hashlib, sys, torch
from asterism import attend
from asterism.errors import AsterismError

def results(implementation):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 32, generator=generator, requires_grad=True) for _ in range(3))
    out, lse = attend(q, k, v, "fixed(16, summary=2)", implementation=implementation, return_lse=True)
    (out.sum() + lse.sum()).backward()
    return out.detach(), lse.detach(), q.grad, k.grad, v.grad

def digest(implementation):
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in results(implementation))).hexdigest()
"""
DIGEST = WORK + "print(digest('cpu'))"
REFUSAL = (
    WORK
    + """
for _ in range(2):
    try:
        print(digest("cpu"))
    except AsterismError as error:
        print(type(error).__name__, error)
"""
)
AUTO = (
    WORK
    + """
for _ in range(5):
    print(digest("auto") == digest("eager"))
"""
)

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")


def start(code, **environment):
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment, **keywords)


def finish(process):
    """(stdout, stderr) of a process that must succeed."""
    try:
        out, err = process.communicate(timeout=BUILDING)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, f"exit status {process.returncode}:\n{err}"
    return out.strip(), err.strip()


@pytest.fixture
def run(forked):
    """(stdout, stderr) of code that must succeed, in a process of its own."""

    def run(code, **environment):
        done = forked.run(code, os.environ | environment)
        assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stderr}"
        return done.stdout.strip(), done.stderr.strip()

    return run


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "a folder with spaces"


@pytest.fixture
def no_compiler(cache, tmp_path):
    """An environment in which no compiler can be found, and nothing is in the cache."""
    return {"CXX": str(tmp_path / "missing" / "c++"), "PATH": "", "ASTERISM_CACHE": str(cache)}


def test_without_a_compiler_the_kernel_is_refused_with_the_reason(run, no_compiler):
    lines = run(REFUSAL, **no_compiler)[0].splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    for part in ("KernelError", "cpu", "compiler", no_compiler["CXX"], "nstall", "eager"):
        assert part in lines[0]


def test_without_any_name_for_a_compiler_it_says_what_was_looked_for(run, no_compiler):
    line = run(f"import os\ndel os.environ['CXX']\n{REFUSAL}", **no_compiler)[0].splitlines()[0]
    for part in ("KernelError", "cpu", "compiler", "g++", "nstall", "eager"):
        assert part in line


def test_without_a_compiler_auto_is_eager_and_says_so_once(run, no_compiler):
    out, err = run(AUTO, **no_compiler)
    assert out.split() == ["True"] * 5
    (line,) = err.splitlines()
    for part in ("eager", "compiler", "nstall"):
        assert part in line


def test_a_compiler_that_fails_is_a_refusal(run, cache, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'cannot compile today' >&2\nexit 1\n")
    compiler.chmod(0o755)
    out, _ = run(REFUSAL, CXX=str(compiler), ASTERISM_CACHE=str(cache))
    for part in ("KernelError", str(compiler), "cannot compile today", "eager"):
        assert part in out.splitlines()[0]


@needs_compiler
def test_a_cache_that_cannot_be_written_is_a_refusal(run, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    out, _ = run(REFUSAL, ASTERISM_CACHE=str(tmp_path / "file" / "cache"))
    for part in ("KernelError", str(tmp_path / "file"), "ASTERISM_CACHE"):
        assert part in out.splitlines()[0]


def test_nothing_is_built_before_it_is_needed(run, cache):
    _, err = run(WORK + "digest('eager'), digest('reference')", ASTERISM_CACHE=str(cache))
    assert err == "" and not cache.exists()


@needs_compiler
def test_poison_changes_no_bit(run):
    digests = {run(DIGEST, ASTERISM_POISON=poison)[0] for poison in ("1", "")}
    assert len(digests) == 1


@needs_compiler
def test_of_two_processes_that_need_it_at_once_one_builds(run, cache, tmp_path):
    """Which is seen with a compiler that notes what it is asked for, and links the library that this machine has."""
    compiler, asked = tmp_path / "c++", tmp_path / "asked"
    link = f'while [ "$1" != -o ]; do shift; done; sleep 1; exec cp "{cpu.library()._name}" "$2"'
    note = f'for last; do :; done; echo "$last" >> "{asked}"'
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) {link};; esac\n{note}\n')
    compiler.chmod(0o755)
    environment = {"CXX": f"'{compiler}'", "ASTERISM_CACHE": str(cache)}
    ended = [finish(process) for process in [start(DIGEST, **environment) for _ in range(2)]]
    assert len({out for out, _ in ended}) == 1
    assert sum("building the CPU kernel" in err for _, err in ended) == 1
    assert sorted(asked.read_text().splitlines()) == sorted(map(str, sources.units()))
    out, err = run(DIGEST, **environment)
    assert out == ended[0][0] and err == "", "the third process builds again"


@needs_compiler
@pytest.mark.slow
def test_a_damaged_library_is_built_anew(cache):
    expected, _ = finish(start(DIGEST, ASTERISM_CACHE=str(cache)))
    (library,) = cache.rglob("*.so")
    whole = library.read_bytes()
    for damaged in (b"", b"not a library", whole[: len(whole) // 2], whole[:-1]):
        library.write_bytes(damaged)
        assert finish(start(DIGEST, ASTERISM_CACHE=str(cache)))[0] == expected
        (library,) = cache.rglob("*.so")
        assert len(library.read_bytes()) == len(whole)
    library.unlink()
    assert finish(start(DIGEST, ASTERISM_CACHE=str(cache)))[0] == expected


@needs_compiler
@pytest.mark.slow
def test_a_build_that_was_killed_hinders_nobody(cache):
    killed = start(DIGEST, ASTERISM_CACHE=str(cache))
    deadline = time.monotonic() + BUILDING
    while not (cache.exists() and any(cache.iterdir())):
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(killed.pid, 9)
    killed.communicate()
    assert killed.returncode == -9
    assert len(finish(start(DIGEST, ASTERISM_CACHE=str(cache)))[0]) == 64


INSTRUCTION_SETS = (
    WORK
    + """
from asterism import DistanceTable, Dropout, Terms, patterns
from asterism.kernels import decode_slots

generator = torch.Generator().manual_seed(1)
cases = (("causal()", 70, 64), ("strided(16)", 130, 40), ("bigbird(16)", 200, 7), ("fixed(32, summary=4)", 97, 3))
for text, n, width in cases:
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 0.05)):
        tensors = [torch.randn(1, 2, n, width, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
        weight = torch.randn(1, 2, n, width, generator=generator).to(dtype)
        found = torch.autograd.grad((attend(*tensors, text, implementation="cpu") * weight).sum(), tensors)
        wide = [x.detach().double().requires_grad_() for x in tensors]
        expected = torch.autograd.grad((attend(*wide, text, implementation="reference") * weight).sum(), wide)
        for one, other in zip(found, expected):
            assert (one - other).abs().max() < tolerance * max(1, other.abs().max()), (text, dtype)
for text, n, width in cases[:2] + cases[3:]:
    for dtype, tolerance in ((torch.float32, 5e-5), (torch.bfloat16, 0.05)):
        shapes = [(1, 2, n, width)] * 3 + [(2, n), (n, width), (2,)]
        given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

        def gradients(wide, implementation):
            leaves = [x.detach().to(wide).requires_grad_() for x in given]
            q, k, v, bias, relative, sinks = leaves
            dropout = Dropout(0.3, seed=2**63 + 5)
            terms = Terms(DistanceTable(bias), relative=relative, softcap=1.5, sinks=sinks, dropout=dropout)
            out = attend(q, k, v, text, terms=terms, implementation=implementation)
            return torch.autograd.grad(out.sin().sum(), leaves)

        for one, other in zip(gradients(dtype, "cpu"), gradients(torch.float64, "reference")):
            assert (one - other).abs().max() < tolerance * max(1, other.abs().max()), (text, dtype, "terms")
for n, width, heads in ((1, 64, 1), (300, 65, 4), (700, 128, 2), (90, 3, 8)):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        q, k, v = (torch.randn(2, h, m, width, generator=generator).to(dtype) for h, m in ((heads, 3), (1, n), (1, n)))
        allowed = torch.rand(2, heads, 3, n, generator=generator) < 0.6
        found = decode_slots(q, k, v, allowed, implementation="cpu")
        expected = decode_slots(q.double(), k.double(), v.double(), allowed, implementation="reference")
        assert (found - expected).abs().max() < tolerance * max(1, expected.abs().max()), ("slots", dtype)
print("agree")
"""
)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("less", ("-mno-avx512bf16", "-mno-avx512f", "-mno-avx512f -mno-avx2 -mno-fma"))
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are instruction sets of x86-64")
def test_lesser_instruction_sets(less, tmp_path):
    """What a machine with shorter vectors, or without bfloat16 products, would build."""
    output, _ = finish(start(INSTRUCTION_SETS, CXX=f"c++ {less}", ASTERISM_CACHE=str(tmp_path)))
    assert output.split() == ["agree"]
