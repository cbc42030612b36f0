"""Trials in processes of their own: the same figures, errors that arrive, and nobody who outlives the first process."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import measures
import pytest
import torch
from matplotlib.figure import Figure
from refusals import refusing
from slow_cases import slow_except

from asterism.errors import AsterismError, ConfigurationError, NonFiniteLossError
from asterism.reproduce import EXPERIMENTS, reproduce
from asterism.reproduce.experiment import Experiment, Table
from asterism.reproduce.jobs import LOGS, measured
from asterism.reproduce.record import RECORD, read_record
from asterism.reproduce.trials import Computation


def made_up(*names: str) -> Experiment:
    """An experiment with a computation of each name, which also says what it does."""
    trials = [Computation(name=name, seed=0, compute=measures.measure, arguments={"how": name}) for name in names]
    return Experiment(
        name="made-up",
        paper="yun-2020",
        place="Table 0",
        question="Does it work?",
        setting={"laptop": "Nothing is trained."},
        trials=lambda scale: trials,
        table=lambda results: Table(("trial", "length"), [(name, results.shown(name, "length")) for name in names]),
        findings=lambda results: [],
        draw=lambda results: Figure(),
        published=dict,
    )


def figures(record):
    return {row["trial"]: row["figures"]["length"] for row in record["rows"]}


class Job:
    """A process that has its figures at once."""

    def __init__(self, trial, folder, jobs):
        self.trial = trial
        self.receiver, sender = os.pipe()
        os.close(sender)

    def found(self):
        os.close(self.receiver)
        return {}

    def end(self):
        pass


def paths() -> dict[str, str]:
    """An environment in which programs find the modules of the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


