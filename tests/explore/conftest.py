"""A server of the page in a process of its own, as `asterism explore` starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    with serving(tmp_path_factory.mktemp("explore") / "stderr") as server:
        yield server


@contextmanager
def serving(errors: Path, *arguments: str) -> Iterator[Served]:
    """A server with further arguments, which ends with the body."""
    command = [sys.executable, "-m", "asterism.cli.main", "explore", "--port", "0", "--no-browser", "--json"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "ASTERISM_CALIBRATE": "0"},
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


@pytest.fixture(scope="session")
def bytes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step on bytes, whose model reads any length."""
    from asterism.training import RunConfig, train
    from asterism.training.settings.configuration import ModelConfig

    folder = tmp_path_factory.mktemp("runs")
    (folder / "data").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 400)
    shape = ModelConfig(
        mixers="interleave(window(left=7) | columns(period=16, first=14, count=2) & causal(), causal())",
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "position_type": "rotary"},
    )
    sizes = {"context": 32, "batch_size": 2, "steps": 1, "warmup_steps": 0, "dtype": "float32"}
    train(RunConfig(model=shape, data=str(folder / "data"), **sizes), folder / "run", progress=False)
    return folder / "run"
