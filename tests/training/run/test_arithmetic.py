"""What a run computes in: the choice, and its changes."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from stopping import at_step
from tiny_run import history

from asterism.cli.main import main
from asterism.kernels.choice.prices import Rates
from asterism.training.pipeline import evaluate, generate, open_run, resolve, train
from asterism.training.run import arithmetic as arithmetic_module
from asterism.training.settings.configuration import config_to_dict

pytestmark = pytest.mark.model


def test_accumulation_and_recomputation_change_only_rounding(tiny, tmp_path):
    config = replace(tiny, steps=5, model=replace(tiny.model, dropout=0.0))
    variants = {
        "plain": {},
        "sliced": {"gradient_accumulation_steps": 4},
        "recomputed": {"gradient_checkpointing": True},
    }
    scores = {
        name: train(replace(config, **change), tmp_path / name, progress=False).validation_bits_per_byte
        for name, change in variants.items()
    }
    assert scores["recomputed"] == scores["plain"]
    assert scores["sliced"] == pytest.approx(scores["plain"], abs=1e-4)


def test_bfloat16_trains_too(tiny, finished, tmp_path):
    report = train(replace(tiny, dtype="bfloat16"), tmp_path / "run", progress=False)
    assert report.validation_bits_per_byte == pytest.approx(finished[1].validation_bits_per_byte, abs=0.3)


def _rates(monkeypatch, bfloat16):
    """A machine that multiplies bfloat16 so many times as fast as float32, by instructions of its own."""
    monkeypatch.setattr(arithmetic_module, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(arithmetic_module, "matrix_rates", lambda: {"float32": 1e11, "bfloat16": bfloat16 * 1e11})


@pytest.mark.parametrize(("faster", "dtype"), [(0.3, "float32"), (1.05, "float32"), (2.0, "bfloat16")])
def test_auto_is_what_the_machine_multiplies_faster(tiny, monkeypatch, capsys, faster, dtype):
    _rates(monkeypatch, faster)
    auto = replace(tiny, dtype="auto")
    setup = resolve(auto)
    assert (setup.asked, setup.config) == (auto, replace(tiny, dtype=dtype))
    assert setup.objective.config.dtype == dtype
    words = ["train", "--data", tiny.data, "--context", "64", "--batch-size", "2", "--dry-run"]
    assert main(words) == 0
    assert f"dtype       {dtype} (auto)\n" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == dtype
    assert main([*words, "--dtype", "float32"]) == 0
    assert "dtype       float32\n" in capsys.readouterr().out


def test_a_time_that_was_not_measured_is_called_a_guess(tiny, monkeypatch, capsys):
    words = ["train", "--data", tiny.data, "--context", "64", "--batch-size", "2", "--dry-run", "--dtype", "float32"]
    for measured, begins in ((True, "at least"), (False, "a guess, without measurements of this machine: at least")):
        rates = Rates({"float32": 1e9, "bfloat16": 1.0}, measured)
        monkeypatch.setattr("asterism.training.ask.estimate.expected_rates", lambda rates=rates: rates)
        assert main(words) == 0
        assert f"time        {begins} " in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_auto_stays_what_it_was_when_the_run_began(tiny, tmp_path, monkeypatch, optimizer):
    """Also on another machine, in training, evaluation and sampling: the bits are those of an explicit bfloat16."""
    explicit = replace(tiny, dtype="bfloat16", optimizer=optimizer, steps=20)
    whole = train(explicit, tmp_path / "whole", progress=False)
    _rates(monkeypatch, 2.0)
    auto = replace(explicit, dtype="auto")
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(auto, tmp_path / "parts")
    _rates(monkeypatch, 0.5)
    parts = train(auto, tmp_path / "parts", resume=True, progress=False)
    assert parts.notes == ["dtype: auto chose bfloat16"]
    assert parts.validation_bits_per_byte == whole.validation_bits_per_byte
    assert history(tmp_path / "parts") == history(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    run = open_run(tmp_path / "parts")
    assert config_to_dict(run.folder.read_config()) == config_to_dict(auto)
    assert config_to_dict(run.config) == config_to_dict(explicit)
    assert evaluate(run).scores[0].bits_per_byte == pytest.approx(whole.validation_bits_per_byte, rel=1e-9)
    assert generate(run, b"def ", 40) == generate(tmp_path / "whole", b"def ", 40)


def test_a_run_is_sampled_in_its_own_arithmetic(finished, monkeypatch):
    run = open_run(finished[0])
    seen = []
    monkeypatch.setattr(run.model, "generate", lambda tokens, **_: seen.append(_autocast()) or tokens)
    for dtype in ("float32", "bfloat16"):
        run.objective.config = replace(run.config, dtype=dtype)
        generate(run, b"def ", 1)
    assert seen == [None, torch.bfloat16]


def _autocast():
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
