"""Verbs about runs, and what all verbs share: results as text and JSON, help, versions."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from causal_folders import save_causal
from command_line import SHORT, Run, refuses
from slow_cases import slow_except
from small_encoders import save_tiny_bert, write_lines
from transformers import LlamaConfig, LlamaForCausalLM

from asterism import training
from asterism.cli.main import VERBS
from asterism.promises import PROMISES, SUBJECTS
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig


def test_train_evaluate_generate(run: Run, text_file: Path, tmp_path: Path):
    folder = tmp_path / "run"
    trained = run("train", *SHORT, "--data", text_file, "--folder", folder)
    assert trained.code == 0
    assert re.search(r"validation: \d\.\d{4} bits per byte", trained.out)
    assert "step 3" in trained.err
    evaluated = run("evaluate", folder, "--minimum-context", "0", "16", "--limit", "1000")
    assert [line.split()[0] for line in evaluated.out.splitlines()[2:4]] == ["0", "16"]
    flag_first = run("evaluate", "--limit", "1000", "--minimum-context", "0", "16", folder)
    assert flag_first == evaluated
    generated = run("generate", folder, "--prompt", "the ", "--length", "7", "--temperature", "0")
    assert len(generated.out) == 11
    assert generated.out.startswith("the ")
    assert (
        run("generate", folder, "--prompt", "the ", "--add", "7", "--temperature", "0", "--device", "cpu") == generated
    )
    finished = run("train", folder, "--resume")
    assert finished.out == trained.out
    assert run("train", "--folder", folder, "--resume") == finished
    refuses(run("train", "--resume", "--steps", "2", folder), 2, ".*steps.*2.*3.*")
    assert "trained further from step 3" in run("train", "--resume", "--steps", "9", folder).err


def test_bytes_that_are_no_text(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()  # all that is asked for before the run is opened
    monkeypatch.chdir(tmp_path)
    raw = b"\xff\x00\x1b[31m"
    monkeypatch.setattr(training, "generate", lambda *_, **__: raw, raising=False)
    assert os.fsencode(run("generate", "run", "--prompt", "x").out) == b"x" + raw
    assert json.loads(run("generate", "run", "--prompt", "x", "--json").out)["bytes"] == list(raw)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("generate", "run", "--prompt", "x").out == "x\ufffd\ufffd\ufffd[31m\n"


@pytest.mark.parametrize(
    "command",
    [
        "recipes --json",
        "doctor --json",
        "show 'fixed(stride=4, heads=2)' -n 16 --head 1 --json",
        "plan 'fixed(stride=4, heads=2)' -n 16 --json",
        "train --recipe sparse-transformer-enwik8 --dry-run --json",
        "train --folder RUN --resume --json",
        "evaluate RUN --json",
        "generate RUN --prompt é --length 3 --json",
    ],
)
def test_json_is_one_document(run: Run, tiny_run: Path, command: str):
    result = run(*shlex.split(command.replace("RUN", str(tiny_run))))
    assert result.code == 0
    assert isinstance(json.loads(result.out), dict)


LONG = ("search", "sparsify", "promises", "bench", "export")
"""Verbs whose examples take several seconds, each of which has tests of its own."""


@pytest.mark.parametrize("verb", slow_except(VERBS, *(verb for verb in VERBS if verb not in LONG)))
def test_the_example_of_every_help_runs(
    run: Run, verb: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = [{"text": f"the lamp is {word}", "label": word} for word in ("red", "blue")] * 20
    write_lines(tmp_path / "reviews.jsonl", lines)
    if verb == "completion":
        pytest.importorskip("shtab")
    result = run(verb, "--help")
    example = shlex.split(result.out.split("example:")[1])
    assert result.code == 0
    assert example[:2] == ["asterism", verb]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "bytes-small").symlink_to(tiny_run)
    with quiet_transformers():
        save_tiny_bert(tmp_path / "runs" / "bigbird-tiny")
        save_tiny_bert(tmp_path / "bert-base")
    monkeypatch.chdir(tmp_path)
    if verb == "promises":  # all of them take minutes; those of one subject are enough to see the verb run
        monkeypatch.setattr("asterism.promises.report.SUBJECTS", [one for one in SUBJECTS if one.is_ours][-1:])
        monkeypatch.delitem(PROMISES, "memory grows linearly")
    if verb == "explore":  # it would serve for ever
        monkeypatch.setattr(
            "asterism.explore.server.serve", lambda port, patience, ready, subject: ready("http://127.0.0.1/")
        )
    if verb == "export":
        sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
        LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=8192)).save_pretrained("llama-3.2-1b")
    if verb == "sparsify":
        save_causal(tmp_path / "smollm2", windowed=False)
        write_lines(tmp_path / "texts.jsonl", [{"text": f"{number} the lamp is red. " * 200} for number in range(12)])
    if verb == "predict":
        (tmp_path / "new.csv").write_text("text\nthe lamp is red\n")
        config = FineTuneConfig(
            task="classify", model="bert-base", data="reviews.jsonl", steps=1, dtype="float32", batch_size=8
        )
        training.train(config, "runs/reviews", progress=False)
    assert run(*example[1:], *(["--dry-run"] if verb == "train" else [])).code == 0


def test_help_and_version(run: Run):
    assert all(verb in run("--help").out for verb in VERBS)
    assert run(*shlex.split(run("--help").out.split("example:")[1])[1:]).code == 0
    assert re.fullmatch(r"asterism \d+\.\d+\.\d+, torch \S+, transformers \S+, Python \S+\n", run("--version").out)
