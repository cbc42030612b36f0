"""Measures trials: one after the other in this process, or several at a time, in a process each.

A trial that starts with the model of another one waits for it. Processes of their own share the threads of this one;
what they print goes to logs/ in the folder of the experiment, and they end with this process, however that ends.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from asterism.errors import AsterismError
from asterism.files import make_folder, writing
from asterism.randomness import isolated
from asterism.reproduce.experiment import Figures, Trial
from asterism.reproduce.trials import Training, file_name
from asterism.system import end_with
from asterism.training.run.arithmetic import undisturbed

LOGS = "logs"
_PATIENCE = 30.0
"""Seconds that a process may take to stop where it can go on."""
_AS_IT_IS = (AsterismError, MemoryError, KeyboardInterrupt, SystemExit)
"""Errors that say all there is to say. Others are defects, whose traceback is in the log."""


def measured(
    trials: Sequence[Trial], folder: Path, jobs: int, say: Callable[[str, Trial], None]
) -> Generator[tuple[Trial, Figures], None, None]:
    """Each trial and its figures, as they are measured, `jobs` at a time; `say` is told of each that begins or ends.

    Who leaves before the end closes it, which ends the jobs.

    Raises what a trial raises, once what others have measured is given and those that run have stopped where they can
    go on. Of trials in processes of their own it is AsterismError for what is no error of this library.
    """
    if jobs == 1:
        for trial in trials:
            say("", trial)
            with undisturbed(), isolated(0):
                figures = trial.run(folder)
            yield trial, figures
        return
    jobs = max(1, min(jobs, len(trials)))
    waiting, running = list(trials), list[_Job]()
    try:
        while waiting or running:
            ready = [one for one in waiting if not _awaits(one, waiting, running)]
            for trial in ready[: jobs - len(running)] or waiting[: not running]:  # of a ring of starts, the first
                waiting.remove(trial)
                running.append(_Job(trial, folder, jobs))
                say("", trial)
            yield from _collected(running, say)
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.end()


def _collected(running: list["_Job"], say: Callable[[str, Trial], None]) -> Iterator[tuple[Trial, Figures]]:
    """Wait for a job, and give all that are there; then raise what one raised."""
    there = wait([job.receiver for job in running])
    failures = []
    for job in [job for job in running if job.receiver in there]:
        running.remove(job)
        found = job.found()
        if isinstance(found, BaseException):
            say(" has failed", job.trial)
            failures.append(found)
            job.end()
        else:
            say(" is measured", job.trial)
            try:
                yield job.trial, found
            finally:
                job.end()
    if failures:
        raise failures[0]


def _awaits(trial: Trial, waiting: Sequence[Trial], running: Sequence["_Job"]) -> bool:
    """Whether the trial that this one starts with is still to be measured."""
    start = trial.start if isinstance(trial, Training) else None
    left = [*waiting, *(job.trial for job in running)]
    return any((one.name, one.seed) == (start, trial.seed) for one in left)


class _Job:
    """A trial in a process of its own."""

    def __init__(self, trial: Trial, folder: Path, jobs: int) -> None:
        import torch

        self.trial = trial
        self.log = folder / LOGS / f"{file_name(trial.name, trial.seed)}.txt"
        with writing(self.log):
            make_folder(self.log.parent)
            self.log.unlink(missing_ok=True)
        context = get_context("spawn")  # a fork would take over the threads of libraries in whatever state they are
        self.receiver, sender = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // jobs)
        self.process: BaseProcess = context.Process(
            target=_measure, args=(trial, folder, self.log, threads, os.getpid(), sender)
        )
        # Threads are read when a library is loaded. A file of the working directory is not taken for a module.
        with _environment({"OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}), _terminable():
            self.process.start()
        sender.close()

    def found(self) -> Figures | BaseException:
        """What the process has sent: figures, or an error."""
        try:
            return self.receiver.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            if code >= 0 and not self.log.exists():
                how = (
                    "could not begin; a program that measures with several jobs is a file, and calls `reproduce` below"
                    ' `if __name__ == "__main__":`'
                )
            elif code < 0:
                how = f"was killed by signal {-code}; the same command goes on; if memory is short, with fewer jobs"
            else:
                how = f"ended with code {code}; {self.log} has what it printed"
            return AsterismError("reproduce-job", f"{_title(self.trial)}: its process {how}")

    def end(self) -> None:
        """Wait until the process has gone, and kill it if that takes long."""
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _title(trial: Trial) -> str:
    return f"{trial.name}, seed {trial.seed}"


def _measure(trial: Trial, folder: Path, log: Path, threads: int, parent: int, sender: Connection) -> None:
    """Send the figures of a trial, or what it raised; for a process of its own."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal reaches the parent too, which ends this process
    end_with(parent)
    try:
        with writing(log):
            file = log.open("a", buffering=1)
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        sys.stdout = sys.stderr = file
        torch.set_num_threads(threads)
        with undisturbed(), isolated(0):
            figures = {name: float(value) for name, value in trial.run(folder).items()}
        sender.send(figures)
    except _AS_IT_IS as error:
        sender.send(error)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        sender.send(AsterismError("reproduce-trial", f"{_title(trial)}: {text}; {log} has the traceback"))
        raise


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _terminable() -> Iterator[None]:
    """Processes that start in the body end on SIGTERM, even if this one ignores it."""
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():  # only that one can change it
        yield
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
