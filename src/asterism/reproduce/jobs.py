"""Measures trials: one after the other in this process, or several at a time, in a process each.

A trial that starts with the model of another one waits for it. Processes of their own share the threads of this one;
what they print goes to logs/ in the folder of the experiment, and they end with this process, however that ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from asterism.errors import AsterismError
from asterism.files import make_folder
from asterism.randomness import isolated
from asterism.reproduce.experiment import Figures, Trial
from asterism.reproduce.trials import Training, file_name
from asterism.training.run.arithmetic import undisturbed

LOGS = "logs"


def measured(
    trials: Sequence[Trial], folder: Path, jobs: int, say: Callable[[str, Trial], None]
) -> Iterator[tuple[Trial, Figures]]:
    """Each trial and its figures, as they are measured, `jobs` at a time; `say` is told of each that begins or ends.

    Raises what a trial raises, once the others that run have stopped where they can go on, and AsterismError if a
    process was killed.
    """
    if jobs == 1:
        for trial in trials:
            say("", trial)
            yield trial, trial.run(folder)
        return
    waiting, running = list(trials), list[_Job]()
    try:
        while waiting or running:
            for trial in [one for one in waiting if not _awaits(one, waiting, running)][: jobs - len(running)]:
                waiting.remove(trial)
                running.append(_Job(trial, folder, jobs))
                say("", trial)
            for job in [one for one in running if one.receiver in wait([one.receiver for one in running])]:
                running.remove(job)
                figures = job.figures()
                say(" is measured", job.trial)
                yield job.trial, figures
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.join()


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
        make_folder(self.log.parent)
        context = get_context("spawn")  # a fork would take over the threads of libraries in whatever state they are
        self.receiver, sender = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // jobs)
        self.process: BaseProcess = context.Process(
            target=_measure, args=(trial, folder, self.log, threads, os.getpid(), sender), daemon=True
        )
        with _environment("OMP_NUM_THREADS", str(threads)):  # read when a library is loaded
            self.process.start()
        sender.close()

    def figures(self) -> Figures:
        try:
            found: Figures | BaseException = self.receiver.recv()
        except EOFError:
            self.process.join()
            raise AsterismError(
                "reproduce-job",
                f"{self.trial.name}, seed {self.trial.seed}: its process ended with code {self.process.exitcode}, as if"
                f" killed; {self.log} has what it printed. The same command goes on; if memory is short, with fewer"
                " --jobs",
            ) from None
        self.process.join()
        if isinstance(found, BaseException):
            raise found
        return found


def _measure(trial: Trial, folder: Path, log: Path, threads: int, parent: int, sender: Connection) -> None:
    """Send the figures of a trial, or what it raised; for a process of its own."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal reaches the parent too, which ends this process
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    torch.set_num_threads(threads)
    try:
        with undisturbed(), isolated(0):
            sender.send(dict(trial.run(folder)))
    except BaseException as error:
        sender.send(error)
        raise


def _end_with(parent: int) -> None:
    """End this process at once when its parent has gone, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})
