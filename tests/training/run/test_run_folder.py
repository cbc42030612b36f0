"""The run folder when things go wrong: processes that die, files that change, full disks, two runs at once."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import faults
import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from slow_cases import slow_except
from stopping import at_step

from asterism import files
from asterism.errors import AsterismError, CheckpointError, NonFiniteLossError
from asterism.files import replacing, replacing_file, writing
from asterism.training.pipeline import evaluate, generate, train
from asterism.training.run import checkpoint as checkpoints
from asterism.training.run.folder import RunFolder
from asterism.training.run.integrity import check_sums, read_sealed, seal, sums_of
from asterism.training.run.lock import locked
from asterism.training.settings.configuration import ModelConfig

pytestmark = pytest.mark.model

needs_preloading = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "faults.so"


@pytest.fixture(scope="module")
def thinned(library):
    return faults.preloaded(library, "deaths", "--stride", "61")


@needs_preloading
def test_a_run_that_dies_anywhere_goes_on_to_the_same_bits(thinned):
    assert sum(row["points"] for row in thinned["deaths"].values()) >= 5
    assert [point for row in thinned["deaths"].values() for point in row["lost"]] == []


@pytest.mark.slow
@needs_preloading
def test_a_run_that_dies_at_any_call_goes_on_to_the_same_bits(library, capsys):
    table = faults.preloaded(library, "deaths")["deaths"]
    with capsys.disabled():
        for name, row in table.items():
            print(f"\n{name}: {row['points']} kill points, {len(row['lost'])} lost", end="")
    assert sum(row["points"] for row in table.values()) > 250
    assert [point for row in table.values() for point in row["lost"]] == []


@needs_preloading
def test_what_gets_its_name_is_on_disk_before_and_its_name_after(thinned):
    """What a power cut leaves cannot be tried here; that all is flushed in its order can be read off the calls."""
    written, unnamed, renamed = set(), set(), 0
    for call, _, path in (line.partition(" ") for line in thinned["calls"]):
        folder = path.rpartition("/")[0]
        if call in ("write", "truncate"):
            written.add(path)
        elif call == "fsync":
            written.discard(path)
            unnamed.discard(path)
        elif call == "rename" and not path.rpartition("/")[2].startswith("."):
            renamed += 1
            assert not unnamed, f"{path} came before its predecessor was on disk"
            own = path.rpartition("/")[2]
            pending = {one for one in written if f"/.{own}-" in one and "/.tmp" not in one}
            assert not pending, f"{path} was renamed before {pending} were flushed"
            unnamed.add(folder)
    assert renamed >= 7 and not unnamed


def test_a_folder_is_replaced_by_a_whole_one_only(tmp_path):
    folder = tmp_path / "folder"
    for text in ("one", "two"):
        with replacing(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / "file").write_text(text)
            assert not folder.exists() or (folder / "inner" / "file").read_text() == "one"
        assert (folder / "inner" / "file").read_text() == text
    with pytest.raises(RuntimeError), replacing(folder) as temporary:
        raise RuntimeError
    assert (folder / "inner" / "file").read_text() == "two"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing_file(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_weights_may_be_read_by_whom_the_umask_allows(tmp_path):
    (tmp_path / "file").touch()
    with replacing(tmp_path / "folder") as temporary:
        descriptor = os.open(temporary / "weights", os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(descriptor)
    assert (tmp_path / "folder" / "weights").stat().st_mode == (tmp_path / "file").stat().st_mode


def test_leftovers_are_known_by_their_names(tmp_path):
    run = RunFolder(tmp_path)
    left = [files._beside(tmp_path / name) for name in ("run.json", "step-00000002")]
    left[0].write_text("half")
    left[1].mkdir()
    run.refuse_existing()
    (tmp_path / ".mine").write_text("")
    with refusing(CheckpointError, "folder-not-empty"):
        run.refuse_existing()
    files.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine"]


def test_the_last_line_of_the_history_is_written_once(tmp_path):
    run = RunFolder(tmp_path)
    run.append_history({"step": 3, "loss": 1.0})
    run.append_history({"step": 3, "validation": 2.0})
    for _ in range(2):
        run.end_history({"step": 4, "validation": 1.0})
    assert run.read_history() == [
        {"step": 3, "loss": 1.0},
        {"step": 3, "validation": 2.0},
        {"step": 4, "validation": 1.0},
    ]


def test_a_finished_run_is_tidied(tmp_path):
    run = RunFolder(tmp_path)
    (run.checkpoint(4)).mkdir(parents=True)
    files._beside(run.checkpoints).mkdir()
    run.run_file.write_text(json.dumps({}))
    run.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


# --- two at once -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    data = tmp_path_factory.mktemp("data") / "text.txt"
    data.write_bytes(faults.TEXT)
    return faults.configuration(data)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(config, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def stopped(config, tmp_path_factory):
    """A run that was interrupted at step 3; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(KeyboardInterrupt), at_step(3):
        train(config, folder)
    return folder


