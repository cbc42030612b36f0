"""Runs end to end: learning, exact resumption, interruption, damage, divergence, evaluation, generation."""

import json
import math
import mmap
import platform
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from stopping import at_step
from torch import nn
from transformers import AutoModelForCausalLM

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError, NonFiniteLossError
from asterism.kernels.choice.prices import Rates
from asterism.training.data.corpora.bytes import compressed, load_corpus
from asterism.training.data.corpora.modality import VOCABULARY as MODALITIES
from asterism.training.data.corpora.windows import plan_pieces
from asterism.training.objectives.causal import bits_per_byte
from asterism.training.pipeline import evaluate, generate, open_run, report, resolve, train
from asterism.training.readers.text import VOCABULARY as READERS
from asterism.training.run import arithmetic as arithmetic_module
from asterism.training.run import heap as heap_module
from asterism.training.run import muon as muon_module
from asterism.training.run import versions
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.folder import RunFolder
from asterism.training.run.heap import Heap
from asterism.training.run.integrity import seal, sums_of
from asterism.training.run.muon import Muon
from asterism.training.run.optimizer import parameter_groups
from asterism.training.run.progress import Bar, LogLines, Silence, Status, clock, make_display, rate
from asterism.training.run.signals import held_back
from asterism.training.settings.configuration import FineTuneConfig, ModelConfig, RunConfig, config_to_dict
from asterism.training.settings.registry import OBJECTIVES, TASKS

pytestmark = pytest.mark.model

CPU = torch.device("cpu")

TEXT = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(1200))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "code.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture(scope="module")
def tiny(text):
    model = ModelConfig(
        mixers="window(left=15) | stride(period=16) & causal()",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        dropout=0.1,
    )
    return RunConfig(
        model=model,
        data=str(text),
        context=64,
        batch_size=8,
        steps=30,
        learning_rate=1e-2,
        warmup_steps=5,
        dtype="float32",
        log_every=7,
        evaluation_every=10,
        evaluation_bytes=640,
        checkpoint_every=12,
    )


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    report = train(tiny, folder, progress=False)
    return folder, report


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A run that SIGINT stopped while step 14 was recorded; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(tiny, folder)
    return folder


@pytest.fixture
def interrupted(stopped, tmp_path):
    """A copy of the run that was stopped."""
    return Path(shutil.copytree(stopped, tmp_path / "interrupted"))


def _history(folder):
    entries = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("seconds", "bytes_per_second")} for entry in entries]


def test_a_run_learns_and_leaves_a_complete_folder(tiny, finished):
    folder, report = finished
    assert report.steps == 30 and report.bytes_trained == 30 * 8 * 64
    assert report.validation_bits_per_byte < 4
    assert report.parameters == resolve(tiny).build(CPU)[0].num_parameters()
    record = json.loads((folder / "run.json").read_text())
    assert record["result"] == report.as_json()
    assert record["corpus"]["sha256"] == load_corpus(tiny.data).sha256
    assert config_to_dict(RunFolder(folder).read_config()) == config_to_dict(tiny)
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "tensorboard").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "loss.png",
        "model",
        "run.json",
        "tensorboard",
    ]


def test_history_logs_every_step_once_and_validates_on_time(finished):
    history = _history(finished[0])
    logged = [entry["step"] for entry in history if "loss" in entry]
    assert logged == [7, 14, 21, 28, 30]
    assert [entry["step"] for entry in history if "validation_bits_per_byte" in entry] == [10, 20, 30]
    assert math.log(256) > history[0]["loss"] > history[-2]["loss"]
    assert all(entry["bits_per_byte"] == entry["loss"] / math.log(2) for entry in history if "loss" in entry)


def test_a_new_model_needs_eight_bits_per_byte(tiny):
    model = resolve(tiny).build(CPU)[0]
    data = load_corpus(tiny.data).pieces("validation")
    plan = plan_pieces(data, tiny.context, 0, 0, len(data))
    assert bits_per_byte(model, data, plan, tiny, Evaluator()) == pytest.approx(8.0, abs=1e-6)


