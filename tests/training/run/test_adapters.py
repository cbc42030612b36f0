"""Adapters of low rank: what learns, what is stored, resumed, merged and refused. Skipped where PEFT is missing."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from small_chats import CHATML, chats, completions, save_tiny_llama, words
from small_encoders import write_lines
from stopping import at_step
from transformers import AutoModelForCausalLM

from asterism import presence
from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, merge, open_run, predict, train
from asterism.training.run.adapters import adapter_parameters
from asterism.training.settings.lora import Lora, parse_lora

pytestmark = [
    pytest.mark.model,
    # PEFT asks transformers by a name that the next major version drops.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
peft = pytest.importorskip("peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that has learned to repeat letters, and now shall reverse words."""
    folder = tmp_path_factory.mktemp("base")
    with quiet_transformers():
        fresh = save_tiny_llama(folder / "fresh", template=CHATML)
    rows = [{"prompt": f"{text}>", "completion": text} for text in words(200)]
    data = write_lines(folder / "x.jsonl", rows)
    where = {"model": str(fresh), "data": str(data), "length": 32}
    how = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 16, "steps": 40, "dtype": "float32"}
    train(FineTuneConfig(task="complete", epochs=99.0, **where, **how), folder / "run", progress=False)
    return shutil.copytree(folder / "run" / "model", folder / "model")


@pytest.fixture(scope="module")
def settings(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files = {
        "complete": write_lines(folder / "c.jsonl", completions(words(100))),
        "instruct": write_lines(folder / "i.jsonl", chats(words(100))),
    }

    def make(task="complete", **changes):
        values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 8}
        where = {"model": str(base), "data": str(files[task]), "lora": "r=4", "pattern": "sinks(first=2, window=14)"}
        return FineTuneConfig(**{"task": task, "epochs": 99.0, "length": 64} | where | values | changes)

    return make


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, train(settings(), folder, progress=False)


def test_twenty_steps_lower_the_loss_under_bfloat16_with_checkpointing(settings, tmp_path):
    rows = [{"prompt": f"{text}>", "completion": "hgf"} for text in words(100)]
    data = write_lines(tmp_path / "x.jsonl", rows)
    asked = settings(data=str(data), dtype="bfloat16", steps=20, log_every=1, gradient_checkpointing=True)
    asked = replace(asked, lora="r=8, dropout=0.05", learning_rate=2e-2)
    train(asked, tmp_path / "run", progress=False)
    lines = map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 20 and sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_only_the_adapter_learns_and_is_stored(finished, base):
    folder, report = finished
    there = {path.name for path in (folder / "model").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "config.json", "tokenizer.json"} <= there
    assert "model.safetensors" not in there
    stored = load_file(folder / "model" / "adapter_model.safetensors")
    trained = sum(one.numel() for one in stored.values())
    assert any(note.startswith(f"lora: {trained:,} of {report.parameters:,} parameters") for note in report.notes)
    model = open_run(folder).model
    kept = load_file(base / "model.safetensors")
    names = {name.replace(".base_layer", ""): one for name, one in model.state_dict().items() if "lora_" not in name}
    assert all(torch.equal(names[name], one) for name, one in kept.items())
    assert all((one != 0).any() for one in adapter_parameters(model).values())


def test_peft_loads_what_a_run_stores(finished, base):
    folder, _ = finished
    run = open_run(folder)
    row = torch.arange(30)[None]
    with torch.no_grad():
        expected = run.model(input_ids=row, use_cache=False).logits
        with quiet_transformers():
            own = peft.AutoPeftModelForCausalLM.from_pretrained(folder / "model").eval()
            plain = AutoModelForCausalLM.from_pretrained(base)
            put_on = peft.PeftModel.from_pretrained(plain, folder / "model").eval()
        for model in (own, put_on):
            assert model.get_base_model().config.asterism_pattern == run.model.config.asterism_pattern
            torch.testing.assert_close(model(input_ids=row, use_cache=False).logits, expected)


