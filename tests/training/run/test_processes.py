"""A run that several processes share is the run of one: its curve, its folder, its end."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from launched_runs import (
    EXACT,
    assert_same_curve,
    flags,
    is_gone,
    launched,
    settings,
    steps_done,
    told,
    workers,
)
from refusals import refusing
from safetensors.torch import load_file
from transformers import BertConfig, RobertaConfig

from asterism.cli.main import main
from asterism.cli.processes import is_follower
from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig
from asterism.training import FineTuneConfig, RunConfig, evaluate, generate, open_run, train
from asterism.training.ask.estimate import estimate
from asterism.training.run.division import _refuse_whole_rows, refuse_dropout, weighed
from asterism.training.run.folder import RunFolder
from asterism.training.run.loop import slice_weights
from asterism.training.run.processes import Processes
from asterism.training.settings.parallel import MeshShape, mesh_shape

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    train(settings(folder), folder / "run", progress=False)
    return folder


def assert_same_run(found, alone, out):
    assert_same_curve(found, alone / "run")
    assert out.count("validation:") == 1
    assert {path.name for path in found.iterdir()} == {path.name for path in (alone / "run").iterdir()}
    assert (found / "samples.jsonl").read_text() == (alone / "run" / "samples.jsonl").read_text()


@pytest.mark.slow  # that of torchrun is not
def test_two_processes_of_accelerate_have_the_curve_of_one(alone, tmp_path):
    config = settings(alone)
    process = launched(2, [*flags(config, tmp_path), "--folder", str(tmp_path / "run")], launcher="accelerate")
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert_same_run(tmp_path / "run", alone, out)
    assert errors.count("evaluating on the validation split") == 1


ONE_AFTER_THE_OTHER = """
import atexit, contextlib, json, os, pathlib, sys
def threads():
    names = [task.joinpath("comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    print("still there:", names.count("pt_gloo_runloop"), file=sys.stderr)
if sys.platform == "linux":
    atexit.register(threads)  # first come, last called
from torch import nn
from asterism.cli.main import main
from asterism.models import AsterismForCausalLM
from asterism.parallel import sharding
def call(self, **given):
    shared = sharding()
    widths.append([given["input_ids"].shape[1], shared is not None and shared.dense_exchange])
    return nn.Module.__call__(self, **given)
AsterismForCausalLM.__call__ = call
folder = pathlib.Path(sys.argv[1])
told = {}
for name, words in json.loads((folder / "asked.json").read_text()).items():
    widths = []
    out = folder / f"{name}-{os.environ['RANK']}.out"
    with out.open("w", encoding="utf-8", newline="") as stream, contextlib.redirect_stdout(stream):
        code = main(words)
    told[name] = [code, out.read_bytes().decode(), widths]
(folder / f"told-{os.environ['RANK']}.json").write_text(json.dumps(told))
"""
"""Several command lines by the same two processes, as each start takes seconds: what each ended with, said and read."""

PROMPTS = {
    "likeliest": ("17 is not 289, and 3 is.\n18 is", {"temperature": 0}),
    "drawn from an empty prompt": ("", {"top_k": 9, "seed": 3}),
}


@pytest.fixture(scope="module")
def shared(alone, tmp_path_factory):
    """What the first process told of each command line, and what both wrote to stderr."""
    folder, run = tmp_path_factory.mktemp("shared"), str(alone / "run")
    asked = {"evaluate": ["evaluate", run, "--minimum-context", "0", "9", "--json", "--dense-exchange"]}
    for name, (prompt, sampling) in PROMPTS.items():
        words = [word for key, value in sampling.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        asked[name] = ["generate", run, "--prompt", prompt, "--length", "15", *words]
    asked["train"] = [*flags(settings(alone, steps=1), folder), "--folder", str(folder / "run")]
    asked = {name: [*words, "--parallel", "cp=2"] for name, words in asked.items()}
    asked["curve"] = [*flags(settings(alone), folder / "curve"), "--folder", str(folder / "curve" / "run")]
    (folder / "asked.json").write_text(json.dumps(asked))
    script = folder / "script.py"
    script.write_text(ONE_AFTER_THE_OTHER)
    _, errors = (process := launched(2, [str(folder)], program=(str(script),))).communicate(timeout=300)
    assert process.returncode == 0, errors
    first, second = (json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2))
    assert all(code == 0 for one in (first, second) for code, _, _ in one.values()), errors
    assert all(out == "" for _, out, _ in second.values())
    return first, errors, folder


def test_two_processes_of_torchrun_have_the_curve_of_one(alone, shared):
    assert_same_run(shared[2] / "curve" / "run", alone, shared[0]["curve"][1])


def test_an_evaluation_shares_the_tokens_of_its_rows(alone, shared):
    _, out, widths = shared[0]["evaluate"]
    assert widths and all(width == [24, True] for width in widths)
    found, wanted = json.loads(out), evaluate(alone / "run", minimum_context=(0, 9))
    assert found["bytes_scored"] == wanted.bytes_scored
    assert [score["bits_per_byte"] for score in found["scores"]] == pytest.approx(
        [score.bits_per_byte for score in wanted.scores], abs=EXACT
    )


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
def test_the_threads_of_process_groups_end_before_the_interpreter(shared):
    """Else one that lets go of a tensor just then aborts the process, once in dozens of runs."""
    assert shared[1].count("still there: 0") == 2, shared[1]


@pytest.mark.parametrize("name", PROMPTS)
def test_processes_share_a_prompt_and_one_writes(alone, shared, name):
    prompt, sampling = PROMPTS[name]
    assert shared[0][name][1].encode() == prompt.encode() + generate(alone / "run", prompt.encode(), 15, **sampling)


def test_a_prompt_is_one_row_of_text(alone, monkeypatch, capsys):
    with refusing(ConfigurationError, "mesh-of-prompt", "'dp=2'"):
        generate(alone / "run", b"1", 5, parallel="dp=2")
    run = ["generate", str(alone / "run")]
    for words, said in {
        ("--output", "x.png", "--parallel", "cp=2"): "one process writes files",
        ("--prompt", "1"): "WORLD_SIZE is 2: start it without a launcher, or .* --parallel cp=2",
        ("--prompt", "1", "--parallel", "cp=3"): "a mesh cp=3 has 3 processes, there are 2",
    }.items():
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main([*run, *words]) == 2
        assert re.search(said, capsys.readouterr().err)


def test_an_evaluation_shares_no_weights_out(alone):
    with refusing(ConfigurationError, "mesh-of-evaluation"):
        evaluate(alone / "run", parallel="fsdp=2")


def test_an_evaluation_of_a_task_shares_no_tokens(tmp_path, monkeypatch):
    config = FineTuneConfig(task="tag", model="x", data="x")
    monkeypatch.setattr(RunFolder, "read_config", lambda folder: config)
    with refusing(ConfigurationError, "mesh-of-task"):
        evaluate(tmp_path, parallel="cp=2")


def test_readers_take_turns_and_those_of_a_row_hold_parts_of_it(alone):
    group = SimpleNamespace(get_group=lambda axis: axis)
    made = [Processes(MeshShape(dp=2, cp=2), rank, group) for rank in range(4)]
    turns = [list(one.share(3)) for one in made]
    assert turns[0] == turns[1] == [(0, True), (2, True)]
    assert turns[2] == turns[3] == [(1, True), (2, False)]
    model, tokens = open_run(alone / "run").model, torch.arange(10).view(2, 5)
    given = [one.tokens(model, {"input_ids": tokens, "shift_labels": tokens})["input_ids"] for one in made]
    for first, second in (given[:2], given[2:]):
        assert torch.equal(first, tokens[:, :3]) and torch.equal(second, tokens[:, 3:])


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step_and_one_goes_on(alone, tmp_path):
    config = settings(alone, steps=40, dtype="float32", optimizer="adamw")
    process = launched(2, [*flags(config, tmp_path), "--parallel", "fsdp=2", "--folder", str(tmp_path / "run")])
    started = workers(process, 2)
    while steps_done(tmp_path / "run") < 3 and process.poll() is None:
        time.sleep(0.05)
    os.kill(started[1], signal.SIGTERM)
    _, errors = process.communicate(timeout=180)
    assert told(errors) == ["asterism: terminated"], errors
    assert all(is_gone(worker) for worker in started)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    assert 3 <= step == steps_done(tmp_path / "run") < 40
    again = replace(config, parallel="dp=1")
    train(again, tmp_path / "run", resume=True, progress=False)
    train(config, tmp_path / "one", progress=False)
    assert_same_curve(tmp_path / "run", tmp_path / "one", within=1e-4)


@pytest.mark.parametrize(
    ("text", "processes", "wanted"),
    [
        ("", 1, MeshShape()),
        ("", 4, MeshShape(dp=4)),
        ("dp=2,cp=4", 8, MeshShape(dp=2, cp=4)),
        (" cp=2 , fsdp=3", 6, MeshShape(fsdp=3, cp=2)),
        ("dp=1", 1, MeshShape()),
    ],
)
def test_a_mesh_says_who_shares_what(text, processes, wanted):
    assert mesh_shape(text, processes) == wanted
    assert wanted.processes == processes


@pytest.mark.parametrize(
    ("text", "processes", "message"),
    [
        ("dp=2", 1, "a mesh dp=2 has 2 processes, this is one alone: start 2 with `torchrun --nproc-per-node 2`, or"),
        ("dp=2", 1, "or say a mesh of 1, such as --parallel dp=1$"),
        ("dp=2,cp=2", 3, "has 4 processes, there are 3: start 4 with .* or say a mesh of 3, such as --parallel dp=3$"),
        ("cp=2", 4, "has 2 processes, there are 4: start 2 with .* such as --parallel cp=4$"),
        ("dp=4,fsdp=2,cp=2", 4, "such as --parallel fsdp=2,cp=2$"),
        ("tp=2", 2, "'tp=2' is not one of dp=N, fsdp=N, cp=N"),
        ("dp=0", 1, "'dp=0' is not one of"),
        ("dp=-1", 1, "'dp=-1' is not one of"),
        ("dp=two", 2, "'dp=two' is not one of"),
        ("dp=99999999999", 2, "is not one of"),
        ("dp=2,dp=2", 4, "dp is given twice"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(text, processes, message):
    with pytest.raises(ConfigurationError, match=message):
        mesh_shape(text, processes)


def test_the_configuration_refuses_a_mesh_that_is_none():
    with refusing(ConfigurationError, "mesh-text", "'many'"):
        RunConfig(parallel="many")


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_weighted_means_of_all_parts_add_up_to_the_mean(readers, slices):
    generator = torch.Generator().manual_seed(readers)
    labels = torch.randint(-3, 5, (8, 7), generator=generator).clamp(min=-1)
    losses = torch.rand(8, 7, generator=generator, dtype=torch.float64)
    weights = slice_weights({"labels": labels}, slices, readers)
    total = 0.0
    for one in range(slices):
        rows = [part.chunk(slices)[one].tensor_split(readers) for part in (losses, labels)]
        for reader, (loss, label) in enumerate(zip(*rows, strict=True)):
            if (label >= 0).any():
                total += weights[reader][one] * loss[label >= 0].mean().item() / slices
    assert total == pytest.approx(losses[labels >= 0].mean().item(), abs=1e-12)


def test_a_process_without_labels_weighs_nothing():
    labels = torch.tensor([[1, 2], [-100, -100]])
    assert slice_weights({"labels": labels}, 1, 2) == [[1.0], [0.0]]


def test_a_run_in_float64_is_kept_and_estimated_in_float64(alone):
    weights = load_file(alone / "run" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float64}
    opened = open_run(alone / "run")
    assert all(torch.equal(weights[name], one) for name, one in opened.model.named_parameters())
    wide, narrow = estimate(settings(alone)), estimate(settings(alone, dtype="float32"))
    assert wide.weight_memory == 2 * narrow.weight_memory == 8 * wide.parameters
    assert wide.optimizer_memory == 2 * narrow.optimizer_memory
    assert 1.5 < wide.activation_memory / narrow.activation_memory < 2.1


def test_followers_know_themselves(monkeypatch):
    for rank, size, follows in (("1", "2", True), ("0", "2", False), ("1", "1", False), ("", "2", False)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        assert is_follower() == follows


@pytest.mark.parametrize(
    ("mixers", "fields", "refused"),
    [
        ("causal()", {}, True),
        ("interleave(window(left=8), causal())", {}, True),
        ("window(left=8)", {}, False),
        ("interleave(fourier(), window(4, 4))", {}, False),
        ("causal()", {"block": "all_attention", "persistent_vectors": 4, "relative_span": 8}, False),
        ("bigbird_etc(block=4, random=0, globals=3)", {"global_tokens": 3}, False),
        ("window(4, 4)", {"decoder_mixers": "causal()"}, True),
        ("window(4, 4)", {"decoder_mixers": "window(left=4)"}, True),
    ],
)
def test_an_exchange_as_large_as_dense_is_refused_before_a_folder_is_begun(mixers, fields, refused):
    shape = AsterismConfig(mixers=mixers, hidden_size=32, num_attention_heads=4, **fields)
    config = RunConfig(context=64, batch_size=2, dtype="float32")
    shared = Processes(MeshShape(cp=3))
    if refused:
        with pytest.raises(ConfigurationError, match=r"(causal|dense)\(\)' over 3 ranks .* dense_exchange=True"):
            weighed(config, shape, (64, 64), shared)
    else:
        assert weighed(config, shape, (64, 64), shared).dense_exchange  # rows that are shorter are computed
    assert weighed(config, shape, (64, 64), replace(shared, dense_exchange=True)).dense_exchange
    assert not weighed(config, shape, (64, 64), Processes(MeshShape(dp=3))).dense_exchange


@pytest.mark.parametrize(
    ("kind", "pattern", "task", "line"),
    [
        (BertConfig, None, "tag", "of bert models only if they attend by a pattern: save the model with one"),
        (
            BertConfig,
            "window(3, 3)",
            "classify",
            "with bert models cp divides only a loss per token, so the task must be",
        ),
        (
            RobertaConfig,
            "window(3, 3)",
            "tag",
            "of Asterism's models and of llama, gpt_neox, bert, modernbert, not of rob",
        ),
        (BertConfig, "window(3, 3)", "tag", None),
    ],
)
def test_models_of_transformers_share_tokens_only_where_that_is_tested(kind, pattern, task, line):
    shape = kind(attention_probs_dropout_prob=0.0)
    shape.asterism_pattern = pattern
    setup = SimpleNamespace(config=FineTuneConfig(task=task, model="x", data="x"), shape=shape)
    if line is None:
        _refuse_whole_rows(setup)
    else:
        with pytest.raises(ConfigurationError, match=line):
            _refuse_whole_rows(setup)


def test_a_model_of_transformers_gets_one_token_at_least():
    group = SimpleNamespace(get_group=lambda axis: axis)
    row = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2), "labels": torch.tensor([[1, 2]])}
    given = [
        Processes(MeshShape(cp=3), rank, group).tokens(SimpleNamespace(config=BertConfig()), row) for rank in range(3)
    ]
    for name, wanted in {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0], "labels": [1, 2, -100]}.items():
        assert [one[name].tolist() for one in given] == [[[value]] for value in wanted]
    model = SimpleNamespace(config=AsterismConfig())
    assert Processes(MeshShape(cp=3), 2, group).tokens(model, row)["input_ids"].shape == (1, 0)


@pytest.mark.parametrize("tokens", [6, 32])
def test_the_longest_rows_of_a_model_of_transformers_are_weighed(tokens):
    shape, config = BertConfig(hidden_size=32, num_attention_heads=4), RunConfig(batch_size=2, dtype="float32")
    shape.asterism_pattern = "window(6, 6)"
    shared = Processes(MeshShape(cp=2))
    if tokens == 32:
        assert weighed(config, shape, (32,), shared).dense_exchange
    else:
        with pytest.raises(ConfigurationError, match=r"window.* over 2 ranks would move"):
            weighed(config, shape, (6,), shared)


def test_a_short_target_asks_about_a_long_source():
    shape = AsterismConfig(mixers="window(4, 4)", decoder_mixers="window(left=4)", num_attention_heads=4)
    config, shared = RunConfig(batch_size=2, dtype="float32"), Processes(MeshShape(cp=3))
    assert weighed(config, shape, (960, 24), shared).dense_exchange
    with refusing(ConfigurationError, "mesh-unsuitable", "dense()' over 3 ranks"):
        weighed(config, shape, (960, 960), shared)


def test_dropout_of_pairs_is_refused_before_a_folder_is_begun():
    shape = AsterismConfig(mixers="window(left=8)", attention_dropout=0.1)
    with refusing(ConfigurationError, "sharded-dropout-keys", "attention_dropout"):
        refuse_dropout(shape, Processes(MeshShape(cp=2)))
    refuse_dropout(shape, Processes(MeshShape(cp=2), dense_exchange=True))
    refuse_dropout(shape, Processes(MeshShape(dp=2)))
    refuse_dropout(AsterismConfig(mixers="window(left=8)"), Processes(MeshShape(cp=2)))