def test_a_run_in_progress_is_neither_resumed_nor_begun_by_another(config, tmp_path):
    folder, refusals = tmp_path / "run", []

    def meddle():
        for resume in (True, False):
            with pytest.raises(CheckpointError) as caught:
                train(config, folder, resume=resume, progress=False)
            refusals.append(str(caught.value))

    with at_step(2, meddle):
        train(config, folder)
    assert f"is in use by process {os.getpid()} on" in refusals[0]
    assert "exists and is not an empty folder" in refusals[1]
    assert not (folder / ".lock").exists()


HOLDER = """
import os, signal, sys, time
from pathlib import Path
from asterism.training.run.lock import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getppid(), flush=True)  # the child says it: by now it has closed its copy of the lock
        os.close(1)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_the_lock_of_a_process_that_was_killed_is_gone_even_if_its_child_lives(tmp_path):
    folder = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert int(holder.stdout.readline()) == holder.pid
        with pytest.raises(CheckpointError, match=f"in use by process {holder.pid} on"), locked(folder):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.killpg(holder.pid, 0)  # the child is there
        RunFolder(folder).refuse_existing()
        with locked(folder):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()
        holder.wait()
    assert list(folder.iterdir()) == []


def test_a_child_that_unwinds_leaves_the_lock_alone(tmp_path):
    folder = tmp_path / "run"
    with (lock := locked(folder)):
        if os.fork() == 0:
            lock.__exit__(None, None, None)
            os._exit(0)
        os.wait()
        with refusing(CheckpointError, "run-in-use"), locked(folder):
            pass
    assert not folder.exists()


def test_a_lock_that_is_not_ours_is_left_alone(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("a thesis")
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(AsterismError, match="symbolic links"), locked(folder):
        pass
    (folder / ".lock").unlink()
    (folder / ".lock").write_text("a key")
    with refusing(CheckpointError, "foreign-lock", "is not the lock of a run"), locked(folder):
        pass
    assert victim.read_text() == "a thesis" and (folder / ".lock").read_text() == "a key"
    (folder / ".lock").write_text("process 7 on a machine that lost its power")
    with locked(folder):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def no_locks(descriptor, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.warns(UserWarning, match="the file system has no locks"), locked(tmp_path):
        pass


# --- files that change -----------------------------------------------------------------------------------------------


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("which", ("finished", "stopped"))
def test_a_flipped_bit_is_named_wherever_it_is(which, config, request, tmp_path):
    """Of 40 each, in the order of a draw; a file gets as many as another, since a flip in tensors is the likely one."""
    whole = request.getfixturevalue(which)
    names = [path for path in sorted(whole.rglob("*")) if path.suffix in (".json", ".safetensors")]
    draw, folder = random.Random(which), tmp_path / "run"
    shutil.copytree(whole, folder)
    for number in range(40):
        path = folder / names[number % len(names)].relative_to(whole)
        before = path.read_bytes()
        bit = draw.randrange(8 * len(before))
        _flip(path, bit)
        asks = [lambda: evaluate(folder), lambda: generate(folder, b"a", 1)]
        if which == "stopped" or path.name == "run.json":  # else all that a resumed run does is to report
            asks.append(lambda: _resume(config, folder))
        for ask in asks:
            with pytest.raises(CheckpointError) as caught:
                ask()
            assert path.name in str(caught.value) and "\n" not in str(caught.value), bit
        path.write_bytes(before)
    assert evaluate(folder) == evaluate(whole)


def _resume(config, folder):
    train(config, folder, resume=True, progress=False)


def test_a_record_that_was_edited_is_told_as_such(config, stopped, tmp_path):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    (state,) = (folder / "checkpoints").glob("*/state.json")
    for path, before, after in ((folder / "run.json", '"seed": 0', '"seed": 1'), (state, '"step": 3', '"step": 2')):
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
        with pytest.raises(CheckpointError, match=f"{path.name} was changed after it was written") as caught:
            _resume(config, folder)
        assert "\n" not in str(caught.value)
        path.write_text(text)
    _resume(config, folder)


def test_a_seal_is_that_of_the_values(tmp_path):
    path = tmp_path / "record.json"
    record = seal({"b": 1, "a": [0.1, None, "\u00e9"]})
    path.write_text(json.dumps(record, indent=7, sort_keys=True))
    assert read_sealed(path) == record == seal(record)
    for wrong in (record | {"b": 2}, record | {"b": math.nan}, record | {"c": 0}, record | {"b": True}):
        path.write_text(json.dumps(wrong))
        with refusing(CheckpointError, "file-tampered"):
            read_sealed(path)
    path.write_text('{"b": 1}')
    with refusing(CheckpointError, "seal-missing"):
        read_sealed(path)


def test_sums_name_what_is_missing_or_changed(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("a")
    sums = sums_of(tmp_path)
    assert list(sums) == ["inner/a"]
    (tmp_path / "surplus").write_text("")
    check_sums(tmp_path, sums, Path("record.json"))
    (tmp_path / "inner" / "a").write_text("b")
    with refusing(CheckpointError, "file-tampered", "inner/a"):
        check_sums(tmp_path, sums, Path("record.json"))
    (tmp_path / "inner" / "a").unlink()
    with refusing(CheckpointError, "missing-file", "inner/a"):
        check_sums(tmp_path, sums, Path("record.json"))
    with refusing(CheckpointError, "sums-missing", "record.json"):
        check_sums(tmp_path, None, Path("record.json"))


# --- numbers that are none -------------------------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_not_saved(config, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match=r"step 1: the weight \S+ is not finite; no checkpoint") as caught:
        train(replace(config, learning_rate=1e30, weight_decay=1e10, checkpoint_every=1), folder, progress=False)
    assert "\n" not in str(caught.value)
    assert RunFolder(folder).latest_checkpoint() is None


def test_the_last_good_checkpoint_stays_and_the_optimiser_is_looked_at(config, stopped, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    taken = checkpoints._optimizer_tensors

    def poisoned(model, optimizer):
        moments = taken(model, optimizer)
        moments["exp_avg.lm_head.weight"] = moments["exp_avg.lm_head.weight"] / 0
        return moments

    with (
        monkeypatch.context() as patch,
        refusing(NonFiniteLossError, "weights-not-finite", "4", "the optimiser's exp_avg"),
    ):
        patch.setattr(checkpoints, "_optimizer_tensors", poisoned)
        _resume(config, folder)
    assert RunFolder(folder).latest_checkpoint().name == "step-00000003"
    _resume(config, folder)


def test_a_start_that_is_not_finite_is_refused(config, finished, tmp_path):
    start = Path(shutil.copytree(finished / "model", tmp_path / "start"))
    tensors = load_file(start / "model.safetensors")
    name = sorted(tensors)[3]
    tensors[name].view(-1)[0] = math.nan
    save_file(tensors, start / "model.safetensors")
    other = replace(config, init_from=str(start), model=ModelConfig())
    with pytest.raises(CheckpointError, match=f"its weight {name} is not finite"):
        train(other, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


# --- disks that are full ---------------------------------------------------------------------------------------------


@needs_preloading
@pytest.mark.parametrize("what", slow_except(("full", "read-only"), "full"))
def test_a_disk_that_takes_nothing_is_told_in_a_line_and_the_run_goes_on_later(what, library):
    outcome = faults.preloaded(library, what, "--stride", "79")
    assert outcome["points"] >= 2
    assert outcome["lost"] == [] and outcome["silent"] == []
    for line in outcome["said"]:
        assert line.startswith("CheckpointError: /") and "cannot be written" in line, line


def test_what_cannot_be_written_is_told_in_one_line(tmp_path):
    for error, told in (
        (OSError(28, "No space left on device"), "No space left on device; make room and go on"),
        (OSError(30, "Read-only file system"), "Read-only file system; see to it that it can be written"),
        (Exception("No space left on device (os error 28)"), "make room"),
    ):
        with pytest.raises(CheckpointError, match="file cannot be written") as caught, writing(tmp_path / "file"):
            raise error
        assert told in str(caught.value)
    with pytest.raises(RuntimeError), writing(tmp_path):
        raise RuntimeError


def test_tensorboard_reads_the_figures_of_all_sittings(config, stopped, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    _resume(config, folder)
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    history = RunFolder(folder).read_history()
    assert len(list((folder / "tensorboard").iterdir())) == 2
    for name in ("loss", "bits_per_byte", "learning_rate", "validation_bits_per_byte"):
        told = [(event.step, event.value) for event in events.Scalars(name)]
        kept = [(line["step"], pytest.approx(line[name])) for line in history if name in line]
        assert told and all(figure in kept for figure in told)
        assert [step for step, _ in told] == [step for step, _ in kept][: len(told)]


def test_odd_run_folders(config, finished, tmp_path):
    nothing, there = tmp_path / "nothing", tmp_path / "there"
    nothing.symlink_to(tmp_path / "gone")
    there.symlink_to(tmp_path / "target")
    (tmp_path / "target").mkdir()
    with pytest.raises(CheckpointError, match=r"^'.*no\\x00name' cannot be the name of a folder; choose another$"):
        RunFolder(tmp_path / "no\0name").refuse_existing()
    with refusing(CheckpointError, "folder-not-empty", "nothing"):
        train(config, nothing, progress=False)
    train(config, there, progress=False)
    weights = [load_file(folder / "model" / "model.safetensors")["lm_head.weight"] for folder in (there, finished)]
    assert torch.equal(*weights)
    (tmp_path / "odd" / "run.json").mkdir(parents=True)
    for resume in (False, True):
        with pytest.raises(AsterismError) as caught:
            train(config, tmp_path / "odd", resume=resume, progress=False)
        assert "\n" not in str(caught.value)