def test_figures_and_page_are_those_of_one_process(tmp_path):
    said: list[str] = []
    alone = reproduce(made_up("one", "three", "eleven"), "laptop", tmp_path / "alone")
    together = reproduce(made_up("one", "three", "eleven"), "laptop", tmp_path / "together", jobs=2, say=said.append)
    assert figures(together) == figures(alone) == {"one": 3.0, "three": 5.0, "eleven": 6.0}
    assert (tmp_path / "together" / "page.md").read_text() == (tmp_path / "alone" / "page.md").read_text()
    threads = {row["figures"]["threads"] for row in together["rows"]}
    assert threads == {max(1, torch.get_num_threads() // 2)}
    assert sorted(said) == sorted(
        f"{number} of 3{what}: {name}, seed 0"
        for number, name in enumerate(("one", "three", "eleven"), 1)
        for what in ("", " is measured")
    )


def test_an_error_arrives_and_what_is_measured_stays(tmp_path):
    with refusing(NonFiniteLossError, "not-finite", "the loss is not finite"):
        reproduce(made_up("one", "refuse", "wait"), "laptop", tmp_path / "it", jobs=2)
    assert figures(read_record(tmp_path / "it" / RECORD)).keys() <= {"one"}
    record = reproduce(made_up("one", "three"), "laptop", tmp_path / "it", jobs=2)
    assert figures(record) == {"one": 3.0, "three": 5.0}


def test_a_killed_process_is_named_with_its_log(tmp_path):
    with refusing(AsterismError, "reproduce-job", "die, seed 0: its process ended with code 7", "die-0.txt has what"):
        reproduce(made_up("die", "one"), "laptop", tmp_path / "it", jobs=2)
    assert (tmp_path / "it" / LOGS / "die-0.txt").exists()


def test_a_defect_names_the_trial_and_its_traceback(tmp_path):
    with refusing(AsterismError, "reproduce-trial", "bug, seed 0: LookupError: nothing here", "bug-0.txt"):
        reproduce(made_up("bug", "one"), "laptop", tmp_path / "it", jobs=2)
    assert "in measure" in (tmp_path / "it" / LOGS / "bug-0.txt").read_text()


def test_what_others_measured_is_kept_when_one_fails(tmp_path, monkeypatch):
    """Both are there when the first process looks."""

    def wait_for_all(receivers):
        for receiver in receivers:
            assert receiver.poll(60)
        return receivers

    monkeypatch.setattr("asterism.reproduce.jobs.wait", wait_for_all)
    said: list[str] = []
    with refusing(NonFiniteLossError, "not-finite", "the loss"):
        reproduce(made_up("refuse", "one"), "laptop", tmp_path / "it", jobs=2, say=said.append)
    assert figures(read_record(tmp_path / "it" / RECORD)) == {"one": 3.0}
    assert said[2:] == ["1 of 2 has failed: refuse, seed 0", "2 of 2 is measured: one, seed 0"]


def test_a_process_that_stays_is_killed_and_its_figures_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.reproduce.jobs._PATIENCE", 0.2)
    record = reproduce(made_up("linger", "one"), "laptop", tmp_path / "it", jobs=2)
    assert figures(record) == {"linger": 6.0, "one": 3.0}


def test_jobs_end_when_figures_cannot_be_recorded(tmp_path):
    before = set(active_children())  # such as readers of data that an earlier test left
    with refusing(NonFiniteLossError, "reproduce-figure", "nan, seed 0: length is not finite"):
        reproduce(made_up("nan", "wait"), "laptop", tmp_path / "it", jobs=2)
    assert not set(active_children()) - before


def test_jobs_end_where_the_first_process_ignores_the_signal(tmp_path, monkeypatch):
    """They would inherit that, and each would be waited for until patience ends."""
    monkeypatch.setattr("asterism.reproduce.jobs._PATIENCE", 5.0)
    killed, kill = [], BaseProcess.kill
    monkeypatch.setattr(BaseProcess, "kill", lambda process: killed.append(process) or kill(process))
    usual = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with refusing(NonFiniteLossError, "reproduce-figure", "nan, seed 0"):
            reproduce(made_up("nan", "wait"), "laptop", tmp_path / "it", jobs=2)
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert not killed


def test_one_trial_has_all_threads(tmp_path):
    record = reproduce(made_up("one"), "laptop", tmp_path / "it", jobs=8)
    assert record["rows"][0]["figures"]["threads"] == torch.get_num_threads()


def program(tmp_path: Path, guard: str, *names: str) -> Path:
    """A program that measures these in two processes, below `guard`."""
    path = tmp_path / "program.py"
    path.write_text(
        "from pathlib import Path; from test_jobs import made_up; from asterism.reproduce import reproduce\n"
        f"{guard}reproduce(made_up{names}, 'laptop', Path({str(tmp_path / 'it')!r}), jobs=2)"
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["1", "2"])
def test_streams_that_are_closed(tmp_path, closed):
    path = program(tmp_path, "if __name__ == '__main__': ", "one", "three")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "selectors.py").write_text("raise ImportError('of the working directory')")
    command = ["bash", "-c", f"{sys.executable} {path} {closed}>&-"]
    subprocess.run(command, env=paths(), check=True, timeout=120, cwd=tmp_path / "here")
    assert figures(read_record(tmp_path / "it" / RECORD)) == {"one": 3.0, "three": 5.0}


@pytest.mark.slow
def test_a_program_without_a_main_part_is_told_so(tmp_path):
    path = program(tmp_path, "", "one", "three")
    found = subprocess.run([sys.executable, str(path)], env=paths(), capture_output=True, text=True, timeout=120)
    assert "could not begin; a program that measures with several jobs is a file" in found.stderr


def test_a_ring_of_starts_ends(monkeypatch):
    trials = EXPERIMENTS["long-documents"].trials("laptop")[:2]
    ring = [replace(trials[0], start=trials[1].name), replace(trials[1], start=trials[0].name)]
    monkeypatch.setattr("asterism.reproduce.jobs._Job", Job)
    assert len(list(measured(ring, Path(), 2, lambda what, trial: None))) == 2


def test_fewer_than_one(tmp_path):
    with refusing(ConfigurationError, "reproduce-jobs", "at least 1, got 0"):
        reproduce(made_up("one"), "laptop", tmp_path / "it", jobs=0)
    assert not (tmp_path / "it").exists()


def test_who_starts_with_a_model_waits_for_it(monkeypatch):
    trials = EXPERIMENTS["long-documents"].trials("laptop")
    monkeypatch.setattr("asterism.reproduce.jobs._Job", Job)
    ends: list[tuple[str, str]] = []
    done = [trial.name for trial, _ in measured(trials, Path(), 3, lambda what, trial: ends.append((what, trial.name)))]
    assert sorted(done) == sorted(trial.name for trial in trials)
    assert ends.index((" is measured", "pretrained")) == 1


@pytest.mark.parametrize(
    "number",
    slow_except((signal.SIGKILL, signal.SIGINT, signal.SIGTERM), signal.SIGTERM),
    ids=["kill", "int", "term"],
)
def test_nobody_outlives_the_first_process(tmp_path, number):
    path = program(tmp_path, "if __name__ == '__main__': ", "wait", "wait 2")
    first = subprocess.Popen(
        [sys.executable, str(path)], env=paths(), stderr=subprocess.DEVNULL, preexec_fn=_with_usual_signals
    )
    try:
        log = tmp_path / "it" / LOGS / "wait-0.txt"
        child = int(until(lambda: log.exists() and log.read_text()).split()[1])
        first.send_signal(number)
        first.wait(timeout=90)
        until(lambda: not is_alive(child))
    finally:
        first.kill()
        first.wait()


def _with_usual_signals() -> None:
    """In place of those of a worker of pytest or a job in the background, which ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def until(true, seconds: float = 90.0):
    """What `true` returns, once it is true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
