"""Processes that compute together, in tests: four gloo workers, started at first use and fed functions.

    def attends(group, tokens):        # a function of a module: workers import it by name
        ...

    def test_something(gloo):          # the fixture is in conftest.py
        of_ranks = gloo.run(3, attends, 50)

The workers are copies of a process that has imported PyTorch and Asterism, and compute with one thread each. They meet
at a file and talk over the loopback. Whatever a worker does, a test ends: if one raises, ends or says nothing in time,
all four are killed, the test fails with the rank and its traceback, and the next test gets four new ones.
"""

import multiprocessing as mp
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

WORKERS = 4
PATIENCE = 100.0
"""Seconds that a call may take, the start of the workers apart, and a collective."""

START = 200.0
"""Seconds that the start of the workers may take, on a busy machine."""

GRACE = 3.0
"""Seconds after the first error in which the others may tell theirs: they may wait for that rank in a collective."""


class Gloo:
    """Groups of 1 to 4 of the workers, as a context: at its end no process is left."""

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.wires: list[Connection] = []
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, ranks: int, function: Callable[..., Any], *arguments: Any, patience: float = PATIENCE) -> list[Any]:
        """What function(group, *arguments) returns on each rank of a group; AssertionError with what went wrong."""
        if not self.wires:
            self._start()
        told = pickle.dumps((ranks, function, arguments))
        for wire in self.wires[:ranks]:
            wire.send_bytes(told)
        answers, errors = self._answers(ranks, patience)
        if errors:
            self.close()
            raise AssertionError("\n".join(f"rank {rank} of {ranks}: {told}" for rank, told in sorted(errors.items())))
        return [answers[rank] for rank in range(ranks)]

    def _answers(self, ranks: int, patience: float) -> tuple[dict[int, Any], dict[int, str]]:
        answers: dict[int, Any] = {}
        errors: dict[int, str] = {}
        end = time.monotonic() + patience
        waiting = {self.wires[rank]: rank for rank in range(ranks)}
        while waiting and (left := end - time.monotonic()) > 0:
            for wire in wait(list(waiting), left):
                rank = waiting.pop(wire)  # type: ignore[call-overload]
                try:
                    fine, answer = pickle.loads(wire.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    self.workers[rank].join(GRACE)
                    fine, answer = False, f"the process ended with {self.workers[rank].exitcode}"
                if fine:
                    answers[rank] = answer
                else:
                    errors[rank] = answer
                    end = min(end, time.monotonic() + GRACE)
        silent = "was still waiting or computing when another rank failed" if errors else f"silent for {patience:g} s"
        return answers, errors | {rank: silent for rank in waiting.values()}

    def _start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["asterism.parallel", "asterism.models"])
        for rank in range(WORKERS):
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(rank, self.folder.name, there), daemon=True)
            worker.start()
            there.close()  # so that the end of the worker is seen
            self.workers.append(worker)
            self.wires.append(here)
        _, errors = self._answers(WORKERS, START)
        if errors:
            self.close()
            raise AssertionError(f"the workers did not start: {errors}")

    def close(self) -> None:
        """Kill the workers; another call starts new ones."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        for wire in self.wires:
            wire.close()
        self.workers, self.wires = [], []
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None

    def __enter__(self) -> "Gloo":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(rank: int, folder: str, wire: Connection) -> None:
    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end the workers
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    store = f"file://{Path(folder, 'store')}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORKERS, timeout=patience)
    groups = {ranks: dist.new_group(list(range(ranks)), timeout=patience) for ranks in range(1, WORKERS + 1)}
    wire.send_bytes(pickle.dumps((True, None)))
    while True:
        try:
            told = wire.recv_bytes()
        except EOFError:
            os._exit(0)
        try:
            ranks, function, arguments = pickle.loads(told)
            answer = True, function(groups[ranks], *arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        wire.send_bytes(pickle.dumps(answer))
