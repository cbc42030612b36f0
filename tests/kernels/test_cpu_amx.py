"""Products by AMX, emulated: the kernel with the few instructions replaced by plain C++ of the same arithmetic.

Runs wherever AVX-512 multiplies bfloat16, with AMX or without. The build is a library of its own, so that what is
checked runs in processes of their own; each says in the end how many products the emulator was asked for.
"""

import ctypes
import itertools
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from kept_kernels import with_kernel
from kernel_cases import (
    LARGE_BATCH,
    Case,
    assert_equal_bits,
    attending,
    cases,
    check,
    check_unread,
    differentiated,
    exact,
    has_compiler,
    inputs_of,
)
from oracle import rule
from repository import SUPPORT
from seeds import drawing

from asterism.kernels import cpu, operands
from asterism.kernels.cpu import build

SOURCES = Path(build.__file__).parent
EMULATED = "c++ -DASTERISM_EMULATED_TILES"
TILES = (32, 64, 128)


def multiplies_bfloat16() -> bool:
    """Whether this machine has what surrounds the products."""
    flags = build.features()
    return has_compiler() and {"avx512_bf16", "avx512dq", "avx512bw"} <= set(flags)


pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="no AVX-512 for bfloat16 or no compiler")


# ---------------------------------------------------------------------------------------------------------------------
# What runs with the emulated build.


def executed() -> list[int]:
    """How many loads, stores and products the emulator has done."""
    counts = (ctypes.c_int64 * 3)()
    cpu.library().asterism_emulated_instructions(counts)
    return list(counts)


def with_tiles(tile: int) -> None:
    """Plans have tiles of this size from now on."""
    compiled = operands.compile_pattern
    operands.compile_pattern = lambda *arguments, **keywords: compiled(*arguments, **keywords | {"tile": tile})


def over_cases(law, tile: int, examples: int) -> None:
    with_tiles(tile)
    seen = set()

    @drawing(examples)
    @given(cases(dtypes=(torch.bfloat16,)))
    def run(case):
        torch.set_num_threads(1 + case.seed % 3)
        law(case, "cpu")
        seen.add(case)

    run()
    assert len(seen) > examples // 2


def oracle_cases(tile: int, examples: int) -> None:
    over_cases(check, tile, examples)


def unread_keys(tile: int, examples: int) -> None:
    over_cases(check_unread, tile, examples)


LENGTHS, WIDTHS = (1, 15, 17, 63, 65, 129), (1, 7, 8, 32, 33, 64, 65, 128, 256)


def ragged(every: int) -> None:
    """Every so many of all lengths, widths and widths of values, and all kinds of masks in turn."""
    rules = (rule("dense"), rule("strided", stride=3), rule("window", left=20, right=0))
    sizes = list(itertools.product(LENGTHS, WIDTHS, WIDTHS))[::every]
    for number, (n, width, value_width) in enumerate(sizes):
        case = Case(rules[number % 3], 4, 2, n, n, None, LARGE_BATCH, width, value_width, torch.bfloat16, seed=number)
        case = replace(case, padding=number % 4 == 1, segments=number % 4 == 2, scale=(None, -0.2, 0.0)[number % 3])
        check(case, "cpu")


def holes() -> None:
    """Keys that queries before and after read, but not those between, whose weights nobody computes."""
    with_tiles(128)
    rules = rule("global_queries", positions=(3, 70)) | rule("window", left=2)
    for width, value_width in ((32, 32), (40, 7), (256, 256)):
        check(Case(rules, 4, 2, 130, 130, None, LARGE_BATCH, width, value_width, torch.bfloat16), "cpu")