def test_a_run_twice_gives_the_same_bits(tiny, finished, tmp_path):
    folder, report = finished
    again = train(tiny, tmp_path / "again", progress=False)
    assert again.validation_bits_per_byte == report.validation_bits_per_byte
    assert _history(tmp_path / "again") == _history(folder)
    other = train(replace(tiny, seed=1, steps=5), tmp_path / "other", progress=False)
    assert other.validation_bits_per_byte != report.validation_bits_per_byte


def test_an_interrupted_run_resumes_to_the_same_bits(tiny, finished, interrupted):
    folder, report = finished
    assert [path.name for path in (interrupted / "checkpoints").iterdir()] == ["step-00000014"]
    resumed = train(tiny, interrupted, resume=True, progress=False)
    assert asdict(resumed) | {"minutes": 0, "folder": ""} == asdict(report) | {"minutes": 0, "folder": ""}
    assert _history(interrupted) == _history(folder)
    one, two = load_file(folder / "model" / "model.safetensors"), load_file(interrupted / "model" / "model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_muon_resumes_to_the_same_bits_and_learns(tiny, tmp_path):
    config = replace(tiny, optimizer="muon", steps=20)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(config, tmp_path / "parts")
    parts = train(config, tmp_path / "parts", resume=True, progress=False)
    assert parts.validation_bits_per_byte == whole.validation_bits_per_byte < 5
    assert _history(tmp_path / "parts") == _history(tmp_path / "whole")


def test_muon_looks_after_the_matrices_of_the_blocks_only(tiny):
    model = resolve(tiny).build(CPU)[0]
    muon, *rest = parameter_groups(model, replace(tiny, optimizer="muon"))
    assert muon["kind"] == "muon" and all(parameter.ndim == 2 for parameter in muon["params"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(names[id(parameter)].startswith("model.layers.") for parameter in muon["params"])
    everything = [id(parameter) for group in (muon, *rest) for parameter in group["params"]]
    assert sorted(everything) == sorted(names)


def test_resumption_from_a_periodic_checkpoint_forgets_what_came_after_it(tiny, finished, tmp_path):
    folder = tmp_path / "killed"

    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    with pytest.raises(Killed), at_step(21, kill):
        train(tiny, folder)
    assert _history(folder)[-1]["step"] == 21
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 28, "lo')
    (folder / "checkpoints" / ".step-00000024-abc").mkdir()
    train(tiny, folder, resume=True, progress=False)
    assert _history(folder) == _history(finished[0])
    assert not (folder / "checkpoints").exists()


def test_a_run_killed_before_its_first_checkpoint_starts_again(tiny, finished, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    shutil.copy(finished[0] / "run.json", folder)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(seal(record | {"result": None})))
    report = train(tiny, folder, resume=True, progress=False)
    assert report.validation_bits_per_byte == finished[1].validation_bits_per_byte


def test_resuming_a_finished_run_only_reports(tiny, finished):
    before = (finished[0] / "run.json").stat().st_mtime_ns
    assert train(tiny, finished[0], resume=True, progress=False) == finished[1]
    assert (finished[0] / "run.json").stat().st_mtime_ns == before


def test_sigterm_reaches_the_callers_handler_after_the_checkpoint(tiny, tmp_path):
    class Terminated(BaseException):
        pass

    def handler(number, frame):
        raise Terminated

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Terminated), at_step(7, lambda: signal.raise_signal(signal.SIGTERM)):
            train(tiny, tmp_path / "run")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert RunFolder(tmp_path / "run").latest_checkpoint().name == "step-00000007"


def test_the_second_signal_acts_at_once_and_ignored_ones_stay_ignored():
    with pytest.raises(KeyboardInterrupt), held_back() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second signal was held back")
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, previous)


def test_everybody_may_read_what_the_umask_allows(finished, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, kind in (("run.json", "file"), ("model", "folder")):
        assert (finished[0] / name).stat().st_mode == (tmp_path / kind).stat().st_mode


def test_nothing_is_pickled(interrupted, finished):
    for folder in (interrupted, finished[0]):
        names = {path.suffix for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard"}
        assert names <= {".json", ".jsonl", ".png", ".safetensors"}


def test_the_callers_generators_are_left_alone(tiny, tmp_path):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    folder = tmp_path / "run"
    train(replace(tiny, steps=2), folder, progress=False)
    evaluate(folder, limit=64)
    generate(folder, b"def", 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_divergence_stops_before_the_weights_change(tiny, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match="^step [0-9]+: the .* (nan|inf).* lower learning rate") as caught:
        train(replace(tiny, learning_rate=1e30, warmup_steps=0, checkpoint_every=1), folder, progress=False)
    assert caught.value.exit_code == 5
    checkpoint = RunFolder(folder).latest_checkpoint()
    assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("at_once", [2**22, 3 * 8 * 12], ids=["together", "in parts"])
def test_muon_is_torchs_muon(monkeypatch, at_once, precision):
    """Wide, tall and square matrices, one without a gradient, one whose gradient is 0. Products are rounded anew."""
    monkeypatch.setattr(muon_module, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    shapes = [(8, 12), (12, 8), (8, 12), (12, 12), (12, 8), (8, 12), (1, 5), (12, 12)]
    ours, theirs = ([nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        other.data.copy_(one.data.normal_())
    before = [one.detach().clone() for one in ours]
    made = [{"params": ours[:3], "weight_decay": 0.1}, {"params": ours[3:], "weight_decay": 0.0}]
    own = Muon(made, 0.02, precision)
    torchs = torch.optim.Muon(
        [{"params": theirs[:3], "weight_decay": 0.1}, {"params": theirs[3:], "weight_decay": 0.0}],
        lr=0.02,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(4):
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            one.grad = torch.zeros_like(one) if one is ours[4] else torch.randn_like(one) * 10.0 ** (step - 2)
            other.grad = one.grad.clone()
        for optimizer in (own, torchs):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (step + 1)
            optimizer.step()
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert (one - other).norm() <= 0.05 * (other - before[number]).norm(), number
            if number:
                momenta = (optimizer.state[x]["momentum_buffer"] for optimizer, x in ((own, one), (torchs, other)))
                torch.testing.assert_close(*momenta, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="closures"):
        own.step(lambda: 0.0)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(8, 40, 8), (8, 16, 3), (1, 5, 1), (12, 12, 12), (12, 20, 12)])
def test_matrices_become_orthogonal_by_squares_too(rows, columns, rank):
    """In float32 wide matrices take another order of operations than in float64; one of all zeros stays so."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator) for shape in ((3, rows, rank), (3, rank, columns)))
    matrices = left @ right
    matrices[2] = 0
    exact = muon_module.orthogonal(matrices.double())
    assert (muon_module.orthogonal(matrices) - exact).norm() <= 2e-4 * exact.norm()


FAULTS = """
import contextlib, ctypes, resource, sys, torch
from asterism.training.run.heap import Heap, kept_memory

heap = Heap()

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        heap.tidy()
        blocks = [torch.ones(2**20) for _ in range(5)]  # of 4 MiB
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).mallopt(-3, 2**17)  # blocks are the system's, as when a process begins; else chance decides
with kept_memory() if sys.argv[1] == "kept" else contextlib.nullcontext():
    faults(3)
    print(faults(20))
print(faults(1))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_memory_is_kept_from_step_to_step_and_given_back_after():
    def count(how: str) -> tuple[int, int]:
        found = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout
        within, after = map(int, found.split())
        return within, after

    pages = 5 * 2**22 // mmap.PAGESIZE
    assert count("left alone")[0] > 10 * pages
    within, after = count("kept")
    assert within < 2 * pages and after > pages / 2


HELD = """
import torch
from asterism.training.run.heap import Heap, _resident_bytes, kept_memory

before, lives_on = _resident_bytes(), []
with kept_memory():
    blocks = []
    for _ in range(200):  # of 1 MiB, with something between them that a step leaves behind
        blocks.append(torch.ones(2**18))
        lives_on.append(torch.ones(2**10))
    del blocks
    print(_resident_bytes() - before)
    Heap().tidy()
    print(_resident_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_tidying_gives_back_what_is_free():
    found = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout
    held, left = (int(count) / 2**20 for count in found.split())
    assert held > 190 and left < 50


@pytest.mark.parametrize(
    ("held", "given_back"),
    [
        ([100] * 6, [0]),
        ([100, 100, 150, 150], [0]),
        ([100, 100, 151, 100, 150], [0, 3]),
        ([200, 301, 100, 300, 300], [0, 2]),
        ([100, 151, 200, 300, 301, 100, 300], [0, 2, 5]),
    ],
    ids=["alike", "half as much again", "more than that", "need does not shrink", "need grows"],
)
def test_only_what_steps_do_not_need_is_given_back(monkeypatch, held, given_back):
    """`held`: bytes beyond the first ones after each step; `given_back`: before which steps."""
    heap, found, extra, step = Heap(), [], 0, 0

    def give_back(_: int) -> None:
        nonlocal extra
        extra = 0
        found.append(step)

    heap.library, heap.can_tidy = SimpleNamespace(malloc_trim=give_back), True
    monkeypatch.setattr(heap_module, "_resident_bytes", lambda: 1000 + extra)
    for extra_after in held:
        heap.tidy()
        extra = extra_after
        step += 1
    assert found == given_back


def test_the_heap_is_tidied_between_steps(tiny, tmp_path, monkeypatch):
    tidied = []
    monkeypatch.setattr(Heap, "tidy", lambda heap: tidied.append(heap))
    train(replace(tiny, steps=3), tmp_path / "run", progress=False)
    assert len(tidied) >= 3 and len(set(tidied)) == 1


def test_a_time_budget_ends_the_run(tiny, tmp_path):
    report = train(replace(tiny, steps=10**9, minutes=0.03), tmp_path / "run", progress=False)
    last = [entry for entry in _history(tmp_path / "run") if "loss" in entry][-1]
    assert 0.03 <= report.minutes < 0.5
    assert last["step"] == report.steps and last["learning_rate"] < tiny.learning_rate * 0.1


def test_accumulation_and_recomputation_change_only_rounding(tiny, tmp_path):
    config = replace(tiny, steps=5, model=replace(tiny.model, dropout=0.0))
    variants = {
        "plain": {},
        "sliced": {"gradient_accumulation_steps": 4},
        "recomputed": {"gradient_checkpointing": True},
    }
    scores = {
        name: train(replace(config, **change), tmp_path / name, progress=False).validation_bits_per_byte
        for name, change in variants.items()
    }
    assert scores["recomputed"] == scores["plain"]
    assert scores["sliced"] == pytest.approx(scores["plain"], abs=1e-4)


def test_bfloat16_trains_too(tiny, finished, tmp_path):
    report = train(replace(tiny, dtype="bfloat16"), tmp_path / "run", progress=False)
    assert report.validation_bits_per_byte == pytest.approx(finished[1].validation_bits_per_byte, abs=0.3)


def _rates(monkeypatch, bfloat16):
    """A machine that multiplies bfloat16 so many times as fast as float32, by instructions of its own."""
    monkeypatch.setattr(arithmetic_module, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(arithmetic_module, "matrix_rates", lambda: {"float32": 1e11, "bfloat16": bfloat16 * 1e11})


@pytest.mark.parametrize(("faster", "dtype"), [(0.3, "float32"), (1.05, "float32"), (2.0, "bfloat16")])
def test_auto_is_what_the_machine_multiplies_faster(tiny, monkeypatch, capsys, faster, dtype):
    _rates(monkeypatch, faster)
    auto = replace(tiny, dtype="auto")
    setup = resolve(auto)
    assert (setup.asked, setup.config) == (auto, replace(tiny, dtype=dtype))
    assert setup.objective.config.dtype == dtype
    words = ["train", "--data", tiny.data, "--context", "64", "--batch-size", "2", "--dry-run"]
    assert main(words) == 0
    assert f"dtype       {dtype} (auto)\n" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == dtype
    assert main([*words, "--dtype", "float32"]) == 0
    assert "dtype       float32\n" in capsys.readouterr().out


def test_a_time_that_was_not_measured_is_called_a_guess(tiny, monkeypatch, capsys):
    words = ["train", "--data", tiny.data, "--context", "64", "--batch-size", "2", "--dry-run", "--dtype", "float32"]
    for measured, begins in ((True, "at least"), (False, "a guess, as nothing was measured here: at least")):
        rates = Rates({"float32": 1e9, "bfloat16": 1.0}, measured)
        monkeypatch.setattr("asterism.training.ask.estimate.expected_rates", lambda rates=rates: rates)
        assert main(words) == 0
        assert f"time        {begins} " in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_auto_stays_what_it_was_when_the_run_began(tiny, tmp_path, monkeypatch, optimizer):
    """Also on another machine, in training, evaluation and sampling: the bits are those of an explicit bfloat16."""
    explicit = replace(tiny, dtype="bfloat16", optimizer=optimizer, steps=20)
    whole = train(explicit, tmp_path / "whole", progress=False)
    _rates(monkeypatch, 2.0)
    auto = replace(explicit, dtype="auto")
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(auto, tmp_path / "parts")
    _rates(monkeypatch, 0.5)
    parts = train(auto, tmp_path / "parts", resume=True, progress=False)
    assert parts.notes == ["dtype: auto chose bfloat16"]
    assert parts.validation_bits_per_byte == whole.validation_bits_per_byte
    assert _history(tmp_path / "parts") == _history(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    run = open_run(tmp_path / "parts")
    assert config_to_dict(run.folder.read_config()) == config_to_dict(auto)
    assert config_to_dict(run.config) == config_to_dict(explicit)
    assert evaluate(run).scores[0].bits_per_byte == pytest.approx(whole.validation_bits_per_byte, rel=1e-9)
    assert generate(run, b"def ", 40) == generate(tmp_path / "whole", b"def ", 40)


def test_a_run_is_sampled_in_its_own_arithmetic(finished, monkeypatch):
    run = open_run(finished[0])
    seen = []
    monkeypatch.setattr(run.model, "generate", lambda tokens, **_: seen.append(_autocast()) or tokens)
    for dtype in ("float32", "bfloat16"):
        run.objective.config = replace(run.config, dtype=dtype)
        generate(run, b"def ", 1)
    assert seen == [None, torch.bfloat16]


def _autocast():
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def test_runs_of_earlier_versions_say_their_dtype_in_the_configuration(tiny, interrupted):
    """And their patterns without arguments that are at their defaults."""
    record = json.loads((interrupted / "run.json").read_text())
    del record["dtype"]
    assert record["config"]["model"]["mixers"] != tiny.model.mixers
    record["config"]["model"]["mixers"] = tiny.model.mixers
    (interrupted / "run.json").write_text(json.dumps(seal(record)))
    assert RunFolder(interrupted).read_settled() == tiny
    assert train(tiny, interrupted, resume=True, progress=False).steps == tiny.steps


def test_records_train_evaluate_and_generate(tiny, tmp_path):
    data = tmp_path / "records.raw"
    data.write_bytes(b"".join(bytes(range(start, start + 16)) for start in range(100)))
    config = replace(tiny, data=str(data), record_length=16, context=16, steps=80)
    train(config, tmp_path / "run", progress=False)
    evaluation = evaluate(tmp_path / "run")
    assert evaluation.bytes_scored == 80 and evaluation.scores[0].bits_per_byte < 6
    assert len(generate(tmp_path / "run", b"", 16)) == 16
    with pytest.raises(ConfigurationError, match="a record has no bytes before it"):
        evaluate(tmp_path / "run", minimum_context=4)


def test_a_run_is_resumed_by_the_verb_that_began_it(finished, capsys):
    assert main(["finetune", "--resume", "--folder", str(finished[0])]) == 2
    out, err = capsys.readouterr()
    assert f"resume with: asterism train --folder {finished[0]} --resume" in err and (out, err.count("\n")) == ("", 1)


def test_a_dry_run_of_a_resumed_run_tells_what_is_left(tiny, interrupted, capsys):
    """`tiny` is of no recipe."""
    assert main(["train", "--resume", "--dry-run", "--folder", str(interrupted)]) == 0
    out = capsys.readouterr().out
    assert f"resumes     {interrupted / 'checkpoints' / 'step-00000014'}, after 14 steps\n" in out
    assert f"parameters  {open_run(interrupted).model.num_parameters():,}\n" in out
    assert "run         16 more steps" in out
    assert f"step        {tiny.batch_size * tiny.context:,} bytes" in out


def test_a_finished_run_reports_what_it_came_to(finished, interrupted):
    assert report(finished[0]) == report(open_run(finished[0])) == finished[1]
    with pytest.raises(CheckpointError, match="is not finished"):
        report(interrupted)


def test_existing_folders_and_files_are_refused(tiny, finished, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (finished[0], tmp_path / "file", tmp_path):
        with pytest.raises(CheckpointError, match="exists and is not an empty folder") as caught:
            train(tiny, folder, progress=False)
        assert caught.value.exit_code == 4
    assert (tmp_path / "file").read_text() == "mine"


def test_bad_data_and_bad_models_leave_no_folder(tiny, tmp_path):
    with pytest.raises(DataError, match="there is no file or folder"):
        train(replace(tiny, data=str(tmp_path / "nothing")), tmp_path / "run")
    with pytest.raises(DataError, match="a sequence of context 100,000 needs 100,001"):
        train(replace(tiny, context=100_000), tmp_path / "run")
    with pytest.raises(ConfigurationError, match="cannot be divided evenly over 5"):
        train(replace(tiny, model=replace(tiny.model, num_attention_heads=5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_not_resumed(tiny, tmp_path):
    with pytest.raises(CheckpointError, match="nowhere is not a run folder: it has no run.json"):
        train(tiny, tmp_path / "nowhere", resume=True)
    with pytest.raises(CheckpointError, match="is not a run folder"):
        generate(tmp_path, b"a", 1)


def test_only_the_same_run_is_resumed(tiny, interrupted, tmp_path):
    with pytest.raises(ConfigurationError, match="resume: batch_size is 4, but the run began with 8"):
        train(replace(tiny, batch_size=4), interrupted, resume=True)
    moved = tmp_path / "moved.txt"
    moved.write_bytes(TEXT + b"x" * 40)
    with pytest.raises(DataError, match="is not what the run in .* began with: its hash differs"):
        train(replace(tiny, data=str(moved)), interrupted, resume=True)
    moved.write_bytes(TEXT)
    assert train(replace(tiny, data=str(moved)), interrupted, resume=True, progress=False).steps == 30


def test_a_run_is_not_gone_on_with_by_another_version_of_what_reads_its_data(tiny, interrupted, monkeypatch):
    assert RunFolder(interrupted).read_record()["readers"] == {"objective": {"causal": 1}, "modality": {"bytes": 1}}
    monkeypatch.setitem(versions.VERSIONS, "modality", {**versions.VERSIONS["modality"], "bytes": 2})
    with pytest.raises(DataError, match=r"version 1 of modality bytes, and this asterism has 2: .*asterism \d"):
        train(tiny, interrupted, resume=True, progress=False)
    run_file = RunFolder(interrupted).run_file
    record = RunFolder(interrupted).read_record()
    del record["readers"]  # as in runs that began before they were written down
    run_file.write_text(json.dumps(seal(record)))
    assert train(tiny, interrupted, resume=True, progress=False).steps == 30


def test_whatever_reads_data_has_a_version():
    known = {"modality": MODALITIES, "objective": OBJECTIVES, "task": TASKS, "reader": READERS}
    assert {setting: set(names) for setting, names in versions.VERSIONS.items()} == {
        setting: set(names) for setting, names in known.items()
    }
    fine_tuning = FineTuneConfig(task="classify", model="m", data="d", modality="audio(rate=8000)", reader="whole()")
    assert versions.versions_of(fine_tuning) == {
        "objective": {"labelled": 1},
        "task": {"classify": 1},
        "reader": {"whole": 1},
        "modality": {"audio": 1},
    }


def test_an_evaluation_draws_the_curve_so_far(tiny, tmp_path, draws_every_curve):
    with pytest.raises(KeyboardInterrupt), at_step(11):
        train(replace(tiny, evaluation_every=5), tmp_path / "run")
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_could_not_be_drawn_is_not_begun(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.presence.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs matplotlib.*pip install 'asterism-attention\[train\]'"):
        train(tiny, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change(path: Path, edit) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    _sum_anew(path.parent)


def _sum_anew(checkpoint: Path) -> None:
    """Have the record of a checkpoint say that its files are what was written."""
    record = json.loads((checkpoint / "state.json").read_text())
    sums = {name: sum for name, sum in sums_of(checkpoint).items() if name != "state.json"}
    (checkpoint / "state.json").write_text(json.dumps(seal(record | {"files": sums})))


def _of_another_version(path: Path) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps(seal(record | {"step": 3, "surplus": 1})))


BIAS = "model.layers.0.mixer.query.bias"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", _truncate, "model.safetensors is damaged"),
        ("optimizer.safetensors", _truncate, "optimizer.safetensors is damaged"),
        ("state.json", _truncate, "state.json is damaged"),
        ("state.json", lambda path: path.write_text('{"step": 3}'), "state.json is damaged, or of a version"),
        ("state.json", _of_another_version, "state.json is damaged: its fields must be"),
        ("model.safetensors", Path.unlink, "model.safetensors is missing"),
        ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
        ("state.json", Path.unlink, "state.json is missing"),
        ("model.safetensors", lambda path: _change(path, lambda t: t.pop(BIAS)), f"lacks the tensor {BIAS}"),
        (
            "model.safetensors",
            lambda path: _change(path, lambda t: t.update(extra=torch.zeros(1))),
            "has a tensor extra that the model does not know",
        ),
        (
            "optimizer.safetensors",
            lambda path: _change(path, lambda t: t.update({f"exp_avg.{BIAS}": torch.zeros(3)})),
            rf"exp_avg.{BIAS} has shape \[3\], the model needs \[32\]",
        ),
    ],
)
def test_damage_is_named(tiny, interrupted, name, damage, message):
    damage(interrupted / "checkpoints" / "step-00000014" / name)
    with pytest.raises(CheckpointError, match=message) as caught:
        train(tiny, interrupted, resume=True)
    assert caught.value.exit_code == 4 and name in str(caught.value).splitlines()[0]


def _edit(path, **changes):
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changes)))


def _sealed(record):
    return lambda path: path.write_text(json.dumps(seal(record)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "run.json is damaged"),
        (lambda path: path.write_text("[]"), "run.json is damaged: it holds list, not the fields of a record"),
        (_sealed({}), "run.json is damaged: it lacks kind, config, decided, corpus, notes, result"),
        (lambda path: _edit(path, config={"a": 1}), "there is no field 'a'"),
        (lambda path: _edit(path, config=3), "run.json is damaged"),
        (lambda path: _edit(path, dtype="float16"), "run.json is damaged: it does not say which dtype"),
        (lambda path: _edit(path, kind="trian"), "there is no kind 'trian'. Did you mean 'train'?"),
    ],
)
def test_a_damaged_record_is_named(tiny, interrupted, damage, message):
    damage(interrupted / "run.json")
    with pytest.raises(CheckpointError, match=message):
        train(tiny, interrupted, resume=True)
    with pytest.raises(CheckpointError, match=message):
        evaluate(interrupted)


def test_evaluation_is_the_mean_over_every_byte_with_its_context(finished, tiny):
    folder, _ = finished
    model = open_run(folder).model
    data = load_corpus(tiny.data).validation.tolist()
    evaluation = evaluate(folder, minimum_context=[0, 20, 64], limit=100)
    assert evaluation.bytes_scored == 100 and evaluation.is_training_corpus
    assert [score.minimum_context for score in evaluation.scores] == [0, 20, 64]
    bits = 0.0
    for byte in range(64, 164):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([data[byte - 64 : byte]])).logits[0, -1]
        bits -= float(logits.double().log_softmax(0)[data[byte]]) / math.log(2)
    assert evaluation.scores[2].bits_per_byte == pytest.approx(bits / 100, abs=1e-5)
    assert evaluation.baselines == compressed([bytes(data[64:164])])


def test_evaluation_of_a_whole_split_agrees_with_the_report(finished):
    folder, report = finished
    evaluation = evaluate(folder)
    assert evaluation.scores[0].bits_per_byte == report.validation_bits_per_byte
    assert evaluation.bytes_scored == report.validation_bytes
    assert evaluation.baselines == report.baselines
    assert evaluate(folder, split="test").scores[0].bits_per_byte == pytest.approx(
        report.validation_bits_per_byte, abs=1
    )


def test_evaluation_on_other_data_says_so(finished, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(TEXT[::-1])
    evaluation = evaluate(finished[0], data=other)
    assert not evaluation.is_training_corpus and evaluation.corpus == str(other)
    assert evaluation.scores[0].bits_per_byte > finished[1].validation_bits_per_byte


@pytest.mark.parametrize("minimum", [-1, 65, ()])
def test_minimum_context_must_fit_the_model(finished, minimum):
    with pytest.raises(ConfigurationError, match="minimum context"):
        evaluate(finished[0], minimum_context=minimum)


def test_an_interrupted_run_can_be_evaluated_and_sampled(interrupted):
    assert evaluate(interrupted, limit=100).scores[0].bits_per_byte < 8
    assert len(generate(interrupted, b"def ", 5)) == 5


def test_generation_is_a_function_of_its_seed(finished):
    folder, _ = finished
    one = generate(folder, b"def ", 30, seed=1)
    assert len(one) == 30 and generate(folder, b"def ", 30, seed=1) == one
    assert generate(folder, b"def ", 30, seed=2) != one
    greedy = generate(folder, b"def ", 30, temperature=0)
    assert generate(folder, b"def ", 30, temperature=0, seed=9) == greedy
    assert generate(folder, b"def ", 30, top_k=1) == greedy
    assert generate(folder, b"def ", 30, top_p=1e-6) == greedy
    assert len(generate(folder, b"", 4)) == 4


def test_the_finished_model_is_a_hugging_face_model(finished):
    model = AutoModelForCausalLM.from_pretrained(finished[0] / "model")
    output = model.generate(torch.tensor([list(b"def ")]), max_new_tokens=12, do_sample=False)
    assert bytes(output[0, 4:].tolist()) == generate(finished[0], b"def ", 12, temperature=0)
    assert json.loads((finished[0] / "model" / "config.json").read_text()).get("use_cache") is not False


def test_a_prompt_beyond_the_model_is_refused(finished):
    for prompt, length in ((b"x" * 80, 1), (b"x" * 40, 30)):
        with pytest.raises(ConfigurationError, match="more than the 64 positions of this model") as caught:
            generate(finished[0], prompt, length)
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"length": 0}])
def test_bad_sampling_settings_are_named(finished, settings):
    with pytest.raises(ConfigurationError, match=f"generation: {next(iter(settings))}="):
        generate(finished[0], b"a", **({"length": 1} | settings))


STATUS = Status(
    step=1200,
    fraction=0.5,
    seconds_left=75.0,
    loss=1.386,
    metric="bits/byte",
    training=2.0,
    validation=2.25,
    speed=12345.0,
    unit="bytes",
)


def test_progress_is_plain_lines_where_stderr_is_no_terminal(capsys):
    display = make_display(True)
    assert isinstance(display, LogLines) and isinstance(make_display(False), Silence)
    display.show(STATUS)
    display.show(STATUS)
    display.show(replace(STATUS, fraction=1.0))
    output = capsys.readouterr()
    line = "step 1,200  loss 1.386  bits/byte 2.000 (validation 2.250)  12,345 bytes/s  1:15 left"
    assert output.err.splitlines() == [f" 50.0%  {line}", f"100.0%  {line}"] and output.out == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    display = make_display(True)
    assert isinstance(display, Bar)
    display.show(STATUS)
    display.say("a line [with brackets]")
    display.close()
    assert "a line [with brackets]" in capsys.readouterr().err


def test_slow_runs_have_a_speed_too():
    speeds = (0.0, 0.0432, 0.4, 5.0, 9.96, 12_345.2)
    assert [rate(speed) for speed in speeds] == ["0", "0.043", "0.4", "5", "10", "12,345"]


def test_clock():
    assert [clock(seconds) for seconds in (0, 61.4, 3723)] == ["0:00", "1:01", "1:02:03"]


def test_training_prints_to_stderr_only(tiny, tmp_path, capsys):
    train(replace(tiny, steps=3), tmp_path / "run")
    output = capsys.readouterr()
    assert output.out == "" and "step 3" in output.err
