"""What stands around a run decides nothing: environment, the caller's torch, closed streams, numbers out of range."""

import json
import math
import os
import resource
import shutil
import signal
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from refusals import refusing
from small_encoders import REVIEWS, save_tiny_bert, write_lines

from asterism.cli import show
from asterism.cli.main import main
from asterism.cli.train import read_arguments
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.files import write_json
from asterism.training import FineTuneConfig, ModelConfig, RunConfig, pipeline, predict_file, train
from asterism.training.ask import prediction
from asterism.training.run.folder import RunFolder
from asterism.training.run.integrity import seal

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("surroundings")
    return FineTuneConfig(
        task="classify",
        model=str(save_tiny_bert(folder / "bert")),
        data=str(write_lines(folder / "reviews.jsonl", REVIEWS * 3)),
        **{"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 4, "steps": 4, "dtype": "float32"},
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(config, folder, progress=False)
    return folder


def _weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
        ("ACCELERATE_MIXED_PRECISION", "odd"),
        ("ACCELERATE_USE_CPU", "x"),
        ("ACCELERATE_TORCH_DEVICE", "meta"),
        ("ACCELERATE_USE_MEGATRON_LM", "true"),
        ("LOCAL_RANK", "1"),
    ],
)
def test_variables_of_launchers_change_nothing(config, finished, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    train(config, tmp_path / "run", progress=False)
    assert _weights(tmp_path / "run") == _weights(finished)
    assert os.environ[name] == value


def test_one_of_several_processes_that_cannot_meet_is_refused_at_once(config, tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with refusing(ConfigurationError, "launcher-variable-missing", "2", "MASTER_PORT"):
        train(config, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "around", [lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad, lambda: torch.device("meta")]
)
def test_the_callers_contexts_change_nothing(config, finished, tmp_path, around):
    with around():
        train(config, tmp_path / "run", progress=False)
    assert _weights(tmp_path / "run") == _weights(finished)


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "gradient_clip", "minutes", "epochs"])
def test_numbers_that_are_not_finite_are_refused(config, name):
    with pytest.raises(ConfigurationError, match=f"{name}=inf must be finite"):
        replace(config, **{name: math.inf})


