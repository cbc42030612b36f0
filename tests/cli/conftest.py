"""Verbs called in this process, and the run that several of them ask."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import TINY, Result, Run

from asterism.cli.main import main


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    def call(*argv: str | Path) -> Result:
        code = main([str(word) for word in argv])
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(errors="surrogateescape"), err.decode())

    usual = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, usual)  # which one of several processes ignores once it has printed why it ends


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 1500)
    return path


@pytest.fixture(scope="session")
def tiny_run(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", *TINY, "--data", str(text_file), "--folder", str(folder)]) == 0
    return folder
