"""Products by AMX, emulated: the kernel with the few instructions replaced by plain C++ of the same arithmetic.

Runs wherever AVX-512 multiplies bfloat16, with AMX or without. The build is a library of its own, so that what is
checked runs in processes of their own; each says in the end how many products the emulator was asked for.
"""

import ctypes
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
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

from asterism.kernels import cpu, operands
from asterism.kernels.cpu import build

SOURCES = Path(build.__file__).parent
EMULATED = "c++ -DASTERISM_EMULATED_TILES"
TILES = (32, 64, 128)


def multiplies_bfloat16() -> bool:
    """Whether this machine has what surrounds the products."""
    flags = build._processor().get("flags", "").split()
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

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
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
def environment(tmp_path_factory):
    folder = os.path.dirname(__file__)
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"CXX": EMULATED, "ASTERISM_CACHE": str(tmp_path_factory.mktemp("amx")), "PYTHONPATH": path}


def emulated(environment, function, *arguments):
    """What the function returns, or prints, in a process whose kernel emulates AMX."""
    code = (
        f"import test_cpu_amx as tests\nfound = tests.{function.__name__}(*{arguments!r})\n"
        "assert tests.cpu.instruction_set() == 'amx (emulated)'\nassert tests.executed()[2] > 1000\nprint(found)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1800)
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


def test_growing_and_falling_scores(environment):
    emulated(environment, slopes)


def test_equal_bits(environment):
    emulated(environment, same_bits)