def slopes() -> None:
    """Scores that grow or fall by so much from one tile of keys to the next: sums are scaled down always, or never."""
    with_tiles(32)
    for slope, rules in itertools.product((20, 6, 3, -3, -20), (rule("dense"), rule("causal"))):
        case = Case(rules, 2, 1, 130, 130, None, 2, 64, 33, torch.bfloat16)
        inputs = inputs_of(case)
        inputs.q[..., 0] = 1
        inputs.k[..., 0] = (torch.arange(130) // 32 * slope / case.factor).bfloat16()
        found, expected = differentiated(attending(case, inputs, "cpu"), inputs), exact(inputs, case.factor)
        np.testing.assert_allclose(found["lse"].double(), expected["lse"], rtol=1e-4, atol=2e-3, err_msg=str(slope))
        for name in ("out", "dq", "dk", "dv"):
            # Gradients are sums of large keys times rounded numbers that nearly cancel.
            bound = (0.01 if name == "out" else 0.03) * np.abs(expected[name]).max()
            np.testing.assert_allclose(found[name].double(), expected[name], rtol=0, atol=bound, err_msg=name)


def same_bits() -> None:
    """On every run, for any number of threads, whether denormal numbers are flushed or not, whatever memory held.

    The 12 key heads are as many as 1, 2 and 3 threads share evenly: else threads also share heads, and sum up in parts.
    """
    rules = (rule("dense"), rule("strided", stride=3), rule("window", left=40, right=3))
    for number, width in enumerate((64, 9, 33)):
        case = Case(rules[number], 6, 6, 190, 200, None, 2, width, 40, torch.bfloat16, padding=number > 0)
        inputs = inputs_of(case)
        for x in inputs.tensors:
            x[..., 1::2] *= 1e-39  # denormal beside what is none
        expected = differentiated(attending(case, inputs, "cpu"), inputs)
        for threads, flush, poison in itertools.product((1, 2, 3, 3), (False, True), ("", "1")):
            torch.set_num_threads(threads)
            torch.set_flush_denormal(flush)
            os.environ["ASTERISM_POISON"] = poison
            assert_equal_bits(differentiated(attending(case, inputs, "cpu"), inputs), expected)
        torch.set_flush_denormal(False)


def per_tile(width: int) -> list[list[int]]:
    """Loads, stores and products per tile of 64 queries and 64 keys, forward and backward."""
    with_tiles(64)
    case = Case(rule("dense"), 1, 1, 512, 512, None, 1, width, width, torch.bfloat16)
    inputs = inputs_of(case)
    q, k, v = (x.requires_grad_() for x in inputs.tensors)
    before = executed()
    out, _ = attending(case, inputs, "cpu")(q, k, v)
    between = executed()
    torch.autograd.grad(out, (q, k, v), inputs.d_out)
    after = executed()
    steps = ((before, between), (between, after))
    return [[(y - x) // 64 for x, y in zip(*pair, strict=True)] for pair in steps]


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(forked):
    """What forks, and the variables of a fork."""
    path = os.pathsep.join([os.path.dirname(__file__), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Working memory is full of NaN, so that what is read before it is written shows.
    kernel = with_kernel("-DASTERISM_EMULATED_TILES")
    return forked, os.environ | kernel | {"PYTHONPATH": path, "ASTERISM_POISON": "1"}


def emulated(environment, function, *arguments):
    """What the function returns, or prints, in a process whose kernel emulates AMX."""
    code = (
        f"import test_cpu_amx as tests\nfound = tests.{function.__name__}(*{arguments!r})\n"
        "assert tests.cpu.instruction_set() == 'amx (emulated)'\nassert tests.executed()[2] > 1000\nprint(found)"
    )
    forks, variables = environment
    done = forks.run(code, variables)
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout.strip()


@pytest.mark.parametrize("tile", TILES)
def test_cases_of_the_oracle(tile, environment):
    emulated(environment, oracle_cases, tile, 15)


@pytest.mark.slow
@pytest.mark.parametrize("tile", TILES)
def test_many_cases_of_the_oracle(tile, environment):
    emulated(environment, oracle_cases, tile, 300)
    emulated(environment, unread_keys, tile, 100)


def test_what_no_query_may_read_changes_no_bit(environment):
    emulated(environment, unread_keys, 32, 15)


def test_ragged_lengths_and_widths(environment):
    emulated(environment, ragged, 17)


@pytest.mark.slow
def test_all_ragged_lengths_and_widths(environment):
    emulated(environment, ragged, 1)


def test_weights_that_nobody_computes(environment):
    emulated(environment, holes)


def test_growing_and_falling_scores(environment):
    emulated(environment, slopes)


def test_equal_bits(environment):
    emulated(environment, same_bits)


# Products of matrices of random bits by the emulator, one register each of A, B and C, and what goes with them.
PRODUCTS = """
#include "amx.hpp"
#include <cfenv>

extern "C" void multiply_add(const float* a, const float* b, float* c, int rounding) {
  const AmxConfiguration configuration;
  amx::load<0>(c, 64), amx::load<1>(a, 64), amx::load<2>(b, 64);
  std::fesetround(rounding);
  amx::multiply_add<0, 1, 2>();
  std::fesetround(FE_TONEAREST);
  amx::store<0>(c, 64);
}

extern "C" void blocks(int rows, int columns, int units, const float* a, const float* b, float* c) {
  const AmxConfiguration configuration;
  amx_product<false>(rows, columns, units, {a, units, 1}, b, columns, c, columns);
  amx_product<true>(rows, columns, units, {a, units, 1}, b, columns, c, columns);
}

extern "C" int fails_without_configuration(float* a) {
  try {
    amx::load<0>(a, 64);
  } catch (const std::logic_error&) {
    return 1;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    (folder / "products.cpp").write_text(PRODUCTS)
    command = [*EMULATED.split(), "-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", f"-I{SOURCES}"]
    subprocess.run([*command, "-o", str(folder / "products.so"), str(folder / "products.cpp")], check=True)
    return ctypes.CDLL(str(folder / "products.so"))


def random_bfloat16(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def in_pairs(b):
    """[k, n] -> [k / 2, n, 2]: pairs along k."""
    return b.unflatten(0, (-1, 2)).transpose(1, 2).contiguous()


def call(function, *arguments):
    """With the addresses of tensors, which live as long as the call."""
    return function(*(ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments))


def test_the_emulator_multiplies_as_the_manual_says(products):
    """Even and odd numbers are summed apart, by fused multiply-adds, and added in the end, in float32."""
    a, b, c = random_bfloat16(16, 32), random_bfloat16(32, 16, seed=1), torch.randn(16, 16)
    wide_a, wide_b = a.double().numpy(), b.double().numpy()
    sums = np.zeros((2, 16, 16), np.float32)
    for k in range(32):  # a product of two bfloat16 and its sum with a float32 are rounded once, as in float64
        sums[k % 2] = (sums[k % 2] + np.outer(wide_a[:, k], wide_b[k])).astype(np.float32)
    expected = c.numpy() + (sums[0] + sums[1])
    for rounding in (0x000, 0x400, 0x800, 0xC00):  # to the nearest, down, up, towards zero: the unit does not ask
        found = c.clone()
        call(products.multiply_add, a, in_pairs(b), found, rounding)
        np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_allclose(expected, c.double().numpy() + wide_a @ wide_b, atol=1e-5)


def test_the_emulator_takes_denormal_numbers_for_zero(products):
    a, b, c = torch.zeros(16, 32).bfloat16(), torch.zeros(32, 16).bfloat16(), torch.full((16, 16), 1e-39)
    a[0, 0], b[0, 0] = 1e-39, 1e30  # a denormal number
    a[1, 1], b[1, 1] = 1e-20, 1e-19  # a denormal product
    a[2, 2], b[2, 2] = 2, 3
    b[3, 3] = math.nan  # beside zeros
    call(products.multiply_add, a, in_pairs(b), c, 0)
    expected = torch.zeros(16, 16)
    expected[2, 2], expected[:, 3] = 6, math.nan
    assert torch.equal(c.view(torch.int32) == 0, expected == 0)
    torch.testing.assert_close(c, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "columns", "k"), ((32, 32, 32), (64, 96, 128), (128, 32, 256)))
def test_products_in_blocks_agree_with_float64(rows, columns, k, products):
    a, b = random_bfloat16(rows, k), random_bfloat16(k, columns, seed=1)
    c = torch.full((rows, columns), math.nan)
    call(products.blocks, rows, columns, k // 2, a, in_pairs(b), c)
    torch.testing.assert_close(c.double(), 2 * (a.double() @ b.double()), rtol=0, atol=1e-4)


def test_the_emulator_finds_a_thread_without_configuration(products):
    assert call(products.fails_without_configuration, torch.zeros(16, 16)) == 1


FORWARD_64, BACKWARD_64 = (96, 32, 64), (240, 80, 160)
"""Loads, stores and products of 64 queries and 64 keys of width 64: 3 loads and one store for two products."""


def test_instructions_per_tile(environment):
    """What a prediction of the rate rests on, and what a change would move unseen."""
    assert emulated(environment, per_tile, 64) == str([list(FORWARD_64), list(BACKWARD_64)])


# ---------------------------------------------------------------------------------------------------------------------
# The instructions themselves, where they can be had.


def assembled(source) -> str:
    """What the compiler makes of a file for a processor with AMX."""
    command = ["c++", *build._flags(), "-march=sapphirerapids", f"-I{SOURCES}", "-S", "-o", "-"]
    if subprocess.run([*command, "-x", "c++", os.devnull], capture_output=True).returncode:
        pytest.skip("the compiler does not know Sapphire Rapids")
    return subprocess.run([*command, str(source)], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_real_instructions_are_assembled():
    text = assembled(SOURCES / "amx.cpp")
    counts = {name: text.count(f"\t{name}") for name in ("tdpbf16ps", "tileloadd", "tilestored")}
    # Two directions, two kinds of block: 4 products, 8 loads and 4 stores each, wherever they are inlined.
    blocks = counts["tilestored"] // 4
    assert blocks >= 2 and counts == {"tdpbf16ps": 4 * blocks, "tileloadd": 8 * blocks, "tilestored": 4 * blocks}
    assert 0 < text.count("ldtilecfg") <= text.count("tilerelease")


BOTH_WAYS = """
#include "amx.hpp"

extern "C" void ours(const float* from, long row, float* to) {
  amx::load<3>(from, row), amx::multiply_add<2, 5, 6>(), amx::store<4>(to, row), amx::configure(from), amx::release();
}

extern "C" void theirs(const float* from, long row, float* to) {
  _tile_loadd(3, from, row);
  _tile_dpbf16ps(2, 5, 6);
  _tile_stored(4, to, row);
  _tile_loadconfig(from);
  _tile_release();
}
"""


def test_our_assembly_is_that_of_the_intrinsics(tmp_path):
    """Order of operands, numbers of registers and addresses, which no machine without AMX can try."""
    (tmp_path / "both.cpp").write_text(BOTH_WAYS)
    halves = assembled(tmp_path / "both.cpp").split("theirs:")[:2]
    ours, theirs = (re.findall(r"^\s+((?:ld)?t(?:ile|dp).*)$", text, re.MULTILINE) for text in halves)
    assert len(ours) == 5 and [x.split() for x in ours] == [x.split() for x in theirs]


@pytest.mark.skipif(build._has_amx(), reason="this machine has AMX")
def test_leave_that_is_refused(forked):
    """A library with the real instructions, on a machine whose system refuses them: the next best, and one line."""
    code = (
        "import torch, asterism\nfrom asterism.kernels import cpu\n"
        "q = torch.ones(1, 1, 200, 64, dtype=torch.bfloat16, requires_grad=True)\n"
        "asterism.attend(q, q, q, 'causal()', implementation='cpu').sum().backward()\n"
        "print(cpu.library().asterism_knows_amx(), cpu.instruction_set(), q.grad.isfinite().all().item())"
    )
    environment = os.environ | with_kernel("-mamx-tile", "-mamx-bf16", "-O0")
    done = forked.run(code, environment)
    assert done.stdout.split() == ["1", "avx512_bf16", "True"], done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "AMX" in line)
    assert all(part in line for part in ("does without AMX", "ARCH_REQ_XCOMP_PERM", "Linux 5.16"))


ON_A_PROCESSOR_WITH_AMX = """
from asterism.kernels.cpu import build, instruction_set
known = build.features()
build.features = lambda: known | {"amx_tile", "amx_bf16"}
print(instruction_set())
"""


@pytest.mark.slow
def test_an_assembler_older_than_amx(tmp_path):
    """The kernel is built without, and one line says what to do."""
    compiler = tmp_path / "c++"
    refusal = "echo 'Error: no such instruction: `tileloadd (%rdi,%rsi,1),%tmm0' >&2; exit 1"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-mno-amx-tile*) exec c++ "$@";; *) {refusal};; esac\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CXX": str(compiler), "ASTERISM_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ON_A_PROCESSOR_WITH_AMX]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["avx512_bf16"], done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "AMX" in line)
    assert "the compiler does not know it. Install g++ 11" in line


class Library:
    """What a library says of itself."""

    def __init__(self, instruction_set: bytes, knows_amx: int):
        self.asterism_instruction_set, self.asterism_knows_amx = lambda: instruction_set, lambda: knows_amx


@pytest.mark.parametrize(
    ("library", "flags", "said"),
    (
        (Library(b"amx", 1), "amx_tile amx_bf16", None),
        (Library(b"avx512_bf16", 0), "avx512_bf16", None),
        (Library(b"avx512_bf16", 0), "amx_tile amx_int8", None),
        (Library(b"avx512_bf16", 0), "amx_tile amx_bf16", "compiler does not know it. Install g++ 11"),
        (Library(b"avx2", 0), "amx_tile amx_bf16", "compiler does not know it. Install g++ 11"),
        (Library(b"avx512_bf16", 1), "amx_tile amx_bf16", "system does not let this process use it"),
    ),
)
def test_what_is_said_of_amx_that_is_not_used(library, flags, said, monkeypatch):
    monkeypatch.setattr(build, "features", lambda: set(flags.split()))
    reason = build._unused_amx(library)
    assert reason is None if said is None else said in reason
