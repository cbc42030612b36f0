"""The process that has the model of the page: started once, one question at a time, started again when it has ended."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from asterism.explore.pool import Worker, refusal
from asterism.explore.subject import Subject

QUESTIONS = ("model", "read", "mass", "keys")
"""Those that it answers."""

_LOADING, _READING, _SHOWING = 600.0, 600.0, 30.0
"""Seconds for a model to load, to read a text, and for the other questions."""


class ModelProcess:
    """Asks the process of a subject; without one, every question is refused."""

    def __init__(self, subject: Subject | None) -> None:
        self.subject = subject
        self.one_at_a_time = asyncio.Lock()
        self.worker: Worker | None = None
        self.starting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to load the model."""
        if self.subject is not None:
            self.starting = asyncio.create_task(self._begun())

    async def _begun(self) -> None:
        async with self.one_at_a_time:
            with suppress(OSError, TimeoutError):  # whoever asks tries again, and is told
                await self._started()

    async def _started(self) -> Worker:
        assert self.subject is not None
        if self.worker is None:
            self.worker = await Worker.start("model_worker", self.subject.to_json(), seconds=_LOADING)
        return self.worker

    async def end(self) -> None:
        """End the process, whatever it does."""
        if self.starting is not None:
            self.starting.cancel()
            await asyncio.gather(self.starting, return_exceptions=True)
        await self._without()

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer or the refusal, as worker.py writes it."""
        if self.subject is None:
            return refusal("no-model", "no model was named: start asterism explore with a run, or with --model FOLDER")
        seconds = _READING if question["question"] == "read" else _SHOWING
        async with self.one_at_a_time:
            try:
                return await (await self._started()).ask(question, seconds)
            except TimeoutError:
                await self._without()
                return refusal("took-too-long", f"this takes longer than {seconds:g} s: give a shorter text")
            except OSError:
                await self._without()
                return refusal("worker-ended", "the process with the model has ended (out of memory?): read less text")
            except (
                asyncio.CancelledError
            ):  # whoever asked is gone; the answer may still come and must not meet the next
                await self._without()
                raise

    async def _without(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            await worker.end()
