"""Costs are data: the files hold what the fit gives, and what they decide is written down here."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from repository import BENCHMARKS

from asterism import compile_pattern
from asterism.compiler import cost
from asterism.compiler.cost import Curve, Setting
from asterism.kernels.choice import choice, prices


@pytest.fixture(scope="module")
def fitting():
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("choice_benchmark", BENCHMARKS / "choice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROCESSORS = [
    cost.Processor(kind, threads)
    for kind in ("avx2", "avx512", "avx512_bf16", "avx512_bf16_intel")
    for threads in (1, 2)
]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda one: f"{one.kind}-{one.threads}")
def test_the_figures_for_cpus_are_those_fitted_to_the_record(fitting, processor):
    name = f"{processor.kind}-{processor.threads}"
    record = json.loads((BENCHMARKS / "results" / f"costs-{name}.json").read_text())
    shipped = cost._read(f"cpu-{name}")
    assert fitting.fit(record) == shipped
    assert (shipped["class"], shipped["machine"]["threads"]) == processor
    assert cost.shipped_matrix_rates(processor) == record["matrix_rates"]


def test_the_shipped_matrix_rates_are_those_of_the_record():
    record = json.loads((BENCHMARKS / "results" / "costs-avx512_bf16-2.json").read_text())
    assert cost.shipped_matrix_rates() == record["matrix_rates"]


def test_every_class_of_processor_has_figures():
    """Its own, or those of a lesser one; bfloat16 is the faster only where it has fast instructions for it."""
    for kind in ("amx", "avx512_bf16", "avx512_bf16_intel", "avx512", "avx2", "baseline", "neon", "neon_bf16"):
        for threads in (1, 2, 3, 64):
            processor = cost.Processor(kind, threads)
            assert set(cost.shipped("cpu", "float32", True, processor)) == set(cost.shipped("cpu", "float32", True))
            rates = cost.shipped_matrix_rates(processor)
            assert (rates["bfloat16"] > rates["float32"]) == (kind in ("amx", "avx512_bf16"))
    many, two = (cost.shipped_matrix_rates(cost.Processor("avx2", threads)) for threads in (64, 2))
    assert many == {name: 32 * rate for name, rate in two.items()}


@pytest.mark.parametrize("device", ("cpu", "cuda"))
@pytest.mark.parametrize("dtype", ("float64", "float32", "bfloat16", "float16"))
@pytest.mark.parametrize("training", (False, True))
def test_every_way_has_every_figure(device, dtype, training):
    ways = {"dense full", "dense causal", "dense sparse", "eager", {"cpu": "cpu", "cuda": "triton"}[device]}
    prices = cost.shipped(device, dtype, training)
    assert set(prices) == ways
    assert all(curve.points[0][1] >= 0 and curve.pair > 0 for curve in prices.values())


def test_costs_by_hand():
    """launch + pair * tile * pairs * heads, from the figures of cpu-avx512_bf16-2.json and tiles.json."""
    plan = compile_pattern("causal()", 128, tile=64)
    setting = Setting(heads=8)
    assert plan.sparse_cost("cpu", setting) == pytest.approx(134e3 + 1.62 * 1.0 * 3 * 64**2 * 8)
    assert plan.dense_cost(setting) == pytest.approx(55e3 + 3.06 * 128**2 * 8)
    training = Setting(heads=8, prices=cost.shipped("cpu", "bfloat16", training=True))
    assert plan.sparse_cost("cpu", training) == pytest.approx(659e3 + 4.43 * 1.0 * 3 * 64**2 * 8)
    assert cost.tile_cost(10, rows=4, passes=3, tile=32) == pytest.approx((10 + 0.5 * 4 * 2) * 32**2 * 1.35)


def test_a_curve_by_hand():
    """What the first point costs, straight lines between the points, and `pair` for each pair beyond the last."""
    curve = Curve(((10, 100), (20, 300), (40, 400)), 7)
    expected = {0: 100, 9: 100, 10: 100, 15: 200, 20: 300, 30: 350, 40: 400, 41: 407, 140: 1100}
    assert {pairs: curve.at(pairs) for pairs in expected} == expected
    assert Setting(heads=5, prices={"dense full": curve}).cost("dense full", 3) == 200


def decided(pattern, tokens, heads, half, training, on_gpu, eager=False):
    tiles = "eager" if eager else "triton" if on_gpu else "cpu"
    pairs = pattern, heads, tokens, tokens, 0, False, False
    numbers = heads, "cuda" if on_gpu else "cpu", "bfloat16" if half else "float32", training
    taken = choice.answer(choice.ChoiceQuestion(*pairs, *numbers, "auto", tiles))
    return [taken, compile_pattern(pattern, tokens).tile]


def test_what_the_costs_decide_is_as_it_was(monkeypatch):
    """As recorded when the figures stood in the source (commit 06cecfa), but for two that changed on 2026-11-23, and
    for 34 short calls on GPUs on 2026-11-27, when one was measured.
    """
    monkeypatch.setattr(prices, "_machine", None)
    monkeypatch.setattr(prices, "Processor", lambda kind, threads: cost.PLANNED_FOR)
    record = json.loads((Path(__file__).with_name("choices.json")).read_text())
    assert len(record) > 300 and len({taken for *_, (taken, _) in record}) == 6
    for *question, expected in record:
        assert decided(*question) == expected, question


def test_what_is_asked_of_the_prices():
    q = torch.zeros(3, 2, 4, 4)
    tiles = choice.NAMED["cpu"]
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        operands = choice.Operands(*[q.to(getattr(torch, dtype))] * 3, None, None, None, "causal()", 0, 1.0)
        asked = choice._question(operands, "auto", tiles)
        assert asked.lanes == 6 and asked.cell == prices.Cell(dtype, training=False, tiles="cpu", device="cpu")
    operands = choice.Operands(q, q, q.clone().requires_grad_(), None, None, None, "causal()", 0, 1.0)
    assert choice._question(operands, "auto", tiles).training