def test_numbers_that_do_not_fit_are_refused(config):
    with refusing(ConfigurationError, "number-too-large", "length"):
        replace(config, length=10**23)
    with refusing(ConfigurationError, "number-too-large", "seed", "9,223,372,036,854,775,807"):
        RunConfig(seed=2**63)
    with refusing(ConfigurationError, "number-too-large", "model.hidden_size"):
        RunConfig(model=ModelConfig(hidden_size=10**23))
    with refusing(ConfigurationError, "number-too-large", "learning_rate must be at most 1e+30, got 1e+308"):
        replace(config, learning_rate=1e308)
    assert replace(config, learning_rate=1e30).learning_rate == 1e30  # which training stops, if it must


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_length": 2.5}, "target_length=2.5 must be a whole number or None$"),
        ({"num_beams": "8"}, "num_beams='8' must be a whole number$"),
        ({"steps": True}, "steps=True must be a whole number$"),
        ({"length_penalty": "1"}, "length_penalty='1' must be a number$"),
        ({"minutes": "1"}, "minutes='1' must be a number or None$"),
        ({"source_prefix": 5}, "source_prefix=5 must be text$"),
        ({"from_scratch": 1}, "from_scratch=1 must be True or False$"),
        ({"data": None}, "data=None must be text$"),
    ],
)
def test_settings_of_another_type_are_refused(config, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        replace(config, **changes)
    assert replace(config, epochs=2, minutes=None).epochs == 2


def test_a_model_beyond_memory_is_one_line(tmp_path, capsys, monkeypatch):
    def out_of_memory(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory\nmore")

    monkeypatch.setattr(pipeline, "resolve", out_of_memory)
    assert main(["train", "--folder", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.startswith("asterism: error: there is not enough memory; ")


def test_a_closed_stdin_is_empty(finished, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["predict", str(finished), "--data", "-", "--format", "csv"]) == 3
    assert capsys.readouterr().err.strip() == "asterism: error: data: stdin holds no record"
    sys.stdin.close()


@pytest.mark.parametrize("output", ["", "-", ".", "a\0b"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_no_name_of_a_file_is_refused(finished, config, output, resume):
    with pytest.raises(ConfigurationError, match="^output: "):
        predict_file(finished, config.data, output=output, resume=resume, progress=False)


def test_a_name_that_is_too_long_is_refused(finished, config, tmp_path):
    with pytest.raises(CheckpointError, match="a cannot be written: File name too long; "):
        predict_file(finished, config.data, output=tmp_path / ("a" * 300), progress=False)


def test_a_full_disk_is_told_and_predictions_go_on(finished, config, tmp_path):
    predict_file(finished, config.data, output=tmp_path / "whole.jsonl", progress=False)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) - 1, limits[1]))  # Python ignores the signal
    try:
        with pytest.raises(CheckpointError, match=r"out\.jsonl cannot be written: File too large; see to it .* go on"):
            predict_file(finished, config.data, output=tmp_path / "out.jsonl", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    predict_file(finished, config.data, output=tmp_path / "out.jsonl", resume=True, progress=False)
    assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_what_another_process_finished_meanwhile_is_kept(finished, config, tmp_path, monkeypatch):
    output = tmp_path / "out.jsonl"

    def opened(run, kept=prediction._opened):
        output.write_text("the other's work\n")
        return kept(run)

    monkeypatch.setattr(prediction, "_opened", opened)
    with refusing(CheckpointError, "output-finished"):
        predict_file(finished, config.data, output=output, progress=False)
    assert output.read_text() == "the other's work\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_empty_output_is_begun(finished, config, tmp_path):
    for resume in (False, True):
        output = tmp_path / f"{resume}.jsonl"
        output.touch()
        assert predict_file(finished, config.data, output=output, resume=resume, progress=False).rows == 36


def test_a_null_is_told_as_such(finished, tmp_path):
    data = write_lines(tmp_path / "null.jsonl", [{"text": None}])
    with refusing(DataError, "bad-field", "line 1", "'text'", "is null"):
        predict_file(finished, data, output=tmp_path / "out.jsonl", progress=False)


@pytest.mark.parametrize("line", ["5", "{}", '{"step": "x"}', "[" * 100_000])
def test_a_history_of_something_else_is_damaged(tmp_path, line):
    folder = RunFolder(tmp_path)
    folder.history_file.write_text(f"{line}\n" + json.dumps({"step": 1}) + "\n")
    with pytest.raises(CheckpointError, match="history.jsonl is damaged in line 1"):
        folder.read_history()


def test_a_record_of_brackets_is_damaged(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with refusing(CheckpointError, "damaged-file", "run.json"):
        RunFolder(tmp_path).read_record()


# --- files of settings -----------------------------------------------------------------------------------------------

_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{own}: &{own} [{','.join(9 * [f'*{before}'])}]\n" for before, own in pairwise("abcdefghijklm")
)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (_BOMB + "data: *m\n", "has more than 10,000 values"),
        ("".join(f"k{number}: &k{number} 1\n" for number in range(30_000)), "has more than 10,000 values"),
        ("data: " + "[" * 20_000 + "]" * 20_000, "is nested more than 20 deep"),
        ("data: " + "{a: " * 3000 + "1" + "}" * 3000, "is nested more than 20 deep"),
        ("steps: " + "9" * 5000, "has a number of 5,000 digits"),
        ("steps: 0x" + "f" * 5000, "steps must be at most 2,147,483,647, got a number of 20000 bits"),
        ("model: 5", "model configuration: must be settings by their names, got 5"),
        ("model: [1]", "must be settings by their names, got [1]"),
        ("model: null", "must be settings by their names, got None"),
        ("steps: 3\n\udcff", "is no text in UTF-8: invalid start byte at byte 9"),
        ('steps: !!int "x"', "a setting in the file cannot be read: invalid literal for int()"),
        ('steps: !!timestamp "x"', "a setting in the file cannot be read"),
        (f"minutes: {':'.join('1' * 400)}:0.5", "cannot be read: int too large"),
        ("steps: 1\nbatch_size: 2\nsteps: 3\n", "settings.yaml gives steps twice, in lines 1 and 3"),
        ("model:\n  mixers: causal()\n  mixers: dense()\n", "gives mixers twice, in lines 2 and 3"),
        ('{"steps": 1,\n"steps": 2}', "gives steps twice, in lines 1 and 2"),
    ],
    ids=["aliases", "anchors", "sequences", "mappings", "digits", "hexadecimal", "number", "list", "null", "bytes"]
    + ["integer", "timestamp", "sexagesimal", "twice", "inner", "json"],
)
def test_hostile_settings_are_refused_in_one_line(tmp_path, capsys, settings, complaint):
    file = tmp_path / "settings.yaml"
    file.write_text(settings, errors="surrogateescape")
    assert main(["train", "--config", str(file), "--folder", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_settings_may_have_aliases_and_long_patterns(tmp_path):
    file = tmp_path / "settings.yaml"
    rule = "explicit(" + repr(";".join(f"{query}:0-{query}" for query in range(3000))) + ", 3000)"
    file.write_text(f"steps: &few 7\nwarmup_steps: *few\nmodel:\n  mixers: {json.dumps(rule)}\n")
    assert read_arguments(["--config", str(file)])[1].model.mixers == rule


def test_settings_that_are_no_file_are_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "settings.yaml")
    for path in (tmp_path / "settings.yaml", "/dev/zero", tmp_path):
        assert main(["train", "--config", str(path)]) == 2
        assert f"{path} is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_a_class_is_made_ends_a_verb_as_ever(monkeypatch, capsys, number, code):
    """As matplotlib's are, at the end of a run."""

    class Field:
        def __set_name__(self, owner, name):
            signal.raise_signal(number)

    monkeypatch.setattr(show, "run", lambda words: type("Made", (), {"field": Field()}))
    assert main(["show", "causal()"]) == code
    assert capsys.readouterr().err == f"asterism: {'terminated' if code == 143 else 'interrupted'}\n"


def test_a_damaged_history_does_not_stop_a_resume(tmp_path):
    """Its checkpoint is whole: it has what the run needs."""
    folder = RunFolder(tmp_path)
    folder.history_file.write_bytes(b'{"step": 1}\n{"st\xb2p": 2}\n{"step": 3}\n{"step": 4}\n{"ste')
    with pytest.raises(CheckpointError, match="history.jsonl is damaged in line 2"):
        folder.read_history()
    (damage,) = folder.cut_history(3)
    assert "history.jsonl is damaged in line 2: 'utf-8' codec can't decode" in damage
    assert folder.read_history() == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("decided", (None, 5, "x", [], {}, {"a": 1})),
        ("corpus", (None, 5, "x", [], {}, {"sha256": 5})),
        ("decided.length", (None, "x", [1], -1, 1e300, True)),
        ("decided.reader", (None, 5, [], {"a": 1})),
        ("decided.labels", (None, 5, {}, [1], [None])),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_record_with_other_values_and_a_sum_of_its_own_is_refused(finished, tmp_path, place, values):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    record = json.loads((folder / "run.json").read_text())
    *above, name = place.split(".")
    holder = record[above[0]] if above else record
    for value in values:
        holder[name] = value
        write_json(folder / "run.json", seal(record))
        with pytest.raises((CheckpointError, ConfigurationError)):
            pipeline.evaluate(folder)
