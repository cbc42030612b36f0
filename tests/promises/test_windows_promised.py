"""`check_windows` finds every planted fault on the paths that it changes, and nothing where there is none."""

import json

import planted_windows as planted
import pytest
import torch
from planted_windows import LEFT, PACKED, PIECES, STATIC, Plant
from refusals import refusing
from torch import nn
from transformers import MistralConfig, MistralForCausalLM

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError
from asterism.promises import PATHS, check_windows, small_model, windows_table

pytestmark = pytest.mark.model

EVERY = frozenset(path.name for path in PATHS)
CACHED = frozenset(path.name for path in PATHS if path.needs_cache)
FEW = frozenset(("prefill", "padded left", "cache in short chunks"))
GENERATED = frozenset(("generate with static cache",))  # its masks are made by generate
CONTINUED = PIECES | {"full cache", "generate with chunked prefill"}
MISTRAL, GEMMA, LLAMA4, MODERNBERT = (
    f"{name}" for name in ("MistralForCausalLM", "Gemma3ForCausalLM", "Llama4ForCausalLM", "ModernBertForMaskedLM")
)
PLANTS = {
    "full mask": Plant(MISTRAL, planted.full_mask, EVERY),
    "wider by one": Plant(MISTRAL, planted.wider_by_one, EVERY),
    "narrower by one": Plant(MISTRAL, planted.narrower_by_one, EVERY),
    "dropped while a cache continues": Plant(MISTRAL, planted.where(planted.continues), CONTINUED),
    "dropped with a static cache": Plant(MISTRAL, planted.where(planted.is_static), STATIC - GENERATED),
    "dropped with padding on the left": Plant(MISTRAL, planted.where(planted.is_padded_left), LEFT),
    "chunks ignored": Plant(LLAMA4, planted.chunks_ignored, EVERY),
    "documents leak": Plant(MISTRAL, planted.documents_leak, PACKED),
    "one layer swapped": Plant(GEMMA, planted.one_layer_swapped, EVERY),
    "sees no future": Plant(MODERNBERT, planted.sees_no_future, EVERY - CACHED),
    "padding on the right read": Plant(MODERNBERT, planted.right_padding_read, PACKED | {"padded right"}),
    "dropped by generate": Plant(MISTRAL, planted.only_generate, GENERATED),
}


def dropped_paths(report):
    assert not [one for one in report.verdicts if one.state in ("refused", "undecided")]
    return {verdict.path for verdict in report.dropped}


@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_fault_is_found_where_it_is(name, monkeypatch):
    """On one path that it changes and, where there is one, on one that it leaves alone."""
    plant = PLANTS[name]
    model = small_model(plant.model).model
    plant.put(monkeypatch, model)
    paths = [*sorted(plant.paths & FEW or plant.paths)[:1], *sorted(FEW - plant.paths)[:1]]
    assert dropped_paths(check_windows(model, attention=["sdpa"], paths=paths)) == plant.paths & set(paths)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_fault_is_found_on_every_path_that_it_changes(name, attention, monkeypatch):
    plant = PLANTS[name]
    model = small_model(plant.model).model
    plant.put(monkeypatch, model)
    report = check_windows(model, attention=[attention])
    # Flex attention in generate with a static cache is refused by transformers, and reads the future in its chunks.
    known = {"generate with static cache", "static cache in chunks"} if attention == "flex_attention" else set()
    assert {one.path for one in report.verdicts if one.state in ("refused", "undecided")} <= known
    leaking = PACKED if plant.model == MODERNBERT else set()  # of encoders, transformers keeps no documents apart
    assert {one.path for one in report.dropped} - known == (plant.paths | leaking) - known


@pytest.mark.parametrize("name", [MISTRAL, GEMMA, LLAMA4])
def test_nothing_is_found_where_there_is_nothing(name):
    paths = ["prefill", "training", "padded left", "packed by position_ids", "cache in short chunks", "static cache"]
    report = check_windows(small_model(name).model, attention=["sdpa"], paths=paths)
    assert [one for one in report.verdicts if one.state != "applied"] == []


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [MISTRAL, GEMMA, LLAMA4])
def test_nothing_is_found_on_any_path(name, attention):
    report = check_windows(small_model(name).model, attention=[attention])
    assert [one for one in report.verdicts if one.state != "applied"] == []
