"""The server: who may ask, what it says to others, and that no question stops it."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import refusing
from starlette.testclient import TestClient

from asterism.errors import AsterismError
from asterism.explore import server
from asterism.explore.guard import MOST_BYTES
from asterism.explore.model_process import ModelProcess
from asterism.explore.pool import Pool
from asterism.explore.subject import Subject

PORT = 8765
OWN = f"http://127.0.0.1:{PORT}"

FIGURES = {
    "processor": "avx2",
    "threads": 2,
    "tiles": "cpu",
    "prices": {
        dtype: {
            direction: {
                "source": "shipped",
                "ways": {way: {"points": [[0, 1000.0]], "pair": 1.0} for way in ("cpu", "dense full", "dense causal")},
            }
            for direction in ("forward", "training")
        }
        for dtype in ("float32", "bfloat16")
    },
}


@pytest.fixture(scope="module")
def client():
    """A client of the application with two workers; the prices are made up, since reading them loads torch."""

    async def figures(answers: server.Backend) -> dict:
        return {"answer": FIGURES}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "_WORKERS", 2)
        patched.setattr(server.Backend, "_read_machine", figures)
        with TestClient(server.make_app(PORT, patience=3.0), base_url=OWN) as opened:
            yield opened


def picture(text, n=64, cells=32):
    part = {"layer": 0, "head": 0, "rows": [0, n], "columns": [0, n], "cells": cells}
    return {"question": "picture", "text": text, "length": n, **part}


def test_the_page_and_its_files(client):
    page = client.get("/")
    assert page.status_code == 200 and "<title>Asterism explore</title>" in page.text
    files = sorted(Path(server._STATIC).iterdir())
    assert {file.suffix for file in files} == {".html", ".css", ".js", ".svg"}
    for file in files:
        found = client.get(f"/static/{file.name}")
        assert found.status_code == 200 and found.content == file.read_bytes()
        assert "://" not in file.read_text().replace("http://www.w3.org/", "").replace("https://arxiv.org/abs/", "")
    for missing in ("/static/../server.py", "/static/%2e%2e/server.py", "/favicon.ico", "/ask"):
        assert client.get(missing).status_code in (404, 405)


def test_every_response_has_the_policy(client):
    for response in (
        client.get("/"),
        client.get("/static/main.js"),
        client.get("/nothing"),
        client.post("/ask", json={}),
    ):
        assert "default-src 'none'; script-src 'self'" in response.headers["content-security-policy"]
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"


STRANGERS = {
    "another host": ({"host": "evil.example"}, 421),
    "another port": ({"host": "127.0.0.1:80"}, 421),
    "no port": ({"host": "localhost"}, 421),
    "a host that ends alike": ({"host": f"evil.127.0.0.1:{PORT}"}, 421),
    "no host": ({"host": ""}, 421),
    "another origin": ({"origin": "http://evil.example"}, 403),
    "a page without an origin": ({"origin": "null"}, 403),
    "another port's page": ({"origin": "http://127.0.0.1:3000"}, 403),
    "another site": ({"sec-fetch-site": "cross-site"}, 403),
    "a form": ({"content-type": "text/plain"}, 415),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_refused(client, name):
    headers, status = STRANGERS[name]
    body = json.dumps(picture("causal()"))
    response = client.post("/ask", content=body, headers={"content-type": "application/json", **headers})
    assert response.status_code == status
    assert response.text.startswith("refused: ") and response.text.count("\n") == 1


@pytest.mark.parametrize("host", ("127.0.0.1", "localhost"))
def test_its_own_pages_are_answered(client, host):
    headers = {"host": f"{host}:{PORT}", "origin": f"http://{host}:{PORT}", "sec-fetch-site": "same-origin"}
    assert client.post("/ask", json=picture("causal()"), headers=headers).json()["answer"]["schedule"] == "causal()"


def test_answers_and_refusals(client):
    assert client.post("/ask", json={"question": "start"}).json()["answer"]["most_tokens"] == 2**20
    refused = client.post("/ask", json=picture("wndow(3)")).json()["refused"]
    assert (refused["code"], refused["place"]) == ("unknown-pattern", [0, 8])


def test_bodies_that_are_no_question(client):
    def code(content):
        response = client.post("/ask", content=content, headers={"content-type": "application/json"})
        return response.json()["refused"]["code"]

    begun = time.perf_counter()
    assert code(json.dumps(picture("a" * 10**6))) == "question-too-long"
    assert time.perf_counter() - begun < 1
    assert code("a" * (MOST_BYTES + 1)) == "question-too-long"
    assert code("{") == "question-too-long"
    assert code("[" * 10**5) == "question-too-long"
    assert code("[]") == code("1") == code('{"question": []}') == "unknown-question"


def test_costs_are_by_the_prices_of_the_machine(client):
    question = {"question": "cost", "text": "window(left=7)", "layer": 0, "heads": 2, "prices": {}, "tiles": "none"}
    told = client.post("/ask", json=question).json()["answer"]
    assert (told["source"], told["processor"], told["threads"], told["heads"]) == ("shipped", "avx2", 2, 2)
    assert told["rows"][0]["dense"] == pytest.approx((1000 + 2 * 64**2) / 1e9)
    assert client.post("/ask", json={"question": "machine"}).json()["answer"] == FIGURES


def test_a_question_that_takes_too_long_is_refused_and_stops_nobody():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "_WORKERS", 1)
        patched.setattr(server.Backend, "begin", lambda answers: None)
        with TestClient(server.make_app(PORT, patience=0.5), base_url=OWN) as client:
            begun = time.perf_counter()
            slow = client.post("/ask", json={"question": "certificate", "text": "yun_random(9)", "length": 2**16})
            took = time.perf_counter() - begun
            assert slow.json()["refused"]["code"] == "took-too-long"
            assert "0.5 s" in slow.json()["refused"]["message"] and took < 1.5
            assert "answer" in client.post("/ask", json=picture("causal()")).json()
            waiting = client.post("/ask", json={"question": "cost", "text": "causal()"}).json()["refused"]
            assert waiting["code"] == "prices-wait"


def test_a_worker_that_takes_too_long_is_ended_and_replaced():
    async def ask():
        pool = Pool(1, 0.5)
        await pool.start()
        (first,) = pool.all
        try:
            slow = await pool.ask({"question": "certificate", "text": "yun_random(9)", "length": 2**16})
            ended = first.process.returncode
            told = await pool.ask(picture("causal()"))
            return slow["refused"]["code"], ended, "answer" in told, first in pool.all, len(pool.all)
        finally:
            await pool.end()

    code, ended, is_answered, *kept = asyncio.run(ask())
    assert (code, is_answered, kept) == ("took-too-long", True, [False, 1])
    assert ended is not None


def test_the_verb_serves_until_it_is_interrupted(served):
    def get(host):
        with contextlib.closing(socket.create_connection(("127.0.0.1", served.port), 5)) as plain:
            plain.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: plain.recv(2**16), b"")).decode()

    assert get(f"127.0.0.1:{served.port}").startswith("HTTP/1.1 200")
    assert get("evil.example").startswith("HTTP/1.1 421")
    with refusing(AsterismError, "port-taken", str(served.port)):
        server.serve(served.port, 1.0, lambda address: None)


def test_ctrl_c_ends_it_and_its_workers():
    command = [sys.executable, "-m", "asterism.cli.main", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("asterism explore: http://127.0.0.1:")
        children = children_of(process.pid)
        assert children or not PROCESSES.exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == "asterism: interrupted\n"
    assert not [child for child in children if (PROCESSES / child).exists()]


PROCESSES = Path("/proc/self").parent


def children_of(parent):
    """The processes that one has started, where the system lists them as files."""
    listed = PROCESSES / str(parent) / "task" / str(parent) / "children"
    return listed.read_text().split() if listed.exists() else []


class FakeWorker:
    """A process with a model that ends at its first question, and answers the next one."""

    started = 0

    @classmethod
    async def start(cls, module: str, argument: str, seconds: float) -> "FakeWorker":
        assert module == "model_worker" and Subject.from_json(argument).run == "runs/first"
        cls.started += 1
        return cls()

    async def ask(self, question, seconds: float):
        if FakeWorker.started == 1:
            raise ConnectionError("the worker has ended")
        if question["question"] == "keys":
            raise TimeoutError
        return {"answer": {"seconds": seconds}}

    async def end(self) -> None:
        pass


def test_a_model_process_that_ends_or_takes_too_long_is_started_again(monkeypatch):
    monkeypatch.setattr("asterism.explore.model_process.Worker", FakeWorker)

    async def asked() -> list[str]:
        process = ModelProcess(Subject(run="runs/first"))
        replies = [await process.ask({"question": name}) for name in ("read", "read", "mass", "keys", "model")]
        await process.end()
        return [reply["refused"]["code"] if "refused" in reply else reply["answer"]["seconds"] for reply in replies]

    assert asyncio.run(asked()) == ["worker-ended", 600.0, 30.0, "took-too-long", 30.0]
    assert FakeWorker.started == 3


def test_without_a_model_questions_about_one_are_refused(client):
    for name in ("model", "read", "mass", "keys"):
        assert client.post("/ask", json={"question": name}).json()["refused"]["code"] == "no-model"
