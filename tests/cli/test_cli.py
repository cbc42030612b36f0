"""The command line: what it prints, where, and with which exit code; every bad input gets one clear line."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest
from small_encoders import save_tiny_bert, write_lines

from asterism import training
from asterism.cli import main as entry
from asterism.cli.main import VERBS, main
from asterism.cli.train import read_arguments
from asterism.promises import PROMISES, SUBJECTS
from asterism.quiet import quiet_transformers
from asterism.shape import ModelConfig
from asterism.training import FineTuneConfig, RunConfig, recipe

TINY = shlex.split(
    "--batch-size 4 --steps 3 --warmup-steps 1 --dtype float32 --model.hidden-size 16 --model.num-hidden-layers 1"
    " --model.num-attention-heads 2 --model.mixers 'fixed(stride=32, summary=4)' --model.position-type learned"
)
SHORT = [*TINY, "--context", "32"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def call(*argv: str | Path) -> Result:
        code = main([str(word) for word in argv])
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(errors="surrogateescape"), err.decode())

    return call


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


def refuses(result: Result, code: int, message: str) -> None:
    """Exactly one line on stderr, nothing on stdout, and the right exit code."""
    assert re.fullmatch(f"asterism: error: .*{message}.*\n", result.err), result.err
    assert (result.code, result.out) == (code, "")


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "",
            r"a verb is missing\. The verbs are show, plan, certify, simulate, train, finetune, evaluate, predict",
        ),
        ("shwo 'causal()' -n 4", r"unknown verb 'shwo'\. Did you mean 'show'\?"),
        ("show 'causal()'", r"required: -n/--length"),
        ("show 'causal()' -n 4 --hed 1", r"unknown flag --hed\. Did you mean '--head'\?"),
        ("show 'causal()' -n 4 5", r"unexpected argument '5'"),
        ("show 'causal()' -n 0", r"-n/--length: must be a whole number from 1 to 16,777,216, got '0'"),
        ("show 'causal()' -n -3", r"must be a whole number from 1 to 16,777,216, got '-3'"),
        ("show 'causal()' -n 1e3", r"must be a whole number from 1 to 16,777,216, got '1e3'"),
        ("show 'causal()' -n 1000000000000", r"must be a whole number from 1 to 16,777,216, got '1000000000000'"),
        (f"plan 'causal()' -n {'9' * 5000}", r"must be a whole number from 1 to 16,777,216, got '9{37}\.\.\.'"),
        ("show 'causal()' -n 4 --head 1", r"--head 1: causal\(\) has 1 head, numbered 0"),
        (
            "show 'interleave(causal(), fixed(4, heads=2))' -n 4 --head 2",
            r"--head 2: interleave\(.*\) has 2 heads, numbered from 0",
        ),
        (
            "show 'causal()' -n 4 --plot picture.gif",
            r"--plot: the file name must end in \.png or \.svg, got 'picture\.gif'",
        ),
        ("show 'causal()' -n 4 --plot missing/x.png", r"--plot: there is no folder 'missing' to write 'x\.png' into"),
        ("show 'causal()' -n 4 --plot folder.png", r"--plot: 'folder\.png' is a folder; name a file"),
        ("show 'causal()' -n 4 --plot ''", r"--plot: the file name must end in \.png or \.svg, got ''"),
        ("show 'causal()' -n 4 --image x.png", r"unknown flag --image"),
        ("show 'causal()' -n 4 --queries 5", r"5 queries do not fit among 4 positions .*across\(pattern, step=...\)"),
        ("plan 'causal()' -n 4 --queries 5", r"5 queries do not fit among 4 positions"),
        ("plan \"across(dense(), step='1/9')\" -n 16777216", r"150,994,944 queries stand in the source"),
        ("bench 'across(dense(), step=2)' -n 4", r"cannot be used by bench, which measures self-attention"),
        ("certify 'across(dense(), step=2)' -n 4", r"cannot be used by a certificate"),
        ("show 'across(dense(), step=0)' -n 4", r"across: step must be a whole number above 0 or a fraction"),
        ("show 'bigbrid()' -n 4", r"unknown pattern 'bigbrid'\. Did you mean 'bigbird'\?"),
        ("show 'bigbird(blok=64)' -n 4", r"bigbird has no argument 'blok'\. Did you mean 'block'\?"),
        ("show 'window(left=-1)' -n 4", r"window: left must be at least 0, got -1"),
        ("show 'stride(period=0)' -n 4", r"stride: period must be at least 1, got 0"),
        ('show \'__import__("os").system("id")\' -n 4', r"is not allowed in a pattern"),
        ("show 'causal(' -n 4", r"cannot be read as a pattern"),
        ("plan 'causal()' -n 4 --tile 0", r"--tile: must be a whole number of at least 1, got '0'"),
        ("plan 'causal()' -n 4 --tile 5", r"tile size must be .*, got 5"),
        ("plan 'explicit(\"0:0\")' -n 4", r"explicit: the pattern covers 1 positions and 4 were asked for"),
        ("certify 'star()'", r"required: -n/--length"),
        ("certify 'star()' -n 70000", r"n must be from 1 to 65,536, got 70,000"),
        (
            "certify 'star()' -n 4 --plot reach.gif",
            r"--plot: the file name must end in \.png or \.svg, got 'reach\.gif'",
        ),
        ("show 'window(left=99999999999999999999)' -n 4", r"window: left must be from 0 to 1,152,9.*, got 99,999,9.*"),
        (
            "plan 'bigbird(block=1, random=1000000000000)' -n 40",
            r"count must be from 1 to 4,096, got 1,000,000,000,000",
        ),
        ("plan 'bigbird(heads=1000000000000)' -n 40", r"heads must be from 1 to 4,096, got 1,000,000,000,000"),
        ("plan 'fixed(8, heads=1000000000000)' -n 40", r"heads must be from 1 to 4,096, got 1,000,000,000,000"),
        ("plan 'split_heads(causal(), heads=1000000000000)' -n 40", r"heads must be from 1 to 4,096, got 1,000"),
        ("plan 'random_blocks(8, 1, seed=18446744073709551616)' -n 40", r"seed must be from 0 to 18,446,744,073,709"),
        ("certify 'causal()' -n 1000000000000", r"n must be from 1 to 65,536, got 1,000,000,000,000"),
        ("simulate drift --steps 999999999999999999999", r"--steps: must be a whole number from 0 to 1,000,000,000"),
        ("train --stps 3", r"unknown flag --stps\. Did you mean '--steps'\?"),
        ("train --hidden-size 3", r"unknown flag --hidden-size\. Did you mean '--model\.hidden-size'\?"),
        ("train extra", r"unexpected argument 'extra'"),
        ("train --steps x", r"--steps: expected int, got x"),
        ("train --steps 0", r"steps=0 must be at least 1"),
        ("train --dtype float8", r"--dtype: expected one of \['auto', 'float32', 'bfloat16', 'float64'\], got float8"),
        ("train --model.position-shape 3", r"--model\.position-shape: expected tuple\[int, \.\.\.\], null, got 3"),
        ("train --recipe bytes-smal", r"unknown recipe 'bytes-smal'\. Did you mean 'bytes-small'\?"),
        ("train --config missing.yaml", r"--config: File does not exist: '.*missing\.yaml'"),
        ("evaluate run --splt test", r"unknown flag --splt\. Did you mean '--split'\?"),
        ("evaluate run --split tests", r"invalid choice: 'tests'"),
        ("evaluate run --minimum-context -1", r"must be a whole number of at least 0, got '-1'"),
        ("generate run", r"required: --prompt"),
        ("generate run --prompt x --length 0", r"must be a whole number of at least 1, got '0'"),
    ],
)
def test_usage_errors(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    refuses(run(*shlex.split(command)), 2, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 4", r"unknown setting 'stepz'\. Did you mean 'steps'\?"),
        ("model: {hidden_siz: 4}", r"unknown setting 'model\.hidden_siz'\. Did you mean 'model\.hidden_size'\?"),
        ("steps: [", r"Problems parsing config"),
        ("steps: many", r"--steps: expected int, got many"),
        ("recipe: bytes", r"unknown recipe 'bytes'"),
    ],
)
def test_errors_of_the_configuration_file(run: Run, tmp_path: Path, text: str, message: str):
    (tmp_path / "settings.yaml").write_text(text)
    refuses(run("train", "--config", tmp_path / "settings.yaml"), 2, message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("--model.num-attention-heads 3", r"hidden_size 16 cannot be divided evenly over 3 attention heads"),
        ("--model.mixers 'bigbird()'", r"bigbird\(\) cannot be used by a causal model.*use bigbird_causal"),
        ("--model.mixers 'fourier()'", r"fourier"),
        ("--model.mixers 'across(causal())'", r"across\(causal\(\)\) cannot be used by a causal model: across"),
        ("--model.mixers 'window(left=1, right=1)'", r"it may read the future"),
        ("--model.mixers 'per_head((causal(), causal(), causal()))'", r"3 heads"),
        ("--record-length 31", r"record_length=31 must equal context=32"),
    ],
)
def test_models_that_cannot_be(run: Run, text_file: Path, tmp_path: Path, settings: str, message: str):
    folder = tmp_path / "run"
    refuses(run("train", *SHORT, *shlex.split(settings), "--data", text_file, "--folder", folder), 2, message)
    assert not folder.exists()


# --- data, checkpoints, training that diverges -----------------------------------------------------------------------


def test_data_that_cannot_be_used(run: Run, tmp_path: Path):
    folder = tmp_path / "run"

    def train(data: Path | str, *settings: str) -> Result:
        return run("train", *SHORT, *settings, "--data", data, "--folder", folder)

    empty, short, nothing, broken = (tmp_path / name for name in ("empty", "short", "nothing", "broken"))
    empty.touch()
    short.write_bytes(b"x" * 400)
    nothing.mkdir()
    broken.mkdir()
    (broken / "link").symlink_to(tmp_path / "missing")
    refuses(train(tmp_path / "missing"), 3, "there is no file or folder .*missing")
    refuses(train(empty), 3, "empty is empty")
    refuses(train(short), 3, "the validation split of .*short has 20 bytes, a sequence of context 32 needs 33")
    refuses(train(nothing), 3, "nothing holds no files")
    refuses(train(nothing, "--record-length", "32"), 3, "nothing is a folder; records are read from a single file")
    refuses(train(broken), 3, "cannot read .*link: No such file or directory")
    refuses(train("/dev/null"), 3, "/dev/null is neither a file nor a folder")
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(run: Run, tmp_path: Path):
    locked = tmp_path / "locked"
    locked.write_bytes(b"x" * 4000)
    locked.chmod(0)
    refuses(run("train", *SHORT, "--data", locked), 3, "cannot read .*locked: Permission denied")


def test_a_run_folder_that_exists(run: Run, text_file: Path, tiny_run: Path):
    before = sorted(tiny_run.rglob("*"))
    refuses(run("train", *SHORT, "--data", text_file, "--folder", tiny_run), 4, "exists .* choose another folder")
    assert sorted(tiny_run.rglob("*")) == before


def test_damaged_and_missing_checkpoints(run: Run, text_file: Path, tmp_path: Path):
    folder = tmp_path / "run"
    assert run("train", *SHORT, "--data", text_file, "--folder", folder).code == 0
    weights, record = folder / "model" / "model.safetensors", folder / "run.json"
    refuses(run("evaluate", tmp_path), 4, "is not a run folder: it has no run.json")
    refuses(run("train", "--folder", tmp_path, "--resume"), 4, "is not a run folder")
    weights.write_bytes(weights.read_bytes()[:100])
    refuses(run("evaluate", folder), 4, r"model/model\.safetensors is damaged")
    refuses(run("generate", folder, "--prompt", "x"), 4, r"model/model\.safetensors is damaged")
    record.write_text(record.read_text()[:50])
    refuses(run("evaluate", folder), 4, r"run\.json is damaged")


def test_a_loss_that_is_not_finite(run: Run, text_file: Path, tmp_path: Path):
    result = run("train", *SHORT, "--learning-rate", "1e30", "--data", text_file, "--folder", tmp_path / "run")
    assert (result.code, result.out) == (5, "")
    assert re.search(r"asterism: error: step \d: the loss is nan; .* Use a lower learning rate", result.err)


def test_requests_beyond_the_model(run: Run, tiny_run: Path):
    refuses(run("generate", tiny_run, "--prompt", "x" * 1000), 2, "1499 tokens are more than the 1024 positions")
    refuses(
        run("generate", tiny_run, "--prompt", "x", "--temperature", "-1"), 2, "temperature=-1.0 must not be negative"
    )
    refuses(run("evaluate", tiny_run, "--minimum-context", "1025"), 2, "1025 is not between 0 and the model's context")
    refuses(run("evaluate", tiny_run, "--data", "/dev/null"), 3, "neither a file nor a folder")


# --- results ---------------------------------------------------------------------------------------------------------


def test_show_one_head(run: Run, tmp_path: Path):
    """Every figure is about the head that was asked for."""
    pattern = "per_head((causal(), window(left=1)))"
    result = run("show", pattern, "-n", "4", "--head", "1", "--plot", tmp_path / "x.png")
    assert result.out.splitlines() == [
        "per_head(patterns=(causal(), window(left=1))), 4 tokens, head 1 of 2",
        "█···",
        "██··",
        "·██·",
        "··██",
        "rows: queries, columns: keys; █ may attend, · may not",
        "degrees: a query of head 1 reads 1 to 2 keys, 1.8 on average",
        "density: 43.75% of the pairs of head 1",
        "cost:    1.79 kFLOP forward for head 1, 64 features wide; `asterism plan` says more",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_show_every_head(run: Run):
    """Without --head the picture says whose it is, and each head has figures of its own."""
    result = run("show", "per_head((causal(), window(left=1), window(left=1)))", "-n", "4")
    assert result.out.splitlines()[0].endswith("4 tokens, head 0 of 3")
    assert result.out.splitlines()[6:] == [
        "degrees and density, head by head:",
        "  head 0         a query reads 1 to 4 keys, 2.5 on average; 62.50% of the pairs",
        "  heads 1 to 2   a query reads 1 to 2 keys, 1.8 on average; 43.75% of the pairs",
        "density: 50.00% of the pairs, over 3 heads",
        "cost:    6.14 kFLOP forward for 3 heads, 64 features wide; `asterism plan` says more",
    ]
    document = json.loads(run("show", "per_head((causal(), window(left=1)))", "-n", "4", "--json").out)
    (pattern,) = document["mixers"]
    assert [(head["head"], head["density"]) for head in pattern["heads"]] == [(0, 0.625), (1, 0.4375)]
    assert pattern["picture"] == {"head": 0, "rows": ["█···", "██··", "███·", "████"]}


def test_show_schedules(run: Run, tmp_path: Path):
    schedule = "interleave(causal(), per_head((window(left=1), window())), causal())"
    lines = run("show", schedule, "-n", "3", "--head", "1", "--plot", tmp_path / "x.svg").out.splitlines()
    assert lines[:5] == ["layers 0, 2, 3, 5, ... (2 of every 3)", "causal(), 3 tokens", "█··", "██·", "███"]
    second = lines.index("layers 1, 4, 7, ... (1 of every 3)")
    assert lines[second + 1 : second + 5] == [
        "per_head(patterns=(window(left=1), window())), 3 tokens, head 1 of 2",
        "█··",
        "·█·",
        "··█",
    ]
    assert (tmp_path / "x.svg").read_text().count("<image") == 2
    assert run("show", schedule, "-n", "3", "--layer", "4").out.startswith("layer 4\nper_head(")
    document = json.loads(run("show", schedule, "-n", "3", "--json").out)
    assert [row["places"] for row in document["mixers"]] == [[0, 2], [1]] and document["period"] == 3


def test_plan_schedules(run: Run):
    schedule = "interleave(causal(), window(left=4), causal())"
    lines = run("plan", schedule, "-n", "128").out.splitlines()
    assert lines[:2] == ["layers 0, 2, 3, 5, ... (2 of every 3)", "causal()"]
    second = lines.index("layers 1, 4, 7, ... (1 of every 3)")
    assert lines[second + 1] == "window(left=4)"
    assert run("plan", schedule, "-n", "128", "--layer", "7").out.splitlines()[:2] == ["layer 7", "window(left=4)"]
    plans = json.loads(run("plan", schedule, "-n", "128", "--json").out)["mixers"]
    assert [(plan["places"], plan["plan"]["pattern"]) for plan in plans] == [
        ([0, 2], "causal()"),
        ([1], "window(left=4, right=0, dilation=1)"),
    ]
    assert run("plan", "interleave(causal(), causal())", "-n", "9").out.startswith("every layer\ncausal()")


@pytest.mark.parametrize("verb", ["show", "plan"])
def test_fourier_is_told_in_a_line(run: Run, tmp_path: Path, verb: str):
    told = (
        "fourier() mixes all tokens by a Fourier transform (Lee-Thorp 2021): every token depends on every other, and"
        " there is no pattern of attention"
    )
    assert run(verb, "fourier()", "-n", "4") == Result(0, f"{told}\n", "")
    mixed = run(verb, "interleave(fourier(), causal())", "-n", "4").out.splitlines()
    assert mixed[:2] == ["layers 0, 2, 4, ... (1 of every 2)", told] and "layers 1, 3, 5, ... (1 of every 2)" in mixed
    rows = json.loads(run(verb, "interleave(fourier(), causal())", "-n", "4", "--json").out)["mixers"]
    assert [(row["mixer"], row["plan"] is None) for row in rows] == [("fourier()", True), ("causal()", False)]


def test_pictures_of_mixers(run: Run, tmp_path: Path):
    refuses(run("show", "fourier()", "-n", "4", "--plot", tmp_path / "x.png"), 2, "--plot: fourier.. mixes all tokens")
    assert run("show", "interleave(fourier(), causal())", "-n", "4", "--plot", tmp_path / "x.png").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    refuses(run("certify", "fourier()", "-n", "4"), 2, r"fourier\(\) is no pattern")


def test_show_says_when_it_counted_some_queries_only(run: Run):
    assert "on average (of 2,048 queries counted)" in run("show", "strided(stride=256)", "-n", "65536").out


def test_show_does_not_round_a_density_to_nothing(run: Run):
    assert "density: 0.0005% of the pairs\n" in run("show", "window(left=4)", "-n", "1000000").out


def test_plan(run: Run):
    result = run("plan", "strided(stride=128)", "-n", "16384")
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) <= 40


def test_train_evaluate_generate(run: Run, text_file: Path, tmp_path: Path):
    folder = tmp_path / "run"
    trained = run("train", *SHORT, "--data", text_file, "--folder", folder)
    assert trained.code == 0
    assert re.search(r"validation: \d\.\d{4} bits per byte", trained.out)
    assert "step 3" in trained.err
    evaluated = run("evaluate", folder, "--minimum-context", "0", "16", "--limit", "1000")
    assert [line.split()[0] for line in evaluated.out.splitlines()[2:4]] == ["0", "16"]
    generated = run("generate", folder, "--prompt", "the ", "--length", "7", "--temperature", "0")
    assert len(generated.out) == 11
    assert generated.out.startswith("the ")
    finished = run("train", "--folder", folder, "--resume")
    assert finished.out == trained.out
    refused = run("train", "--folder", folder, "--resume", "--steps", "9")
    refuses(refused, 2, f"steps is 9, but the run began with 3; it is finished: .* with --init-from {folder}")


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


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_certify_explains_checks_and_draws(run: Run, tmp_path: Path, suffix: str):
    picture = tmp_path / f"reach.{suffix}"
    rule = "interleave(window(left=4, right=4), stride(period=8))"
    result = run("certify", rule, "-n", 64, "--check", "--plot", picture)
    assert (result.code, result.err) == (0, "")
    assert "s = 3 layers: 0 does not depend on 61 after 2" in result.out
    assert re.search(r"average path length +1\.77 +1\.\d+ +2\.646\n", result.out)
    assert result.out.count("checked  ") == 4
    assert picture.stat().st_size > 5000


def test_certify_in_json(run: Run):
    document = json.loads(run("certify", "strided(8)", "-n", 32, "--check", "--json").out)
    assert (document["star"], document["yun"], document["hops"]) == (False, False, None)
    assert document["never"] == {"kind": "Never", "query": 0, "key": 1, "closed": [0]}
    assert len(document["checked"]) == 4


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_every_help_runs(
    run: Run, verb: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = [{"text": f"the lamp is {word}", "label": word} for word in ("red", "blue")] * 20
    write_lines(tmp_path / "reviews.jsonl", lines)
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
    if verb == "predict":
        (tmp_path / "new.csv").write_text("text\nthe lamp is red\n")
        config = FineTuneConfig(
            task="classify", model="bert-base", data="reviews.jsonl", steps=1, dtype="float32", batch_size=8
        )
        training.train(config, "runs/reviews", progress=False)
    assert run(*example[1:], *(["--dry-run"] if verb == "train" else [])).code == 0


@pytest.mark.parametrize("configuration", [RunConfig, FineTuneConfig])
def test_every_setting_says_what_it_means(run: Run, configuration: type):
    shown = " ".join(run(configuration.kind, "--help").out.split())
    for setting in fields(configuration):
        if setting.type is not ModelConfig:  # a table of its own, whose fields are flags
            assert " ".join(setting.metadata["help"].split()[:4]) in shown, setting.name


def test_help_and_version(run: Run):
    assert all(verb in run("--help").out for verb in VERBS)
    assert run(*shlex.split(run("--help").out.split("example:")[1])[1:]).code == 0
    assert re.fullmatch(r"asterism \d+\.\d+\.\d+\n", run("--version").out)


# --- one configuration -----------------------------------------------------------------------------------------------


def test_flags_override_the_file_and_the_file_the_recipe(tmp_path: Path):
    file = tmp_path / "settings.yaml"
    file.write_text("recipe: sparse-transformer-cifar10\nsteps: 7\nseed: 5\nmodel: {dropout: 0.5}\n")
    for argv in (["--steps", "9", "--config", str(file)], [f"--config={file}", "--steps=9"]):
        _, config = read_arguments(argv)
        expected = recipe("sparse-transformer-cifar10")
        assert (config.recipe, config.steps, config.seed, config.model.dropout) == (expected.recipe, 9, 5, 0.5)
        assert config.model.position_shape == expected.model.position_shape
        assert config.learning_rate == expected.learning_rate


def test_the_objective_chooses_the_recipe_when_none_is_named():
    assert read_arguments([])[1].recipe == "bytes-small"
    arguments, config = read_arguments(["--objective", "mlm", "--next-sentence", "true"])
    assert (config.recipe, config.next_sentence, arguments.folder) == ("bigbird-tiny", True, "runs/bigbird-tiny")


def test_flags_may_have_dashes_or_underscores():
    dashed = read_arguments(["--batch-size", "8", "--model.hidden-size=32"])[1]
    assert dashed == read_arguments(["--batch_size", "8", "--model.hidden_size=32"])[1]
    assert (dashed.batch_size, dashed.model.hidden_size) == (8, 32)


@pytest.mark.parametrize("name", training.RECIPES)
def test_the_printed_configuration_reads_back(run: Run, tmp_path: Path, name: str):
    file = tmp_path / "settings.yaml"
    file.write_text(run("train", "--recipe", name, "--print-config").out)
    assert read_arguments(["--config", str(file)])[1] == recipe(name)
    assert read_arguments(["--recipe", name])[1] == recipe(name)


# --- ways of ending --------------------------------------------------------------------------------------------------


def start(argv: Sequence[str | Path], **streams: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "asterism.cli.main", *map(str, argv)]
    return subprocess.Popen(command, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **streams)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_signals(run: Run, text_file: Path, tmp_path: Path, number: signal.Signals, code: int, word: str):
    folder = tmp_path / "run"
    settings = [*SHORT, "--steps", "1000000", "--log-every", "1", "--data", text_file, "--folder", folder]
    process = start(["train", *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / "history.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert f"resume with: asterism train --folder {folder} --resume\nasterism: {word}\n" in err
    assert "\x1b" not in err
    assert any((folder / "checkpoints").iterdir())


def test_a_reader_that_goes_away_is_no_error():
    process = start(["show", "causal()", "-n", "64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


def test_show_and_plan_start_without_torch():
    check = "import sys; from asterism.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for verb in ("show", "plan"):
        subprocess.run([sys.executable, "-c", check, verb, "causal()", "-n", "9"], check=True, capture_output=True)


@pytest.mark.parametrize("verb", ["show", "predict", "import"])
def test_what_one_process_does_is_not_done_by_several(run: Run, monkeypatch: pytest.MonkeyPatch, verb: str):
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, out, err = run(verb, "window(3)", "-n", "8")
    assert (code, out) == (2, "")
    assert f"{verb} is the work of one process, and WORLD_SIZE says that there are 3" in err
    monkeypatch.setenv("WORLD_SIZE", "1")
    if verb == "show":
        assert run(verb, "window(3)", "-n", "8")[0] == 0


@pytest.mark.parametrize("words", [["--help"], ["show", "--help"], ["plan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]):
    heavy = {"torch", "transformers", "scipy", "matplotlib", "rich", "jsonargparse"}
    check = (
        "import sys; from asterism.cli.main import main; main(sys.argv[1:]);"
        f" assert not {heavy} & {{*sys.modules}}, sys.modules"
    )
    subprocess.run([sys.executable, "-c", check, *words], check=True, capture_output=True)


def test_asking_a_run_loads_nothing_that_only_draws_or_reads_settings():
    heavy = {"matplotlib", "jsonargparse"}
    check = f"import sys, asterism.training.pipeline; assert not {heavy} & {{*sys.modules}}, sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail(name: str):
        raise ModuleNotFoundError("No module named 'transformers.utils'", name="transformers.utils")

    monkeypatch.setattr(entry.importlib, "import_module", fail)
    refuses(run("train"), 1, r"train needs transformers: pip install 'asterism-attention\[train\]'")


def test_a_place_that_cannot_be_written(run: Run):
    refuses(run("show", "causal()", "-n", "4", "--plot", "/proc/x.png"), 1, r"/proc/\.x\.\d+\.png")


@pytest.mark.parametrize("verb", ["show", "certify"])
def test_a_picture_that_fails_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    (tmp_path / "x.png").write_text("the picture before")

    def fail(figure: object, path: Path, **_: object):
        Path(path).write_text("half of it")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    refuses(run(verb, "causal()", "-n", "4", "--plot", tmp_path / "x.png"), 1, "No space left on device")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.png", "the picture before")]


def shell(command: str, **environment: str) -> Result:
    """A command line as a shell runs it, with its redirections; ASTERISM stands for the program."""
    program = f"{shlex.quote(sys.executable)} -m asterism.cli.main"
    done = subprocess.run(
        ["sh", "-c", command.replace("ASTERISM", program)], capture_output=True, env=os.environ | environment
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_closed_stdout_is_told():
    result = shell("ASTERISM show 'causal()' -n 4 >&-")
    assert result == Result(
        1, "", "asterism: error: stdout is closed, so there is nowhere to print the result; redirect it to a file\n"
    )


def test_errors_never_go_to_stdout():
    assert shell("ASTERISM show 'causal(' -n 4 2>&-") == Result(2, "", "")
    assert shell("ASTERISM show 'causal()' -n 4 --json 2>&-").out.startswith("{")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full disk")
def test_a_full_disk_is_one_line():
    result = shell("ASTERISM show 'causal()' -n 4 >/dev/full")
    assert result == Result(1, "", "asterism: error: No space left on device\n")
    assert shell("ASTERISM show 'causal(' -n 4 2>/dev/full") == Result(2, "", "")


def test_a_terminal_that_knows_ascii_only():
    lines = shell("ASTERISM show 'causal()' -n 2", PYTHONIOENCODING="ascii").out.splitlines()
    assert lines[1:4] == ["#.", "##", "rows: queries, columns: keys; # may attend, . may not"]
    document = json.loads(shell("ASTERISM show 'causal()' -n 2 --json", PYTHONIOENCODING="ascii").out)
    assert document["mixers"][0]["picture"]["rows"] == ["█·", "██"]
    told = shell("ASTERISM show 'ünï' -n 2", PYTHONIOENCODING="ascii")
    assert told.code == 2 and told.err.count("\n") == 1


def test_too_little_memory_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail(argv: Sequence[str]):
        raise MemoryError("Unable to allocate 7.28 TiB for an array")

    monkeypatch.setattr("asterism.cli.show.run", fail)
    refuses(
        run("show", "causal()", "-n", "4"), 1, r"not enough memory \(Unable to allocate 7\.28 TiB for an array\); ask"
    )
