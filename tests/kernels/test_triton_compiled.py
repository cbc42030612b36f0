"""The Triton kernels compiled for sm_90, without a GPU: what can be seen in the objects, at the launcher's settings."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import compiled_for_hopper
import pytest
import torch
from compiled_for_hopper import SHARED_MEMORY, Launch

pytest.importorskip("triton", reason="needs the package triton; it is part of the dev extra on Linux")

from asterism.kernels.triton import kernel  # noqa: E402

PRODUCTS = {"forward": 2, "grad_q": 3, "grad_kv": 4, "decode": 2, "grad_bias": 2}
"""Matrix products of a block of queries and a block of keys."""

SPILLED = {
    ("forward", 128, 64): 12,
    ("forward", 128, 128): 24,
    ("grad_q", 64, 64): 8,
    ("grad_q", 128, 128): 16,
    ("grad_kv", 64, 64): 10,
    ("grad_kv", 64, 128): 10,
    ("grad_kv", 128, 64): 80,
    ("grad_kv", 128, 128): 50,
}
"""At most so many accesses to spilled registers in the text of the loops, by kernel, head_dim and tile; elsewhere none.

These sizes were the fastest on an H200, also where they spill: two gradients of 64 keys and 128 features fill 128
registers of a thread, and smaller blocks, or more warps, lost more. The others spill only with a key mask or segments.
"""

SPILLED_ONCE = 200
"""Such accesses in all, most of them before and after the loops."""


TERMS = ("bias", "softcap", "dropout")


def compiled(dtype: str, width: int, tile: int, masked: str, *terms: str) -> list[Launch]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [dtype, str(width), str(tile), masked, *terms]
    command = [sys.executable, "-W", "ignore", compiled_for_hopper.__file__, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [Launch(**json.loads(line)) for line in ended.stdout.splitlines()]


def assert_all_compiled(launches: list[Launch], *terms: str) -> None:
    """Every kernel is there, fits, and computes offsets into tensors in 64 bits and products in float32."""
    known = {*PRODUCTS, "merge_pieces", "prepare", "add_pieces"}
    assert {x.name for x in launches} == (known if "bias" in terms else known - {"grad_bias"})
    for x in launches:
        assert x.shared <= SHARED_MEMORY, x
        assert x.offsets == ["i64"], x
        assert not x.tf32, x


def assert_full_rate(launches: list[Launch], width: int, tile: int, masked: str) -> None:
    """Matrix instructions that do the work once, 16 bytes at a time from memory, nothing spilled in a loop."""
    for x in launches:
        if x.name not in PRODUCTS:
            assert x.spills == 0, x
            continue
        # Unless a key mask or segments forbid pairs anywhere, full tiles have a loop of their own.
        loops = 2 if masked == "plain" and x.name != "decode" else 1
        queries, keys = x.blocks
        assert x.products == loops * PRODUCTS[x.name] * queries * keys * width, x
        assert x.instructions == (["mma"] if x.name == "decode" else ["wgmma"]), x
        assert x.narrow == 0, x
        assert x.spills <= SPILLED_ONCE, x
        assert x.spills_in_loops <= SPILLED.get((x.name, width, tile), 0), x
        assert x.resident * x.warps >= 8, x


@pytest.mark.parametrize(
    ("dtype", "width", "tile", "masked"),
    [
        pytest.param(dtype, width, tile, masked, marks=pytest.mark.slow)
        for dtype, width, tile, masked in (
            ("float16", 16, 32, "masked"),
            *(
                (dtype, *rest)
                for dtype in ("bfloat16", "float32")
                for rest in ((5, 16, "masked"), (64, 64, "plain"), (80, 128, "plain"), (256, 128, "masked"))
            ),
        )
    ],
)
def test_the_kernels_compile_for_a_gpu(dtype, width, tile, masked):
    assert_all_compiled(compiled(dtype, width, tile, masked))


@pytest.mark.parametrize(
    ("width", "tile", "masked"),
    [
        pytest.param(*case, marks=[] if case == (64, 64, "masked") else pytest.mark.slow)
        for case in ((w, t, m) for w in (64, 128) for t in (64, 128) for m in ("plain", "padded", "masked"))
    ],
)
def test_what_is_compiled_can_run_at_full_rate(width, tile, masked):
    launches = compiled("bfloat16", width, tile, masked)
    assert_all_compiled(launches)
    assert_full_rate(launches, width, tile, masked)


# ---------------------------------------------------------------------------------------------------------------------
# With terms of the score.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "tile", "masked", "terms"),
    [
        ("bfloat16", 128, 128, "padded", TERMS),
        ("bfloat16", 256, 128, "masked", TERMS),
        ("float32", 5, 16, "masked", TERMS),
        ("float32", 64, 64, "plain", TERMS),
        *(("float16", 64, 128, "plain", (term,)) for term in TERMS),
    ],
)
def test_terms_compile_for_a_gpu(dtype, width, tile, masked, terms):
    assert_all_compiled(compiled(dtype, width, tile, masked, *terms), *terms)


@pytest.mark.slow
def test_terms_run_at_full_rate_and_a_seed_is_no_other_kernel():
    launches = compiled("bfloat16", 64, 64, "plain", *TERMS)
    assert_all_compiled(launches, *TERMS)
    for x in launches:
        if x.name in PRODUCTS:
            loops = 1 if x.name == "decode" else 2
            assert x.products == loops * PRODUCTS[x.name] * x.blocks[0] * x.blocks[1] * 64, x
            assert x.spills_in_loops <= 1 and x.spills <= 20, x
    seeded = [x.number for x in launches if x.name in ("forward", "grad_q", "grad_kv", "grad_bias")]
    assert seeded[: len(seeded) // 2] == seeded[len(seeded) // 2 :]


# ---------------------------------------------------------------------------------------------------------------------
# The settings themselves.


@pytest.mark.parametrize("memory", (64 * 2**10, 99 * 2**10, 163 * 2**10, 227 * 2**10))
@pytest.mark.parametrize("tile", (64, 128))
@pytest.mark.parametrize("segmented", (False, True))
@pytest.mark.parametrize("terms", (False, True))
def test_blocks_fit_into_the_memory_of_a_core(memory, tile, segmented, terms):
    """T4, consumer GPUs, A100 and H100. What a program keeps and what its stages load; Triton needs a little more."""
    for name, element_size, width in kernel._BLOCKS:
        blocks = kernel._blocks(name, element_size, (width, width), tile, segmented, memory, terms)
        kept, streamed = (blocks.keys, blocks.queries) if name == "grad_kv" else (blocks.queries, blocks.keys)
        assert (kept + streamed * blocks.stages) * 2 * width * element_size <= memory
        assert blocks.stages >= 1 and max(kept, streamed) <= tile


@pytest.mark.parametrize("tile", (16, 32, 64, 128))
def test_no_four_warps_repeat_the_work_of_others(tile):
    """wgmma gives 64 rows to four warps: with less than 64 rows for each, Triton lets them compute the same rows."""
    for name, element_size, width in kernel._BLOCKS:
        if element_size == torch.bfloat16.itemsize and width <= 128:
            for segmented, terms in itertools.product((False, True), repeat=2):
                memory = SHARED_MEMORY
                blocks = kernel._blocks(name, element_size, (width, width), tile, segmented, memory, terms)
                rows = blocks.keys if name == "grad_kv" else blocks.queries
                assert blocks.warps == 4 or rows >= 16 * blocks.warps


def test_spilled_registers_and_repeated_work_would_be_seen():
    """What the reader of objects counts, on a text made up for it."""
    code = [".L_x_1:", "STL [R1], R2 ;", "@P0 BRA `(.L_x_1) ;", "LDL R2, [R1] ;", "BRA `(.L_x_2) ;", ".L_x_2:"]
    assert compiled_for_hopper._spills(code) == (1, 2)
    ptx = "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 x\nmma.sync.aligned.m16n8k16.row.col.f32 y"
    assert compiled_for_hopper._products(ptx, 8) == 2 * 64 * 32 * 16 + 8 * 16 * 8 * 16
    load = "ttg.async_copy_global_to_local %p : tensor<64x64x!tt.ptr<bf16>, #b> -> x"
    narrow = ["LDGSTS.E.64 [R1], [R2] ;", "LDGSTS.E.BYPASS.128 [R1], [R2] ;"]
    assert compiled_for_hopper._narrow(load, narrow, 4, "bf16") == 64 * 64 * 2 - 16 * 128


@pytest.mark.parametrize(
    ("dtype", "width", "masked"),
    [("bf16", 64, "masked"), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("fp32", 128, "plain"),))],
)
def test_kernels_of_chosen_blocks_compile_for_a_gpu(dtype, width, masked):
    rows = compiled_by("chosen_for_hopper.py", dtype, str(width), masked)
    assert [row[0] for row in rows] == ["forward_chosen", "grad_q_chosen", "grad_kv_chosen"]
    assert all(int(row[1]) <= SHARED_MEMORY for row in rows)
    assert all(row[2:] == (["mma"] if dtype == "bf16" else []) for row in rows)


@pytest.mark.parametrize(("width", "run"), [(64, 64), pytest.param(128, 32, marks=pytest.mark.slow)])
def test_the_kernel_of_mass_compiles_for_a_gpu(width, run):
    ((name, shared),) = compiled_by("mass_for_hopper.py", str(width), str(run))
    assert name == "mass" and int(shared) <= SHARED_MEMORY


def compiled_by(script: str, *arguments: str) -> list[list[str]]:
    """The words that a script of tests/support prints, line by line."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    place = Path(compiled_for_hopper.__file__).with_name(script)
    command = [sys.executable, "-W", "ignore", str(place), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [line.split() for line in ended.stdout.splitlines()]
