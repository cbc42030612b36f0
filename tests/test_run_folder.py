"""The run folder when things go wrong: processes that die, files that change, full disks, two runs at once."""

import json
import os
import shutil
import sys

import faults
import pytest

from asterism import files
from asterism.files import replacing, replacing_file
from asterism.training.run.folder import RunFolder

pytestmark = pytest.mark.model

needs_preloading = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "faults.so"


@pytest.fixture(scope="module")
def thinned(library):
    return faults.preloaded(library, "deaths", "--stride", "31")


@needs_preloading
def test_a_run_that_dies_anywhere_goes_on_to_the_same_bits(thinned):
    assert sum(row["points"] for row in thinned["deaths"].values()) >= 10
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
    with pytest.raises(files.CheckpointError, match="is not an empty folder"):
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
