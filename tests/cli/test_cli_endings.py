"""Every way in which a verb ends: signals, closed streams, full disks, lack of memory."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import SHORT, Result, Run, refuses

from asterism.cli import main as entry


def start(argv: Sequence[str | Path], **streams: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "asterism.cli.main", *map(str, argv)]
    return subprocess.Popen(command, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **streams)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_an_object_is_finalised_is_not_lost(number: signal.Signals):
    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(number)

    raised = entry.Terminated if number == signal.SIGTERM else KeyboardInterrupt
    began = time.monotonic()
    with pytest.raises(raised), entry._terminable():
        Finalised()
        time.sleep(20)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.slow)],
)
def test_signals(run: Run, text_file: Path, tmp_path: Path, number: signal.Signals, code: int, word: str):
    folder = tmp_path / "run"
    settings = [*SHORT, "--steps", "1000000", "--log-every", "1", "--data", text_file, "--folder", folder]
    process = start(["train", *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / "history.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert f"resume with: asterism train {folder} --resume\nasterism: {word}\n" in err
    assert "\x1b" not in err
    assert any((folder / "checkpoints").iterdir())


def test_a_reader_that_goes_away_is_no_error():
    process = start(["show", "causal()", "-n", "64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


def test_show_and_plan_start_without_torch():
    check = "import sys; from asterism.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for verb in ("show", "plan"):
        subprocess.run([sys.executable, "-c", check, verb, "causal()", "-n", "9"], check=True, capture_output=True)


@pytest.mark.parametrize("verb", ["show", "predict", "import"])
def test_what_one_process_does_is_not_done_by_several(run: Run, monkeypatch: pytest.MonkeyPatch, verb: str):
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, out, err = run(verb, "window(3)", "-n", "8")
    assert (code, out) == (2, "")
    assert f"{verb} is the work of one process, and WORLD_SIZE is 3" in err
    monkeypatch.setenv("WORLD_SIZE", "1")
    if verb == "show":
        assert run(verb, "window(3)", "-n", "8")[0] == 0


@pytest.mark.parametrize("words", [["--help"], ["show", "--help"], ["plan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]):
    heavy = {"torch", "transformers", "scipy", "matplotlib", "rich", "jsonargparse"}
    check = (
        "import sys; from asterism.cli.main import main; main(sys.argv[1:]);"
        f" assert not {heavy} & {{*sys.modules}}, sys.modules"
    )
    subprocess.run([sys.executable, "-c", check, *words], check=True, capture_output=True)


def test_asking_a_run_loads_nothing_that_only_draws_or_reads_settings():
    heavy = {"matplotlib", "jsonargparse"}
    check = f"import sys, asterism.training.pipeline; assert not {heavy} & {{*sys.modules}}, sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail(name: str):
        raise ModuleNotFoundError("No module named 'transformers.utils'", name="transformers.utils")

    monkeypatch.setattr(entry.importlib, "import_module", fail)
    refuses(run("train"), 1, r"train needs transformers: pip install '\.\[train\]' in a checkout")


def test_a_place_that_cannot_be_written(run: Run):
    refuses(run("show", "causal()", "-n", "4", "--plot", "/proc/x.png"), 1, r"/proc/\.x\.\d+\.png")


@pytest.mark.parametrize("verb", ["show", "certify"])
def test_a_picture_that_fails_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    (tmp_path / "x.png").write_text("the picture before")

    def fail(figure: object, path: Path, **_: object):
        Path(path).write_text("half of it")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    refuses(run(verb, "causal()", "-n", "4", "--plot", tmp_path / "x.png"), 1, "No space left on device")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.png", "the picture before")]


def shell(command: str, **environment: str) -> Result:
    """A command line as a shell runs it, with its redirections; ASTERISM stands for the program."""
    program = f"{shlex.quote(sys.executable)} -m asterism.cli.main"
    done = subprocess.run(
        ["sh", "-c", command.replace("ASTERISM", program)], capture_output=True, env=os.environ | environment
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_closed_stdout_is_told():
    result = shell("ASTERISM show 'causal()' -n 4 >&-")
    assert result == Result(
        1, "", "asterism: error: stdout is closed, so there is nowhere to print the result; redirect it to a file\n"
    )


def test_errors_never_go_to_stdout():
    assert shell("ASTERISM show 'causal(' -n 4 2>&-") == Result(2, "", "")
    assert shell("ASTERISM show 'causal()' -n 4 --json 2>&-").out.startswith("{")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full disk")
def test_a_full_disk_is_one_line():
    result = shell("ASTERISM show 'causal()' -n 4 >/dev/full")
    assert result == Result(1, "", "asterism: error: No space left on device\n")
    assert shell("ASTERISM show 'causal(' -n 4 2>/dev/full") == Result(2, "", "")


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_only():
    lines = shell("ASTERISM show 'causal()' -n 2", PYTHONIOENCODING="ascii").out.splitlines()
    assert lines[1:4] == ["#.", "##", "rows: queries, columns: keys; # may attend, . may not"]
    document = json.loads(shell("ASTERISM show 'causal()' -n 2 --json", PYTHONIOENCODING="ascii").out)
    assert document["mixers"][0]["picture"]["rows"] == ["█·", "██"]
    told = shell("ASTERISM show 'ünï' -n 2", PYTHONIOENCODING="ascii")
    assert told.code == 2 and told.err.count("\n") == 1


def test_too_little_memory_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail(argv: Sequence[str]):
        raise MemoryError("Unable to allocate 7.28 TiB for an array")

    monkeypatch.setattr("asterism.cli.show.run", fail)
    refuses(
        run("show", "causal()", "-n", "4"), 1, r"not enough memory \(Unable to allocate 7\.28 TiB for an array\); ask"
    )


def test_python_runs_the_package_as_the_command():
    told = subprocess.run([sys.executable, "-m", "asterism", "--version"], capture_output=True, text=True)
    assert (told.returncode, told.stdout[:9]) == (0, "asterism "), told.stderr
    told = subprocess.run([sys.executable, "-m", "asterism", "shwo"], capture_output=True, text=True)
    assert (told.returncode, told.stderr[:30]) == (2, "asterism: error: unknown verb "), told.stderr
