"""The command line refuses every bad input in one clear line, with its exit code."""

import os
import re
import shlex
from pathlib import Path

import pytest
from command_line import SHORT, Result, Run, refuses


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "",
            r"a verb is missing\. The verbs are show, plan, explore, certify, simulate, recipes, train, finetune",
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
        ("plan 'explicit(\"0:0\")' -n 4", r"explicit: got 4 positions, but the pattern covers 1"),
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
        ("train one two", r"unexpected argument 'two' after RUN 'one'"),
        ("train --seed 1 one --steps 2 two", r"unexpected argument 'two' after RUN 'one'"),
        ("train one --folder two", r"RUN is 'one' and --folder is 'two': give one of them"),
        ("train bigbird-tiny", r"'bigbird-tiny' is a recipe, .*: train --recipe bigbird-tiny, or the folder \./big"),
        ("train file.yaml", r"'file\.yaml' is a file, and RUN is a folder: give files with --config or --data"),
        ("train --model model.yaml", r"--model: in train, the fields of the model are flags .*use --init-from FOLDER"),
        ("train --length 64", r"--length: in train, the tokens of a sequence are --context N"),
        ("train --next-sentence yes", r"--next-sentence must be .* got 'yes': write --next-sentence or --no-next-sent"),
        ("train --model.attention-bias=1", r"--model\.attention-bias must be true or false, got '1'"),
        ("train --no-steps", r"unknown flag --no-steps"),
        ("train --device tpu", r"--device: must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ("evaluate run --device cuda:x", r"--device: must be auto, cpu, cuda or cuda:N, got 'cuda:x'"),
        ("evaluate run --dense-exchange on", r"--dense-exchange must be true or false, got 'on'"),
        ("finetune --resume", r"--resume needs RUN: `asterism finetune RUN --resume`"),
        ("generate run --prompt x --add 0", r"must be a whole number of at least 1, got '0'"),
        ("completion pash", r"invalid choice: 'pash'"),
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
    (tmp_path / "file.yaml").touch()
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
    refuses(train(short), 3, "the validation split of .*short has 20 bytes, but a sequence of context 32 needs 33")
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
    refuses(run("train", tmp_path, "--resume"), 4, "is not a run folder")
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


def test_the_last_word_behind_a_flag_of_several_values_is_the_run(run: Run, tiny_run: Path, tmp_path: Path):
    """It is so whatever is there as a folder; where RUN stands elsewhere, every word is a value."""
    words = "generate", "--output", tmp_path / "x.txt", "--label", "1", "2"
    assert "2 is not a run folder" in run(*words).err
    assert run(*words, tiny_run) == run(words[0], tiny_run, *words[1:])
    assert "not a run folder" not in run(*words, tiny_run).err
    data = "evaluate", "--minimum-context", "0", "--data", tmp_path
    refuses(run(*data), 2, "the following arguments are required: RUN")
