"""Runs end to end: learning, exact resumption, interruption, divergence."""

import json
import math
import random
import shutil
import signal
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from stopping import at_step
from tiny_run import history

from asterism.cli.main import main
from asterism.errors import ConfigurationError, NonFiniteLossError
from asterism.training.data.corpora.bytes import load_corpus
from asterism.training.pipeline import evaluate, generate, open_run, resolve, train
from asterism.training.run.folder import RunFolder
from asterism.training.run.integrity import seal
from asterism.training.run.signals import held_back
from asterism.training.settings.configuration import config_to_dict

pytestmark = pytest.mark.model

CPU = torch.device("cpu")


def test_a_run_learns_and_leaves_a_complete_folder(tiny, finished):
    folder, report = finished
    assert report.steps == 30 and report.bytes_trained == 30 * 8 * 64
    assert report.validation_bits_per_byte < 4
    assert report.parameters == resolve(tiny).build(CPU)[0].num_parameters()
    record = json.loads((folder / "run.json").read_text())
    assert record["result"] == report.as_json()
    assert record["corpus"]["sha256"] == load_corpus(tiny.data).sha256
    assert config_to_dict(RunFolder(folder).read_config()) == config_to_dict(tiny)
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "tensorboard").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "loss.png",
        "model",
        "run.json",
        "samples.jsonl",
        "tensorboard",
    ]


def test_history_logs_every_step_once_and_validates_on_time(finished):
    entries = history(finished[0])
    logged = [entry["step"] for entry in entries if "loss" in entry]
    assert logged == [7, 14, 21, 28, 30]
    assert [entry["step"] for entry in entries if "validation_bits_per_byte" in entry] == [10, 20, 30]
    assert math.log(256) > entries[0]["loss"] > entries[-2]["loss"]
    assert all(entry["bits_per_byte"] == entry["loss"] / math.log(2) for entry in entries if "loss" in entry)


def test_a_run_twice_gives_the_same_bits(tiny, finished, tmp_path):
    folder, report = finished
    again = train(tiny, tmp_path / "again", progress=False)
    assert again.validation_bits_per_byte == report.validation_bits_per_byte
    assert history(tmp_path / "again") == history(folder)
    other = train(replace(tiny, seed=1, steps=5), tmp_path / "other", progress=False)
    assert other.validation_bits_per_byte != report.validation_bits_per_byte


def test_an_interrupted_run_resumes_to_the_same_bits(tiny, finished, interrupted):
    folder, report = finished
    assert [path.name for path in (interrupted / "checkpoints").iterdir()] == ["step-00000014"]
    resumed = train(tiny, interrupted, resume=True, progress=False)
    assert asdict(resumed) | {"minutes": 0, "folder": ""} == asdict(report) | {"minutes": 0, "folder": ""}
    assert history(interrupted) == history(folder)
    one, two = load_file(folder / "model" / "model.safetensors"), load_file(interrupted / "model" / "model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_resumption_from_a_periodic_checkpoint_forgets_what_came_after_it(tiny, finished, tmp_path):
    folder = tmp_path / "killed"

    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    with pytest.raises(Killed), at_step(21, kill):
        train(tiny, folder)
    assert history(folder)[-1]["step"] == 21
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 28, "lo')
    (folder / "checkpoints" / ".step-00000024-abc").mkdir()
    train(tiny, folder, resume=True, progress=False)
    assert history(folder) == history(finished[0])
    assert not (folder / "checkpoints").exists()


def test_a_run_killed_before_its_first_checkpoint_starts_again(tiny, finished, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    shutil.copy(finished[0] / "run.json", folder)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(seal(record | {"result": None})))
    report = train(tiny, folder, resume=True, progress=False)
    assert report.validation_bits_per_byte == finished[1].validation_bits_per_byte


def test_resuming_a_finished_run_only_reports(tiny, finished):
    before = (finished[0] / "run.json").stat().st_mtime_ns
    assert train(tiny, finished[0], resume=True, progress=False) == finished[1]
    assert (finished[0] / "run.json").stat().st_mtime_ns == before


def test_sigterm_reaches_the_callers_handler_after_the_checkpoint(tiny, tmp_path):
    class Terminated(BaseException):
        pass

    def handler(number, frame):
        raise Terminated

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Terminated), at_step(7, lambda: signal.raise_signal(signal.SIGTERM)):
            train(tiny, tmp_path / "run")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert RunFolder(tmp_path / "run").latest_checkpoint().name == "step-00000007"


def test_the_second_signal_acts_at_once_and_ignored_ones_stay_ignored():
    with pytest.raises(KeyboardInterrupt), held_back() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second signal was held back")
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, previous)


def test_everybody_may_read_what_the_umask_allows(finished, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, kind in (("run.json", "file"), ("model", "folder")):
        assert (finished[0] / name).stat().st_mode == (tmp_path / kind).stat().st_mode


def test_nothing_is_pickled(interrupted, finished):
    for folder in (interrupted, finished[0]):
        names = {path.suffix for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard"}
        assert names <= {".json", ".jsonl", ".png", ".safetensors"}


def test_the_callers_generators_are_left_alone(tiny, tmp_path):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    folder = tmp_path / "run"
    train(replace(tiny, steps=2), folder, progress=False)
    evaluate(folder, limit=64)
    generate(folder, b"def", 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_divergence_stops_before_the_weights_change(tiny, tmp_path):
    folder = tmp_path / "run"
    with refusing(NonFiniteLossError, "loss-not-finite", "2", "the loss is nan") as caught:
        train(replace(tiny, learning_rate=1e30, warmup_steps=0, checkpoint_every=1), folder, progress=False)
    assert caught.value.exit_code == 5
    checkpoint = RunFolder(folder).latest_checkpoint()
    assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())


def test_a_time_budget_ends_the_run(tiny, tmp_path):
    report = train(replace(tiny, steps=10**9, minutes=0.03), tmp_path / "run", progress=False)
    last = [entry for entry in history(tmp_path / "run") if "loss" in entry][-1]
    assert 0.03 <= report.minutes < 0.5
    assert last["step"] == report.steps and last["learning_rate"] < tiny.learning_rate * 0.1


def test_a_dry_run_of_a_resumed_run_tells_what_is_left(tiny, interrupted, capsys):
    """`tiny` is of no recipe."""
    assert main(["train", "--resume", "--dry-run", "--folder", str(interrupted)]) == 0
    out = capsys.readouterr().out
    assert f"resumes     {interrupted / 'checkpoints' / 'step-00000014'}, after 14 steps\n" in out
    assert f"parameters  {open_run(interrupted).model.num_parameters():,}\n" in out
    assert "run         16 more steps" in out
    assert f"step        {tiny.batch_size * tiny.context:,} bytes" in out


def test_an_evaluation_draws_the_curve_so_far(tiny, tmp_path, draws_every_curve):
    with pytest.raises(KeyboardInterrupt), at_step(11):
        train(replace(tiny, evaluation_every=5), tmp_path / "run")
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_could_not_be_drawn_is_not_begun(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.presence.find_spec", lambda name: None)
    with refusing(ConfigurationError, "package-missing", "matplotlib", "train"):
        train(tiny, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
