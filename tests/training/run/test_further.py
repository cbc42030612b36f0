"""Finished runs that are trained further: the schedule begins anew, and the second part is as exact as the first."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from stopping import at_step
from tiny_run import history

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.training.pipeline import open_run, train
from asterism.training.run import further
from asterism.training.run.folder import RunFolder
from asterism.training.run.schedule import learning_rate_factor, notes_at_the_end, progress, warm_up

pytestmark = pytest.mark.model


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run of 30 steps."""
    return shutil.copytree(finished[0], tmp_path / "copied")


@pytest.fixture(scope="module")
def longer(tiny, finished, tmp_path_factory):
    """The same run after 20 steps more; tests must not change it."""
    folder = shutil.copytree(finished[0], tmp_path_factory.mktemp("runs") / "longer")
    return folder, train(replace(tiny, steps=50), folder, resume=True, progress=False)


def test_a_finished_run_takes_more_steps(longer, finished, tiny):
    folder, report = longer
    assert report.steps == 50 and report.bytes_trained == 50 * 8 * 64
    assert report.validation_bits_per_byte < finished[1].validation_bits_per_byte
    assert history(folder)[: len(history(finished[0]))] == history(finished[0])
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in finished[0].iterdir())
    record = RunFolder(folder).read_record()
    assert record["config"]["steps"] == 50 and [one["steps"] for one in record["earlier"]] == [30]
    (note,) = [note for note in report.notes if note.startswith("trained further from step 30")]
    assert "rises from 0 to 0.01 again in 5 steps" in note and "falls to 0 at step 50" in note


def test_its_schedule_is_that_of_a_run_of_the_other_steps(longer, tiny):
    rest = replace(tiny, steps=20)
    for entry in history(longer[0]):
        if "learning_rate" in entry and entry["step"] > 30:
            factor = learning_rate_factor(rest, entry["step"] - 31, 0.0)
            assert entry["learning_rate"] == pytest.approx(0.01 * factor, rel=1e-12)
    config, begun = replace(tiny, steps=50, minutes=10.0), (30, 240.0)
    rest = replace(tiny, steps=20, minutes=6.0)
    for step, seconds in ((30, 240.0), (33, 270.0), (44, 300.0), (50, 500.0), (40, 600.0)):
        since = step - 30, seconds - 240
        for function in (progress, warm_up, learning_rate_factor, notes_at_the_end):
            assert function(config, step, seconds, begun) == function(rest, *since)


def test_its_second_part_resumes_to_the_same_bits(longer, copied, tiny):
    more = replace(tiny, steps=50)
    with pytest.raises(KeyboardInterrupt), at_step(37):
        train(more, copied, resume=True)
    assert [path.name for path in (copied / "checkpoints").iterdir()] == ["step-00000037"]
    assert not (copied / "model").exists() and open_run(copied).model is not None
    resumed = train(more, copied, resume=True, progress=False)
    same = {"minutes": 0, "folder": ""}
    assert asdict(resumed) | same == asdict(longer[1]) | same
    assert history(copied) == history(longer[0])
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (copied, longer[0]))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_one_killed_while_it_reopens_is_still_finished(copied, finished, tiny, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(further, "write_json", kill)
        train(replace(tiny, steps=50), copied, resume=True, progress=False)
    assert (copied / "checkpoints").exists()
    same = {"minutes": 0, "folder": ""}
    assert asdict(train(tiny, copied, resume=True, progress=False)) | same == asdict(finished[1]) | same
    assert not (copied / "checkpoints").exists()


def test_one_killed_before_its_old_model_is_removed_goes_on(copied, longer, tiny, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(further, "remove_folder", kill)
        train(replace(tiny, steps=50), copied, resume=True, progress=False)
    report = train(replace(tiny, steps=50), copied, resume=True, progress=False)
    assert report.validation_bits_per_byte == longer[1].validation_bits_per_byte


def test_what_goes_no_further_is_refused(finished, tiny):
    before = (finished[0] / "run.json").read_bytes()
    for code, changes in (
        ("steps-reached", {"steps": 20}),
        ("steps-reached", {"minutes": 5.0}),
        ("minutes-reached", {"steps": 50, "minutes": 1e-9}),
        ("setting-changed", {"steps": 50, "learning_rate": 1.0}),
    ):
        with refusing(ConfigurationError, code):
            train(replace(tiny, **changes), finished[0], resume=True, progress=False)
    with refusing(ConfigurationError, "setting-changed", "--resume --steps MORE"):
        train(replace(tiny, seed=5), finished[0], resume=True, progress=False)
    assert (finished[0] / "run.json").read_bytes() == before


def test_an_ordinary_checkpoint_says_nothing_of_a_second_beginning(interrupted):
    state = json.loads((RunFolder(interrupted).latest_checkpoint() / "state.json").read_text())
    assert set(state) == {"step", "seconds", "loss_sum", "loss_steps", "files", "sha256"}


def test_the_command_line_trains_further_without_the_old_time_limit(tiny, tmp_path, capsys):
    folder = tmp_path / "timed"
    train(replace(tiny, steps=2, minutes=60.0), folder, progress=False)
    assert main(["train", str(folder), "--resume", "--steps", "3"]) == 0
    assert "3 steps" in capsys.readouterr().out
    config = RunFolder(folder).read_config()
    assert (config.steps, config.minutes) == (3, None)
    for steps, code in (("3", 0), ("2", 2)):
        assert main(["train", str(folder), "--resume", "--steps", steps]) == code
