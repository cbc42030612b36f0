"""Worker processes that answer questions within a time limit.

A worker that takes too long is ended and replaced, so the next question finds a fresh one. Questions and answers are
lines of JSON on pipes: nothing that arrives is ever executed.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_STARTING = 60.0
"""Seconds in which a worker must be ready."""

_LONGEST_LINE = 2**25
_MOST_WAITING = 64
"""Questions that wait for a worker; further ones are refused at once."""


class Worker:
    """A process that runs worker.py, or another module of this folder."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, module: str = "worker", *arguments: str, seconds: float = _STARTING) -> "Worker":
        """A worker that is ready. Raises TimeoutError or ConnectionError where it does not come up."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"asterism.explore.{module}", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C is for the server, which ends its workers
        )
        worker = cls(process)
        try:
            await worker._line(seconds)
        except BaseException:
            await worker.end()
            raise
        return worker

    async def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What it says. Raises TimeoutError after so many seconds, and ConnectionError where the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        await self.process.stdin.drain()
        return json.loads(await self._line(seconds))

    async def _line(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), seconds)
        if not line.endswith(b"\n"):
            raise ConnectionError("the worker has ended")
        return line

    async def end(self) -> None:
        """End the process, whatever it does."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Pool:
    """So many workers, each of which has one question at a time."""

    def __init__(self, workers: int, patience: float) -> None:
        self.size, self.patience = workers, patience
        self.free: asyncio.LifoQueue[Worker | None] = (
            asyncio.LifoQueue()
        )  # whoever answered last has most in its memory
        self.all: set[Worker] = set()
        self.starting: set[asyncio.Task[None]] = set()
        self.waiting = 0

    async def start(self) -> None:
        """Start the workers. Raises as `Worker.start`."""
        for worker in await asyncio.gather(*(self._new() for _ in range(self.size))):
            self.free.put_nowait(worker)

    async def end(self) -> None:
        """End all workers, those that are being started too."""
        starting = list(self.starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.all))

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer or the refusal, as worker.py writes it; a refusal also for what takes longer than the patience."""
        if self.waiting >= _MOST_WAITING:
            return refusal("busy", "too many questions are waiting: ask again in a moment")
        self.waiting += 1
        try:
            worker = await self.free.get()
        finally:
            self.waiting -= 1
        try:
            worker = worker or await self._new()  # in place of one that was ended
            return await worker.ask(question, self.patience)
        except TimeoutError:
            await self._without(worker)
            worker = None
            limit = f"{self.patience:g} s"
            return refusal(
                "took-too-long", f"this takes longer than {limit}: ask for fewer tokens or a simpler pattern"
            )
        except OSError:
            await self._without(worker)
            worker = None
            return refusal("worker-ended", "the process that computed this has ended (out of memory?): ask for less")
        except asyncio.CancelledError:  # whoever asked is gone; the answer may still come and must not meet the next
            await self._without(worker)
            worker = None
            raise
        finally:
            if worker is None:
                self._begin_another()
            else:
                self.free.put_nowait(worker)

    def _begin_another(self) -> None:
        """Start a worker in place of one that was ended, while others answer."""
        task = asyncio.create_task(self._another())
        self.starting.add(task)
        task.add_done_callback(self.starting.discard)

    async def _another(self) -> None:
        worker = None  # where it does not come up, whoever asks next tries again
        with suppress(OSError, TimeoutError):
            worker = await self._new()
        self.free.put_nowait(worker)

    async def _new(self) -> Worker:
        worker = await Worker.start()
        self.all.add(worker)
        return worker

    async def _without(self, worker: Worker | None) -> None:
        """End a worker that cannot be used again; None, which stands for one that is still to be started."""
        if worker is not None:
            self.all.discard(worker)
            await worker.end()


def refusal(code: str, message: str) -> dict[str, Any]:
    """A refusal as worker.py writes it."""
    return {"refused": {"code": code, "message": message, "place": None}}