@pytest.mark.parametrize("task", ["complete", "instruct"])
def test_a_run_that_is_stopped_resumes_to_the_same_bits(settings, task, tmp_path):
    asked = settings(task, steps=7, checkpoint_every=3, lora="r=4, dropout=0.1", packing=True)
    train(asked, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(5):
        train(asked, tmp_path / "cut", progress=False)
    train(asked, tmp_path / "cut", resume=True, progress=False)
    for name in ("model/adapter_model.safetensors", "model/adapter_config.json", "predictions.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_merged_model_has_the_same_logits_and_needs_no_base(finished, tmp_path, capsys):
    folder, report = finished
    assert main(["export", str(folder), "--merge", "--output", str(tmp_path / "merged"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["error"] < 1e-5 and said["pattern"] == "sinks(first=2, window=14)"
    row = torch.arange(30)[None]
    with quiet_transformers(), torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        expected = open_run(folder).model(input_ids=row, use_cache=False).logits
        torch.testing.assert_close(merged(input_ids=row, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)
    assert not [name for name in merged.state_dict() if "lora" in name]
    assert merged.config.asterism_pattern == "sinks(first=2, window=14)"
    with refusing(CheckpointError, "folder-not-empty"):
        merge(folder, tmp_path / "merged")
    assert evaluate(folder).scores == report.scores  # the run has its adapter still


def test_a_merged_model_can_be_tuned_on_and_an_adapter_alone_cannot(settings, finished, tmp_path):
    folder, _ = finished
    merge(folder, tmp_path / "merged")
    report = train(settings(model=str(tmp_path / "merged"), lora=None), tmp_path / "more", progress=False)
    assert report.steps == 8
    with refusing(ConfigurationError, "no-adapter"):
        merge(tmp_path / "more", tmp_path / "again")
    for where in (folder, folder / "model"):
        with refusing(CheckpointError, "adapter-without-base", "--merge"):
            train(settings(model=str(where)), tmp_path / "other", progress=False)


def test_another_base_is_refused(settings, base, tmp_path):
    moved = shutil.copytree(base, tmp_path / "base")
    train(settings(model=str(moved), steps=1, warmup_steps=0), tmp_path / "run", progress=False)
    assert list(predict(tmp_path / "run", [{"prompt": "a>"}]))
    tensors = load_file(moved / "model.safetensors")
    tensors["model.norm.weight"] += 1e-3
    save_file(tensors, moved / "model.safetensors", metadata={"format": "pt"})
    with refusing(CheckpointError, "adapter-of-other-base", str(moved)) as caught:
        open_run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    shutil.rmtree(moved)
    with refusing(CheckpointError, "not-a-model-folder", str(moved)):
        open_run(tmp_path / "run")


def test_settings_of_adapters(settings, tmp_path, monkeypatch):
    assert parse_lora("r=8") == Lora(8) == parse_lora("lora(r=8)") and Lora(8).scale == 16
    assert parse_lora("r=8, alpha=4, targets='q_proj, v_proj'").layers == ["q_proj", "v_proj"]
    for text, code in (
        ("r=0", "setting-range"),
        ("r=1.5", "setting-range"),
        ("dropout=1", "setting-range"),
        ("alpha=-1", "setting-range"),
        ("rank=8", "unknown-argument"),
        ("r=", "not-a-call"),
    ):
        with refusing(ConfigurationError, code, "lora"):
            settings(lora=text)
    with refusing(ConfigurationError, "setting-range", "from_scratch"):
        settings(from_scratch=True)
    with refusing(ConfigurationError, "lora-targets", "'nothing'"):
        train(settings(lora="targets=nothing"), tmp_path / "run", progress=False)
    report = train(
        settings(lora="r=2, targets='q_proj,v_proj'", steps=1, warmup_steps=0), tmp_path / "two", progress=False
    )
    assert any(note.startswith("lora: ") for note in report.notes)
    stored = load_file(tmp_path / "two" / "model" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in stored} == {"q_proj", "v_proj"}
    monkeypatch.setattr(presence, "find_spec", lambda name: None)
    with refusing(ConfigurationError, "package-missing", "peft", "[lora]"):
        train(settings(), tmp_path / "none", progress=False)
