"""The CPU kernel built with the address and undefined-behaviour sanitizers, over cases of the oracle.

The sanitizers want to be loaded before Python, so that the cases run in a process of their own.
"""

import os
import shutil
import subprocess
import sys

import pytest
from kernel_cases import has_compiler
from repository import SUPPORT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler() or not sys.platform.startswith("linux"), reason="no C++ compiler for Linux"),
]

COMPILER = "c++ -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"

CASES = """
import sys
import torch
from hypothesis import given
from kernel_cases import attending, cases, check, differentiated, inputs_of
from seeds import drawing
from term_cases import check_terms, term_cases
from asterism.kernels.cpu import library

library()
seen = set()

@drawing(int(sys.argv[1]))
@given(cases(dtypes=(torch.float32, torch.bfloat16)))
def run(case):
    torch.set_num_threads(1 + case.seed % 3)
    check(case, "cpu")
    seen.add(case)

@drawing(int(sys.argv[1]))
@given(term_cases("cpu"))
def run_terms(chosen):
    torch.set_num_threads(1 + chosen.case.seed % 3)
    check_terms(chosen, "cpu")

run()
run_terms()
assert len(seen) > int(sys.argv[1]) // 2
print("no finding in", sys.argv[1], "cases")
"""

LONG = """
import torch
from asterism import attend

torch.set_num_threads(3)
generator = torch.Generator().manual_seed(0)
for text in ("bigbird(16)", "strided(16)", "fixed(32, summary=4)", "causal()", "dense()"):
    for n in (1, 129, 400):
        for width, value_width in ((64, 64), (65, 3), (256, 256)):
            for dtype in (torch.float32, torch.bfloat16):
                tensors = [torch.randn(2, 2, n, width, generator=generator).to(dtype) for _ in range(2)]
                tensors.append(torch.randn(2, 2, n, value_width, generator=generator).to(dtype))
                leaves = [x.requires_grad_() for x in tensors]
                mask = torch.rand(2, n, generator=generator) < 0.8
                out, lse = attend(*leaves, text, key_mask=mask, implementation="cpu", return_lse=True)
                torch.autograd.grad([out, lse], leaves, [torch.ones_like(out), torch.ones_like(lse)])
print("no finding")
"""


DECODED = """
import torch
from asterism.kernels import decode_slots

generator = torch.Generator().manual_seed(0)
for n in (0, 1, 15, 64, 257, 1100):
    for width, value_width in ((64, 64), (1, 3), (33, 65), (128, 128), (256, 7)):
        for rows, heads, kv_heads in ((1, 4, 4), (1, 6, 2), (3, 4, 2), (70, 2, 1)):
            for dtype in (torch.float32, torch.bfloat16):
                torch.set_num_threads(1 + n % 3)
                q, k, v = (
                    torch.randn(2, h, m, d, generator=generator).to(dtype)
                    for h, m, d in ((heads, rows, width), (kv_heads, n, width), (kv_heads, n, value_width))
                )
                allowed = torch.rand(2, heads if n % 2 else 1, rows, n, generator=generator) < 0.7
                decode_slots(q, k, v, allowed, implementation="cpu", return_lse=True)
print("no finding")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    libraries = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not shutil.which("c++") or not all(map(os.path.isabs, libraries)):
        pytest.skip("this compiler has no sanitizers of its own")
    folder = f"{SUPPORT}{os.pathsep}{os.path.dirname(__file__)}"
    return os.environ | {
        "CXX": COMPILER,
        "LD_PRELOAD": " ".join(libraries),
        # Python and PyTorch keep memory to the end; what they hold is not asked here.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "ASTERISM_CACHE": str(tmp_path_factory.mktemp("sanitized")),
        "PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def run(environment, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stderr[:4000]}"
    return done.stdout.strip()


def test_two_hundred_cases_of_the_oracle(environment):
    assert run(environment, CASES, 200) == "no finding in 200 cases"


def test_whole_tiles_and_long_rows(environment):
    assert run(environment, LONG) == "no finding"


def test_slots_of_a_cache(environment):
    assert run(environment, DECODED) == "no finding"


def test_emulated_products_by_amx(environment):
    """What surrounds them is that of a machine with AMX; without AVX-512 for bfloat16 it is what was tested before."""
    emulated = environment | {"CXX": f"{COMPILER} -DASTERISM_EMULATED_TILES"}
    assert run(emulated, CASES, 100) == "no finding in 100 cases"
    assert run(emulated, LONG) == "no finding"


def test_the_sanitizers_are_at_work(environment, tmp_path):
    """A library that reads one element past an array must be found out, by each of the two."""
    for fault, found in (
        ("int *x = new int[n]; int y = x[n]; delete[] x; return y;", "heap-buffer-overflow"),
        ("return n << 40;", "shift exponent"),
    ):
        (tmp_path / "fault.cpp").write_text(f'extern "C" int fault(int n) {{ {fault} }}')
        library = tmp_path / f"{found.split()[0]}.so"
        command = [*COMPILER.split(), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "fault.cpp")]
        subprocess.run(command, check=True, capture_output=True)
        code = f"import ctypes; ctypes.CDLL({str(library)!r}).fault(4)"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode != 0 and found in done.stderr
