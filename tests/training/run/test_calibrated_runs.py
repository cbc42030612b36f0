"""A run keeps to the prices that it began with, so that it resumes to the same bits on a machine measured anew."""

import json

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from stopping import at_step

from asterism.errors import CheckpointError
from asterism.kernels.choice import measure, prices
from asterism.kernels.cpu import library
from asterism.training.pipeline import train
from asterism.training.run.folder import RunFolder
from asterism.training.run.integrity import seal
from asterism.training.settings.configuration import ModelConfig, RunConfig

pytestmark = pytest.mark.model

CHEAP, DEAR = [[1000, 10.0], [1e6, 1e4]], [[1000, 40.0], [1e6, 4e4]]


@pytest.fixture
def config(tmp_path):
    (tmp_path / "text").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 400)
    model = ModelConfig(mixers="causal()", hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    return RunConfig(
        model=model,
        data=str(tmp_path / "text"),
        context=64,
        batch_size=4,
        steps=8,
        warmup_steps=1,
        dtype="float32",
        log_every=1,
    )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes dense attention, or the fused tiles, the cheaper way on a machine that is measured anew."""
    library()
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASTERISM_CALIBRATE")

    def set_cheap(cheap):
        ways = {way: CHEAP if way.startswith(cheap) else DEAR for way in measure.WAYS}
        monkeypatch.setattr(prices, "time_attention", lambda *_: ways)
        monkeypatch.setattr(prices, "_machine", None)
        prices.calibrate()

    return set_cheap


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def equal(one, two):
    return all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits_on_a_machine_measured_anew(config, machine, tmp_path):
    machine("cpu")
    train(config, tmp_path / "tiles")
    machine("dense")
    train(config, tmp_path / "whole")
    assert not equal(weights(tmp_path / "whole"), weights(tmp_path / "tiles")), "else the test shows nothing"
    with pytest.raises(KeyboardInterrupt), at_step(4):
        train(config, tmp_path / "parts")
    machine("cpu")
    train(config, tmp_path / "parts", resume=True)
    assert equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    kept = json.loads((tmp_path / "parts" / "run.json").read_text())["prices"]
    assert kept["float32"]["training"]["dense causal"] == CHEAP and set(kept) == {"float32"}


@pytest.mark.parametrize("prices", ([], 3, {"float32": 3}, {"float32": {"forward": {"cpu": [[1, -1]]}}}))
def test_prices_that_are_none_are_damage(config, tmp_path, prices):
    with pytest.raises(KeyboardInterrupt), at_step(4):
        train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.run_file.write_text(json.dumps(seal(folder.read_record() | {"prices": prices})))
    with refusing(CheckpointError, "damaged-file", "run.json"):
        train(config, tmp_path / "run", resume=True)
