"""A run that several processes share is the run of one: its curve, its folder, its end."""

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from launched_runs import assert_same_curve, flags, is_gone, launched, settings, steps_done, told, workers
from safetensors.torch import load_file

from asterism.cli.told import is_follower
from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig
from asterism.training import RunConfig, open_run, train
from asterism.training.run.estimate import estimate
from asterism.training.run.fitting import _refuse_dense_exchange
from asterism.training.run.loop import slice_weights
from asterism.training.run.mesh import MeshShape, mesh_shape
from asterism.training.run.processes import Processes

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    train(settings(folder), folder / "run", progress=False)
    return folder


def test_two_processes_have_the_curve_of_one(alone, tmp_path):
    config = settings(alone)
    process = launched(2, [*flags(config, tmp_path), "--folder", str(tmp_path / "run")])
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert_same_curve(tmp_path / "run", alone / "run")
    assert out.count("validation:") == 1
    assert errors.count("evaluating on the whole validation split") == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        path.name for path in (alone / "run").iterdir()
    )


def test_a_signal_to_one_process_stops_all_after_the_same_step_and_one_goes_on(alone, tmp_path):
    config = settings(alone, steps=40, dtype="float32", optimizer="adamw")
    process = launched(2, [*flags(config, tmp_path), "--parallel", "fsdp=2", "--folder", str(tmp_path / "run")])
    started = workers(process, 2)
    while steps_done(tmp_path / "run") < 3 and process.poll() is None:
        time.sleep(0.05)
    os.kill(started[1], signal.SIGTERM)
    _, errors = process.communicate(timeout=180)
    assert told(errors) == ["asterism: terminated"], errors
    assert all(is_gone(worker) for worker in started)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    assert 3 <= step == steps_done(tmp_path / "run") < 40
    again = replace(config, parallel="dp=1")
    train(again, tmp_path / "run", resume=True, progress=False)
    train(config, tmp_path / "one", progress=False)
    assert_same_curve(tmp_path / "run", tmp_path / "one", within=1e-4)


@pytest.mark.parametrize(
    ("text", "processes", "wanted"),
    [
        ("", 1, MeshShape()),
        ("", 4, MeshShape(dp=4)),
        ("dp=2,cp=4", 8, MeshShape(dp=2, cp=4)),
        (" cp=2 , fsdp=3", 6, MeshShape(fsdp=3, cp=2)),
        ("dp=1", 1, MeshShape()),
    ],
)
def test_a_mesh_says_who_shares_what(text, processes, wanted):
    assert mesh_shape(text, processes) == wanted
    assert wanted.processes == processes


@pytest.mark.parametrize(
    ("text", "processes", "message"),
    [
        ("dp=2", 1, "a mesh dp=2 has 2 processes, this is one alone; start it with `torchrun --nproc-per-node 2`"),
        ("dp=2,cp=2", 3, "a mesh dp=2,cp=2 has 4 processes, there are 3, or say another mesh, such as --parallel dp=3"),
        ("tp=2", 2, "'tp=2' is not one of dp=N, fsdp=N, cp=N"),
        ("dp=0", 1, "'dp=0' is not one of"),
        ("dp=-1", 1, "'dp=-1' is not one of"),
        ("dp=two", 2, "'dp=two' is not one of"),
        ("dp=99999999999", 2, "is not one of"),
        ("dp=2,dp=2", 4, "dp is given twice"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(text, processes, message):
    with pytest.raises(ConfigurationError, match=message):
        mesh_shape(text, processes)


def test_the_configuration_refuses_a_mesh_that_is_none():
    with pytest.raises(ConfigurationError, match="parallel: 'many' is not one of"):
        RunConfig(parallel="many")


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_weighted_means_of_all_parts_add_up_to_the_mean(readers, slices):
    generator = torch.Generator().manual_seed(readers)
    labels = torch.randint(-3, 5, (8, 7), generator=generator).clamp(min=-1)
    losses = torch.rand(8, 7, generator=generator, dtype=torch.float64)
    weights = slice_weights({"labels": labels}, slices, readers)
    total = 0.0
    for one in range(slices):
        rows = [part.chunk(slices)[one].tensor_split(readers) for part in (losses, labels)]
        for reader, (loss, label) in enumerate(zip(*rows, strict=True)):
            if (label >= 0).any():
                total += weights[reader][one] * loss[label >= 0].mean().item() / slices
    assert total == pytest.approx(losses[labels >= 0].mean().item(), abs=1e-12)


def test_a_process_without_labels_weighs_nothing():
    labels = torch.tensor([[1, 2], [-100, -100]])
    assert slice_weights({"labels": labels}, 1, 2) == [[1.0], [0.0]]


def test_a_run_in_float64_is_kept_and_estimated_in_float64(alone):
    weights = load_file(alone / "run" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float64}
    opened = open_run(alone / "run")
    assert all(torch.equal(weights[name], one) for name, one in opened.model.named_parameters())
    wide, narrow = estimate(settings(alone)), estimate(settings(alone, dtype="float32"))
    assert wide.weight_memory == 2 * narrow.weight_memory == 8 * wide.parameters
    assert wide.optimizer_memory == 2 * narrow.optimizer_memory
    assert 1.5 < wide.activation_memory / narrow.activation_memory < 2.1


def test_followers_know_themselves(monkeypatch):
    for rank, size, follows in (("1", "2", True), ("0", "2", False), ("1", "1", False), ("", "2", False)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        assert is_follower() == follows


@pytest.mark.parametrize(
    ("mixers", "fields", "refused"),
    [
        ("causal()", {}, True),
        ("interleave(window(left=8), causal())", {}, True),
        ("window(left=8)", {}, False),
        ("interleave(fourier(), window(4, 4))", {}, False),
        ("causal()", {"block": "all_attention", "persistent_vectors": 4, "relative_span": 8}, False),
        ("bigbird_etc(block=4, random=0, globals=3)", {"global_tokens": 3}, False),
    ],
)
def test_an_exchange_as_large_as_dense_is_refused_before_a_folder_is_begun(mixers, fields, refused):
    shape = AsterismConfig(mixers=mixers, hidden_size=32, num_attention_heads=4, **fields)
    config = RunConfig(context=64, batch_size=2, dtype="float32")
    setup = SimpleNamespace(config=config, shape=shape)
    shared = Processes(MeshShape(cp=3))
    if refused:
        with pytest.raises(ConfigurationError, match=r"causal\(\)' over 3 ranks would move .* dense_exchange=True"):
            _refuse_dense_exchange(setup, shared)
    else:
        _refuse_dense_exchange(setup, shared)
    _refuse_dense_exchange(SimpleNamespace(config=replace(config, dense_exchange=True), shape=shape), shared)
    _refuse_dense_exchange(setup, Processes(MeshShape(dp=3)))
