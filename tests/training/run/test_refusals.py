"""What is not begun or resumed: other settings, data and versions, and damaged files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from tiny_run import TEXT

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.training.data.corpora.bytes import Bytes
from asterism.training.pipeline import evaluate, generate, train
from asterism.training.run.folder import RunFolder
from asterism.training.run.integrity import seal, sums_of
from asterism.training.run.loaders import versions_of
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.settings.registry import OBJECTIVES

pytestmark = pytest.mark.model


def test_a_run_is_resumed_by_the_verb_that_began_it(finished, capsys):
    assert main(["finetune", "--resume", "--folder", str(finished[0])]) == 2
    out, err = capsys.readouterr()
    assert f"resume with: asterism train {finished[0]} --resume" in err and (out, err.count("\n")) == ("", 1)


def test_existing_folders_and_files_are_refused(tiny, finished, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (finished[0], tmp_path / "file", tmp_path):
        with refusing(CheckpointError, "folder-not-empty") as caught:
            train(tiny, folder, progress=False)
        assert caught.value.exit_code == 4
    assert (tmp_path / "file").read_text() == "mine"


def test_bad_data_and_bad_models_leave_no_folder(tiny, tmp_path):
    with refusing(DataError, "missing-data"):
        train(replace(tiny, data=str(tmp_path / "nothing")), tmp_path / "run")
    with refusing(DataError, "pieces-too-short", "100,000", "100,001"):
        train(replace(tiny, context=100_000), tmp_path / "run")
    with refusing(ConfigurationError, "heads-divide-width", "5"):
        train(replace(tiny, model=replace(tiny.model, num_attention_heads=5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_not_resumed(tiny, tmp_path):
    with refusing(CheckpointError, "not-a-run-folder", "nowhere"):
        train(tiny, tmp_path / "nowhere", resume=True)
    with refusing(CheckpointError, "not-a-run-folder"):
        generate(tmp_path, b"a", 1)


def test_only_the_same_run_is_resumed(tiny, interrupted, tmp_path):
    with refusing(ConfigurationError, "setting-changed", "batch_size", "4", "8"):
        train(replace(tiny, batch_size=4), interrupted, resume=True)
    moved = tmp_path / "moved.txt"
    moved.write_bytes(TEXT + b"x" * 40)
    with refusing(DataError, "data-changed"):
        train(replace(tiny, data=str(moved)), interrupted, resume=True)
    moved.write_bytes(TEXT)
    assert train(replace(tiny, data=str(moved)), interrupted, resume=True, progress=False).steps == 30


def test_a_run_is_not_resumed_by_another_version_of_what_loads_its_data(tiny, interrupted, monkeypatch):
    assert RunFolder(interrupted).read_record()["readers"] == {"objective": {"causal": 1}, "modality": {"bytes": 1}}
    with monkeypatch.context() as patch:
        patch.setattr(Bytes, "version", 2)
        with refusing(DataError, "loader-version", "1", "modality", "bytes", "2", "0"):
            train(tiny, interrupted, resume=True, progress=False)
    monkeypatch.setitem(OBJECTIVES, "causal", OBJECTIVES["causal"]._replace(version=2))
    with pytest.raises(DataError, match="version 1 of objective causal, but this asterism has 2"):
        train(tiny, interrupted, resume=True, progress=False)


def test_whatever_loads_data_has_a_version():
    fine_tuning = FineTuneConfig(task="classify", model="m", data="d", modality="audio(rate=8000)", reader="whole()")
    assert versions_of(fine_tuning) == {
        "objective": {"labelled": 1},
        "task": {"classify": 1},
        "reader": {"whole": 1},
        "modality": {"audio": 1},
    }


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change(path: Path, edit) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    _sum_anew(path.parent)


def _sum_anew(checkpoint: Path) -> None:
    """Have the record of a checkpoint say that its files are what was written."""
    record = json.loads((checkpoint / "state.json").read_text())
    sums = {name: sum for name, sum in sums_of(checkpoint).items() if name != "state.json"}
    (checkpoint / "state.json").write_text(json.dumps(seal(record | {"files": sums})))


def _of_another_version(path: Path) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps(seal(record | {"step": 3, "surplus": 1})))


BIAS = "model.layers.0.mixer.query.bias"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", _truncate, "model.safetensors is damaged"),
        ("optimizer.safetensors", _truncate, "optimizer.safetensors is damaged"),
        ("state.json", _truncate, "state.json is damaged"),
        ("state.json", lambda path: path.write_text('{"step": 3}'), "state.json is damaged, or from a version"),
        ("state.json", _of_another_version, "state.json is damaged: its fields must be"),
        ("model.safetensors", Path.unlink, "model.safetensors is missing"),
        ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
        ("state.json", Path.unlink, "state.json is missing"),
        ("model.safetensors", lambda path: _change(path, lambda t: t.pop(BIAS)), f"lacks the tensor {BIAS}"),
        (
            "model.safetensors",
            lambda path: _change(path, lambda t: t.update(extra=torch.zeros(1))),
            "the model has no tensor extra",
        ),
        (
            "optimizer.safetensors",
            lambda path: _change(path, lambda t: t.update({f"exp_avg.{BIAS}": torch.zeros(3)})),
            rf"exp_avg.{BIAS} has shape \[3\], but the model needs \[32\]",
        ),
    ],
)
def test_damage_is_named(tiny, interrupted, name, damage, message):
    damage(interrupted / "checkpoints" / "step-00000014" / name)
    with pytest.raises(CheckpointError, match=message) as caught:
        train(tiny, interrupted, resume=True)
    assert caught.value.exit_code == 4 and name in str(caught.value).splitlines()[0]


def _edit(path, **changes):
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changes)))


def _sealed(record):
    return lambda path: path.write_text(json.dumps(seal(record)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "run.json is damaged"),
        (lambda path: path.write_text("[]"), "run.json is damaged: it holds list, not the fields of a record"),
        (_sealed({}), "run.json is damaged: it lacks kind, config, dtype, decided, .*, versions, result"),
        (lambda path: _edit(path, config={"a": 1}), "there is no field 'a'"),
        (lambda path: _edit(path, config=3), "run.json is damaged"),
        (lambda path: _edit(path, dtype="float16"), "run.json is damaged: it lacks the dtype"),
        (lambda path: _edit(path, kind="trian"), "there is no kind 'trian'. Did you mean 'train'?"),
    ],
)
def test_a_damaged_record_is_named(tiny, interrupted, damage, message):
    damage(interrupted / "run.json")
    with pytest.raises(CheckpointError, match=message):
        train(tiny, interrupted, resume=True)
    with pytest.raises(CheckpointError, match=message):
        evaluate(interrupted)
