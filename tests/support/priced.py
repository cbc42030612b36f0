"""Machines whose prices tests give: of a kind that the library has no figures for, and never measured before."""

import os
import threading
from pathlib import Path

import pytest
import torch

from asterism.compiler import cost
from asterism.kernels.choice import choice, prices
from asterism.kernels.cpu import library

RATES = {"float32": 3e9, "bfloat16": 5e9}

CHEAP, DEAR = [[1000, 10.0], [1e6, 1e4]], [[1000, 40.0], [1e6, 4e4]]


@pytest.fixture
def unmeasured(tmp_path, monkeypatch):
    """A machine of a kind that the library has no figures for, and on which nothing was measured yet."""
    library()
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASTERISM_CALIBRATE")
    monkeypatch.setattr(prices, "has_figures", lambda processor: False)
    start_again(monkeypatch)


def shipped_rates() -> dict[str, float]:
    """What comes with the library for this class of processor and number of threads."""
    return cost.shipped_matrix_rates(prices.this_machine().processor)


def start_again(monkeypatch):
    """As a new process begins: nothing is known but what is kept."""
    monkeypatch.setattr(prices, "_machine", None)


@pytest.fixture
def counted(monkeypatch):
    """Products that are not timed: their rates are given, and who asked is counted."""
    asked = []

    def measured(threads):
        asked.append((threads, threading.current_thread().name, torch.is_autocast_enabled("cpu")))
        return RATES

    monkeypatch.setattr(prices, "time_products", measured)
    return asked


def the_file() -> Path:
    (path,) = Path(os.environ["ASTERISM_CACHE"]).glob("*.json")
    return path


@pytest.fixture
def priced(monkeypatch):
    """A machine where dense attention has the cheaper pairs, or tiles if `tiles_are_cheap`; what it was asked."""
    asked = []

    def measured(dtype, training, threads, tiles, seconds):
        asked.append((dtype, training, threads, *tiles))
        cheap, dear = (DEAR, CHEAP) if measured.tiles_are_cheap else (CHEAP, DEAR)
        dense = dict.fromkeys(("dense full", "dense causal", "dense sparse"), cheap)
        return dense | dict.fromkeys(tiles, dear)

    measured.tiles_are_cheap, measured.asked = False, asked
    monkeypatch.setattr(prices, "time_attention", measured)
    return measured


def taken(text, tokens, training=False, dtype=torch.float32, heads=8, **options):
    """What "auto" takes, without computing it."""
    q = torch.empty(1, heads, tokens, 64, dtype=dtype).requires_grad_(training)
    operands = choice.Operands(q, q, q, None, None, None, text, 0, 1.0, with_lse=False)
    return named(choice.choose(operands, "auto"))


def named(kernel):
    return getattr(kernel, "kind", None) or getattr(kernel, "name", None) or type(kernel).__name__
