"""A server of the page in a process of its own, as `asterism explore` starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Served(NamedTuple):
    """A running server: its address, its process, and what it has printed to stderr."""

    address: str
    process: subprocess.Popen
    errors: Path

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    errors = tmp_path_factory.mktemp("explore") / "stderr"
    command = [sys.executable, "-m", "asterism.cli.main", "explore", "--port", "0", "--no-browser", "--json"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "ASTERISM_CALIBRATE": "0"}
        )
    assert process.stdout is not None
    told = b""
    while b"}" not in told:
        line = process.stdout.readline()
        assert line, errors.read_text()
        told += line
    with process:
        yield Served(json.loads(told)["address"], process, errors)
        process.send_signal(signal.SIGINT)
        process.wait(20)
