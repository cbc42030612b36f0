"""Costs are data: the files hold what the fit gives, and what they decide is written down here."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from asterism import compile_pattern
from asterism.compiler import cost
from asterism.compiler.cost import Setting
from asterism.kernels import choice
from asterism.kernels.cpu import CPU
from asterism.kernels.eager import EAGER
from asterism.kernels.triton import TRITON

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def fitting():
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("choice_benchmark", BENCHMARKS / "choice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_for_cpus_are_those_fitted_to_the_record(fitting):
    record = json.loads((BENCHMARKS / "results" / "cpu-epyc-avx512-costs.json").read_text())
    shipped = cost._read("cpu")
    del shipped["matrix_rates"]  # those of another record
    assert fitting.fit(record) == shipped


def test_the_shipped_matrix_rates_are_those_of_the_record():
    record = json.loads((BENCHMARKS / "results" / "cpu-epyc-avx512.json").read_text())
    assert cost.shipped_matrix_rates() == pytest.approx(record["matmul_flops_per_second"], rel=0.005)


@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_every_way_has_every_figure(device):
    ways = {"dense full", "dense causal", "dense sparse", "eager", {"cpu": "cpu", "cuda": "triton"}[device]}
    assert set(cost._lines(device)) == {
        (way, numbers, direction)
        for way in ways
        for numbers in ("float32", "half")
        for direction in ("forward", "training")
    }
    assert all(line.launch >= 0 and line.pair > 0 for line in cost._lines(device).values())


def test_costs_by_hand():
    """launch + pair * tile * pairs * heads, from the figures of cpu.json and tiles.json."""
    plan = compile_pattern("causal()", 128, tile=64)
    setting = Setting(heads=8, half=False, training=False)
    assert plan.sparse_cost("cpu", setting) == pytest.approx(99e3 + 1.41 * 1.0 * 3 * 64**2 * 8)
    assert plan.dense_cost(setting) == pytest.approx(43e3 + 2.87 * 128**2 * 8)
    assert cost.tile_cost(10, rows=4, passes=3, tile=32) == pytest.approx((10 + 0.5 * 4 * 2) * 32**2 * 1.35)


def decided(pattern, tokens, heads, half, training, on_gpu, eager=False):
    tiles = EAGER if eager else TRITON if on_gpu else CPU
    shape = choice.Shape(heads, tokens, tokens, 0, masked=False, with_lse=False)
    setting = Setting(heads, half, training, on_gpu)
    kernel = choice._choose_by_cost(choice.Question(pattern, shape, "auto", tiles, setting))
    taken = kernel.name if kernel in (CPU, TRITON, EAGER) else kernel.kind
    return [taken, compile_pattern(pattern, tokens).tile]


def test_what_the_costs_decide_is_as_it_was():
    """As recorded when the figures stood in the source (commit 06cecfa)."""
    record = json.loads((Path(__file__).parent / "data" / "choices.json").read_text())
    assert len(record) > 300 and len({taken for *_, (taken, _) in record}) == 6
    for *question, expected in record:
        assert decided(*question) == expected, question


def test_a_half_is_a_half():
    q = torch.zeros(1, 2, 4, 4)
    for dtype, half in ((torch.float32, False), (torch.float64, False), (torch.bfloat16, True), (torch.float16, True)):
        operands = choice.Operands(*[q.to(dtype)] * 3, None, None, None, "causal()", 0, 1.0)
        assert choice._setting(operands) == Setting(heads=2, half=half)
