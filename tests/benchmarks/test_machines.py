"""benchmarks/machines.py: shares of a step, the bars, and how a process is held to a lesser processor."""

import importlib

import pytest
import torch
from repository import BENCHMARKS


@pytest.fixture
def machines(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("machines")


def a_step(optimiser=0.1, products=1.2, own=None):
    seconds = {"attention": 0.2, "products": 0.5, "optimiser": optimiser, "elementwise": 0.1, "rest": 0.1}
    return {
        "recipe": "bytes-small",
        "dtype": "float32",
        "seconds": seconds,
        "products_over_float32": products,
        "optimiser_products_over_float32": own,
    }


def a_class(*steps, bfloat16=1e9, seen="avx2", worst=1.1):
    choice = {"cells": 80, "above": 0, "worst": worst}
    return {
        "class": "avx2",
        "machine": {"kernel": "avx2", "capability": "AVX2"},
        "seen_as": seen,
        "products_per_second": {"float32": 1e11, "bfloat16": bfloat16},
        "steps": list(steps),
        "auto": {"calibrated": choice},
    }


def test_a_class_that_keeps_its_bars_has_no_faults(machines):
    assert machines.missed(a_class(a_step())) == []


@pytest.mark.parametrize(
    ("found", "words"),
    (
        (a_class(a_step(optimiser=5.0)), "the optimiser takes 85% of a step"),
        (a_class(a_step(products=12.0)), "products_over_float32 12.00"),
        (a_class(a_step(own=34.7)), "optimiser_products_over_float32 34.70"),
        (a_class(a_step(), bfloat16=9e10), "the emulation does not bite"),
        (a_class(a_step(), seen="avx512_bf16"), "seen as avx512_bf16"),
        (a_class(a_step(), worst=1.4), "auto by calibrated figures: 1.40"),
    ),
)
def test_each_bar_that_is_missed_is_named(machines, found, words):
    (line,) = machines.missed(found)
    assert words in line


def test_a_choice_above_the_bar_is_timed_again_and_longer(machines, monkeypatch):
    def a_row(ratio):
        times = {"auto": ratio, "cpu": ratio, "dense": 1.0}
        row = {"pattern": "causal()", "length": 64, "dtype": "float32", "backward": True}
        return row | {"taken": "cpu", "seconds": times, "fastest": times}

    asked = []
    monkeypatch.setattr(machines, "measure_choice", lambda *what: asked.append(what) or a_row(1.01))
    assert machines.confirmed(a_row(1.1)) == a_row(1.1) and asked == []
    assert machines.confirmed(a_row(1.2)) == a_row(1.01)
    assert asked == [("causal()", 64, torch.float32, True, 4 * machines.QUICK.seconds)]


def test_products_are_seen_with_the_shapes_of_their_operands_and_repeated_in_float32(machines):
    a, b = torch.ones(64, 96, dtype=torch.bfloat16), torch.ones(32, 96, dtype=torch.bfloat16)
    phase = machines.timed(lambda: (torch.mm(a, b.T), a + 1))
    assert [str(func) for func, _, _ in phase.products] == ["aten.mm.default"]
    (_, (_, (shape, strides)), _) = phase.products[0]
    assert (tuple(shape), strides) == ((96, 32), (1, 96))
    assert set(phase.by_kind) >= {"products", "elementwise"}
    assert machines.in_float32(phase.products) > 0


def test_shares_count_every_slice_and_the_optimiser_once(machines):
    computed = machines.Phase(2.0, {"attention": 0.5, "products": 1.0, "elementwise": 0.25}, float32=0.8)
    found = machines.shares(computed, machines.Phase(0.5, {"products": 0.3}, float32=0.1), slices=4)
    assert found["seconds"] == {"attention": 2.0, "products": 4.0, "optimiser": 0.5, "elementwise": 1.0, "rest": 1.0}
    assert found["products_over_float32"] == pytest.approx(1.25)
    assert found["optimiser_products_over_float32"] == pytest.approx(3.0)


def test_a_lesser_class_is_held_by_every_library_and_the_own_one_by_none(machines, monkeypatch):
    monkeypatch.setattr(machines, "playable", lambda: ["avx2", "avx512"])
    held = machines.environment("avx2")
    assert held["ONEDNN_MAX_CPU_ISA"] == "AVX2" and held["ATEN_CPU_CAPABILITY"] == "avx2"
    assert held["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"
    assert machines.environment("avx512") == dict(machines.os.environ)
