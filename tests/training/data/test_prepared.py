"""What several processes would make of the same data is made by one of them, and read by the others."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from launched_runs import trained

from asterism.errors import DataError
from asterism.training.data.corpora.made_once import made_once, shared
from asterism.training.data.corpora.packing import TokenStream
from asterism.training.pipeline import train
from asterism.training.settings.configuration import ModelConfig, RunConfig

TWO = """
import os, pathlib, sys, time
from asterism.training.data.corpora.made_once import made_once, shared
counted, name, fails = sys.argv[1:]
def make():
    with open(counted, "a") as file:
        file.write(f"{os.getpid()}\\n")
    if fails == "yes":
        raise ValueError("bad data")
    while len(pathlib.Path(counted + ".began").read_text().split()) < 2:
        time.sleep(0.01)
    return b"made"
with open(counted + ".began", "a") as file:
    file.write("x ")
with shared(name):
    write, read = lambda made, at: (at / "x").write_bytes(made), lambda at: (at / "x").read_bytes()
    made = made_once("tokens", make, write, read)
    print(made.decode())
    sys.stdout.flush()
    sys.stdin.read()
"""


def started(tmp_path, fails):
    """Two processes that make the same thing at once, and leave together."""
    command = [sys.executable, "-c", TWO, str(tmp_path / "counted"), "for-a-test", fails]
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env=place, **pipes) for _ in range(2)]


def test_one_of_two_processes_makes_and_both_read(tmp_path):
    both = started(tmp_path, "no")
    assert [process.stdout.readline() for process in both] == ["made\n", "made\n"]
    for process in both:
        process.communicate("", timeout=60)
    assert len((tmp_path / "counted").read_text().split()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "counted.began"]


def test_who_waits_for_one_that_fails_is_told_the_same(tmp_path):
    for process in started(tmp_path, "yes"):
        assert process.communicate("", timeout=60)[1].splitlines()[-1] == "ValueError: bad data"


def test_a_disk_that_takes_nothing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with shared("x"), pytest.raises(DataError, match=r"are written to .*none/asterism-x, which failed: .*; set TMPDIR"):
        made_once("name", lambda: 1, lambda made, folder: None, lambda folder: 1)


@pytest.mark.parametrize("numbers", [np.arange(7, dtype=np.int32), np.zeros(0, dtype=np.int32)])
def test_tokens_are_read_as_they_were_made(numbers, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stream = TokenStream(numbers, np.array([0, len(numbers)], dtype=np.int64), 3)
    with shared("x"):
        read = made_once("name", lambda: stream, TokenStream._write, TokenStream._read)
        again = made_once("name", lambda: pytest.fail("made twice"), TokenStream._write, TokenStream._read)
    assert not any(tmp_path.iterdir())
    for one in (read, again):
        assert one.tokens.dtype == np.int32 and one.tokens.tolist() == numbers.tolist()
        assert one.starts.tolist() == stream.starts.tolist() and one.empty == 3


@pytest.mark.slow
@pytest.mark.model
def test_a_run_of_two_processes_makes_its_tokens_once(tmp_path):
    text = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(1200))
    (tmp_path / "text").write_bytes(text)
    config = RunConfig(
        model=ModelConfig(mixers="dense()", hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
        data=str(tmp_path / "text"),
        objective="mlm",
        tokenizer="bpe:300",
        context=64,
        batch_size=4,
        steps=2,
        dtype="float64",
    )
    alone = train(config, tmp_path / "alone", progress=False)
    trained(2, [(config, tmp_path / "two")])
    together = json.loads((tmp_path / "two" / "run.json").read_text())["result"]
    assert together["validation_masked_loss"] == pytest.approx(alone.validation_masked_loss, abs=1e-9)
    assert together["tokens_masked"] == alone.tokens_masked
    names = ("tokenizer.json", "unigram.safetensors")
    for name in names:
        assert Path(tmp_path, "two", "model", name).read_bytes() == Path(tmp_path, "alone", "model", name).read_bytes()
