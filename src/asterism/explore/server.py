"""The server of the page: files, and one address for questions, which a pool of processes answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from asterism.errors import AsterismError
from asterism.explore.guard import MOST_BYTES, Guard
from asterism.explore.model_process import QUESTIONS as MODEL_QUESTIONS
from asterism.explore.model_process import ModelProcess
from asterism.explore.pool import Pool, Worker, refusal
from asterism.explore.subject import Subject

HOST = "127.0.0.1"

PATIENCE = 1.0
"""Seconds for an answer."""

_WORKERS = 3
_FOR_THE_MACHINE = 600.0
"""Seconds for the prices of this machine: torch is imported, and the kernel built if it was never used here."""

_STATIC = Path(__file__).parent / "static"


class Backend:
    """Asks the pool and the process with the model, and knows the prices of this machine, which are read once in a
    process of their own."""

    def __init__(self, pool: Pool, model: ModelProcess) -> None:
        self.pool, self.model = pool, model
        self.machine: asyncio.Task[dict[str, Any]] | None = None

    async def _read_machine(self) -> dict[str, Any]:
        try:
            worker = await Worker.start()
            try:
                return await worker.ask({"question": "machine"}, _FOR_THE_MACHINE)
            finally:
                await worker.end()
        except (OSError, TimeoutError):
            return refusal("no-prices", "the prices of this machine cannot be read; `asterism bench` says why")

    def begin(self) -> None:
        """Begin to read the prices and the model."""
        self.model.begin()
        self.machine = asyncio.create_task(self._read_machine())

    async def end(self) -> None:
        """Stop reading them."""
        await self.model.end()
        if self.machine is not None:
            self.machine.cancel()
            await asyncio.gather(self.machine, return_exceptions=True)

    async def answer(self, question: Any) -> dict[str, Any]:
        """The answer or the refusal."""
        name = question.get("question") if isinstance(question, dict) else None
        if name in MODEL_QUESTIONS:
            return await self.model.ask(question)
        if name not in ("machine", "cost"):
            return await self.pool.ask(question)
        if self.machine is None or not self.machine.done():
            return refusal("prices-wait", "the prices of this machine are being read")
        told = self.machine.result()
        if "refused" in told or question["question"] == "machine":
            return told
        machine = told["answer"]
        dtype = "bfloat16" if question.get("dtype") == "bfloat16" else "float32"
        direction = "training" if question.get("direction") == "training" else "forward"
        listed = machine["prices"][dtype][direction]
        found = await self.pool.ask({**question, "prices": listed["ways"], "tiles": machine["tiles"]})
        facts = {"source": listed["source"], "processor": machine["processor"], "threads": machine["threads"]}
        return {"answer": found["answer"] | facts} if "answer" in found else found


def make_app(port: int, patience: float = PATIENCE, subject: Subject | None = None) -> Starlette:
    """The application that answers at this port, about patterns and about the model of the subject."""
    backend = Backend(Pool(_WORKERS, patience), ModelProcess(subject))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await backend.pool.start()
        backend.begin()
        try:
            yield
        finally:
            await backend.end()
            await backend.pool.end()

    async def ask(request: Request) -> Response:
        try:
            question = await _question(request)
        except ClientDisconnect:
            return Response(status_code=400)
        if question is None:
            return JSONResponse(refusal("question-too-long", "the question is too long, or is not JSON"))
        return JSONResponse(await backend.answer(question))

    async def page(request: Request) -> Response:
        return Response((_STATIC / "index.html").read_bytes(), media_type="text/html")

    routes = [
        Route("/", page, methods=["GET"]),
        Route("/ask", ask, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, port=port)], lifespan=lifespan)


async def _question(request: Request) -> Any:
    """The question in a request's body; None for a body that is too long or is not JSON."""
    body = bytearray()
    async for chunk in request.stream():
        if len(body) <= MOST_BYTES:  # the rest is read and forgotten, so that the browser sees the answer
            body += chunk
    if len(body) > MOST_BYTES:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def serve(port: int, patience: float, ready: Callable[[str], None], subject: Subject | None = None) -> None:
    """Serve the page on 127.0.0.1 until the process is interrupted; `ready` is told its address.

    The page also shows what the model of the subject reads.

    Port 0 takes a free one. Raises AsterismError for a port that is taken.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise AsterismError(
                "port-taken", f"port {port} of {HOST} cannot be used ({error.strerror}): name another, or 0 for any"
            ) from None
        found = listening.getsockname()[1]
        server = _Server(
            uvicorn.Config(make_app(found, patience, subject), log_level="warning", access_log=False, ws="none")
        )
        server.ready = lambda: ready(f"http://{HOST}:{found}/")
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """Tells when it answers."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        if self.started:
            self.ready()
