"""Experiments of papers: a record that goes on after a stop and refuses what changed, findings, pages, costs."""

import errno
import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from refusals import refusing
from repository import ROOT

from asterism import attend
from asterism.cli.installed import required
from asterism.errors import CheckpointError, ConfigurationError, DataError, NonFiniteLossError
from asterism.files import writing
from asterism.reproduce import EXPERIMENTS, find_experiment, reproduce
from asterism.reproduce.costs import costs
from asterism.reproduce.data.long_documents import anywhere, write_examples, write_texts
from asterism.reproduce.experiment import (
    Experiment,
    Figures,
    Finding,
    Package,
    Results,
    Source,
    Table,
    Trial,
    decided,
    findings_of,
)
from asterism.reproduce.experiments import copy_task
from asterism.reproduce.kept import keep, kept, telling, write_pages
from asterism.reproduce.page import write_plot
from asterism.reproduce.record import RECORD, read_record
from asterism.reproduce.trials import Answering, Baseline, Computation, Training, with_seeds
from asterism.theory.approximation.limits import depends
from asterism.training.run import integrity
from asterism.training.run.integrity import seal, write_sealed

PAGES = ROOT / "docs" / "results" / "papers"

MACHINE = {"processor": "some", "kernel": "avx2"}


@dataclass
class Asked(Trial):
    """A trial that says that it was run, and fails when told to."""

    name: str
    seed: int
    log: list[str]
    broken: bool = False
    given: Mapping[str, Any] = field(default_factory=lambda: {"width": 4, "model": {"heads": 2}})

    def settings(self) -> dict[str, Any]:
        return dict(self.given)

    def run(self, folder: Path) -> Figures:
        if self.broken:
            raise KeyboardInterrupt
        self.log.append(f"{self.name}-{self.seed}")
        return {"score": float(len(self.name) + self.seed), "minutes": 1.0}


def made_up(*trials: Trial) -> Experiment:
    """An experiment of these trials."""
    names = list(dict.fromkeys(trial.name for trial in trials))
    return Experiment(
        name="made-up",
        paper="yun-2020",
        place="Table 0",
        question="Does it work?",
        setting={"laptop": "Nothing is trained."},
        trials=lambda scale: trials,
        table=lambda results: Table(
            ("trial", "score"), [(name, results.shown(name, "score", ".1f")) for name in names]
        ),
        findings=lambda results: [
            decided("all score", {name: results.mean(name, "score") for name in names}, lambda of: True, "They do.")
        ],
        draw=lambda results: Figure(),
        published=dict,
    )


# --- records ----------------------------------------------------------------------------------------------------------


def test_what_is_measured_is_not_run_again_and_a_stop_changes_nothing(tmp_path):
    log: list[str] = []
    trials = [Asked(name, seed, log) for seed in (0, 1) for name in ("one", "three")]
    whole = reproduce(made_up(*trials), "laptop", tmp_path / "whole")
    assert log == ["one-0", "three-0", "one-1", "three-1"]
    log.clear()
    with pytest.raises(KeyboardInterrupt):
        reproduce(made_up(*trials[:2], replace(trials[2], broken=True), trials[3]), "laptop", tmp_path / "stopped")
    assert log == ["one-0", "three-0"] and not (tmp_path / "stopped" / "page.md").exists()
    again = reproduce(made_up(*trials), "laptop", tmp_path / "stopped")
    assert log == ["one-0", "three-0", "one-1", "three-1"]
    assert again == whole == read_record(tmp_path / "stopped" / RECORD)
    assert (tmp_path / "stopped" / "page.md").read_text() == (tmp_path / "whole" / "page.md").read_text()
    reproduce(made_up(*trials), "laptop", tmp_path / "stopped")
    assert len(log) == 4
    assert "| one | 3.5 ± 0.5 |" in (tmp_path / "whole" / "page.md").read_text()


def test_other_settings_another_experiment_and_other_files_are_refused(tmp_path):
    folder, log = tmp_path / "made", []
    reproduce(made_up(Asked("one", 0, log)), "laptop", folder)
    changed = Asked("one", 0, log, given={"width": 4, "model": {"heads": 3}})
    with refusing(CheckpointError, "reproduce-changed", "holds 'one' with model.heads 2, not 3; give another --output"):
        reproduce(made_up(changed), "laptop", folder)
    with refusing(CheckpointError, "reproduce-other", "holds experiment 'made-up', not 'other'"):
        reproduce(replace(made_up(), name="other"), "laptop", folder)
    with refusing(ConfigurationError, "reproduce-scale", "made-up runs at scale laptop, not paper"):
        reproduce(made_up(), "paper", folder)
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    mine = {"thesis.txt", f".cache-{'0' * 32}", f"data/.notes-{'0' * 32}"}
    for name in mine:
        (other / name).touch()
    with refusing(CheckpointError, "reproduce-folder", "holds no experiment but data"):
        reproduce(made_up(), "laptop", other)
    assert log == ["one-0"]
    assert {path.relative_to(other).as_posix() for path in other.rglob("*")} == mine | {"data"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda record: record | {"version": 2}, "reproduce-version"),
        (lambda record: record | {"rows": {}}, "reproduce-rows"),
        (lambda record: record | {"rows": [{"trial": "one"}]}, "reproduce-rows"),
        (lambda record: record | {"rows": [record["rows"][0] | {"figures": {"score": None}}]}, "reproduce-rows"),
        (lambda record: record | {"rows": [record["rows"][0] | {"figures": {"score": 10**400}}]}, "reproduce-rows"),
        (lambda record: record | {"rows": [record["rows"][0] | {"machine": {"processor": 5}}]}, "reproduce-rows"),
        (lambda record: record | {"rows": record["rows"] * 2}, "reproduce-rows"),
        (lambda record: record | {"changes": 5}, "reproduce-rows"),
        (lambda record: record | {"changes": [["--set steps=2"]]}, "reproduce-rows"),
        (lambda record: {name: value for name, value in record.items() if name != "rows"}, "foreign-record"),
    ],
)
def test_a_record_of_another_form_is_one_line(tmp_path, change, code):
    trials = made_up(Asked("one", 0, []))
    record = reproduce(trials, "laptop", tmp_path / "made")
    write_sealed(tmp_path / "made" / RECORD, change(record))
    with refusing(CheckpointError, code):
        reproduce(trials, "laptop", tmp_path / "made")


def test_a_machine_without_a_compiler_goes_on_from_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.reproduce.record.describe", lambda device: {"processor": "some", "kernel": None})
    log: list[str] = []
    for _ in range(2):
        reproduce(made_up(Asked("one", 0, log)), "laptop", tmp_path / "made")
    assert log == ["one-0"] and "some (no kernel)" in (tmp_path / "made" / "page.md").read_text()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("null", "damaged-fields"),
        ("[]", "damaged-fields"),
        ("{}", "seal-missing"),
        ("{", "damaged-file"),
        (None, "file-tampered"),
    ],
)
def test_a_damaged_record_is_one_line(tmp_path, text, code):
    trials = made_up(Asked("one", 0, []))
    record = reproduce(trials, "laptop", tmp_path / "made")
    (tmp_path / "made" / RECORD).write_text(text or json.dumps(seal(record)).replace('"score": 3.0', '"score": 4.0'))
    with refusing(CheckpointError, code):
        reproduce(trials, "laptop", tmp_path / "made")


def test_a_file_of_real_data_is_taken_along(tmp_path):
    reading = replace(made_up(Asked("one", 0, [])), sources=(Source("reviews.jsonl", "film reviews by Maas 2011"),))
    folder, there = tmp_path / "made", tmp_path / "data"
    with refusing(DataError, "reproduce-data", "reads reviews.jsonl, film reviews by Maas 2011; give the folder"):
        reproduce(reading, "laptop", folder)
    there.mkdir()
    with refusing(DataError, "reproduce-data", "lacks reviews.jsonl"):
        reproduce(reading, "laptop", folder, there)
    assert not folder.exists()
    (there / "reviews.jsonl").write_text("{}")
    log: list[str] = []
    reproduce(reading, "laptop", folder, there)
    (there / "reviews.jsonl").write_text("[]")
    with refusing(DataError, "reproduce-other-data", "which made-up has read"):
        reproduce(
            two := replace(reading, trials=lambda scale: [*reading.trials(scale), Asked("two", 0, log)]),
            "laptop",
            folder,
            there,
        )
    reproduce(two, "laptop", folder)
    (there / "reviews.jsonl").unlink()
    more = replace(reading, trials=lambda scale: [*two.trials(scale), Asked("three", 0, log)])
    with refusing(DataError, "reproduce-data", "lacks reviews.jsonl"):  # though the folder has a copy
        reproduce(more, "laptop", folder, there)
    reproduce(reading, "laptop", folder)
    assert (folder / "data" / "reviews.jsonl").read_text() == "{}"


def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path):
    needing = replace(made_up(Asked("one", 0, [])), packages=(Package("abacus", "no_such_abacus", "sums"),))
    with refusing(ConfigurationError, "package-missing", "made-up needs abacus", r"pip install '.[sums]'"):
        reproduce(needing, "laptop", tmp_path / "made")
    assert not (tmp_path / "made").exists()
    for one in EXPERIMENTS.values():
        for package in one.packages:
            names = {needed.name.lower() for needed in required()[package.extra]}
            assert find_spec(package.module) and package.name.lower() in names


def test_a_stop_before_the_first_figure_loses_nothing_and_a_better_file_is_taken(tmp_path):
    """The folder is known to be of the experiment before anything is made in it."""
    log: list[str] = []
    folder, there = tmp_path / "made", tmp_path / "data"
    there.mkdir()
    (there / "reviews.jsonl").write_text("cut short")
    reading = replace(made_up(Asked("one", 0, log, broken=True)), sources=(Source("reviews.jsonl", "film reviews"),))
    with pytest.raises(KeyboardInterrupt):
        reproduce(reading, "laptop", folder, there)
    (folder / "data" / "made-of-it").mkdir()
    (there / "reviews.jsonl").write_text("whole")
    (folder / "runs").mkdir()  # a run has begun with the first
    with refusing(DataError, "reproduce-other-data", "which made-up has read"):
        reproduce(reading, "laptop", folder, there)
    (folder / "runs").rmdir()
    reproduce(replace(reading, trials=lambda scale: [Asked("one", 0, log)]), "laptop", folder, there)
    assert [path.name for path in (folder / "data").iterdir()] == ["reviews.jsonl"]
    assert (folder / "data" / "reviews.jsonl").read_text() == "whole" and log == ["one-0"]


def test_a_figure_that_is_not_finite_is_refused(tmp_path):
    trial = Computation(name="one", seed=0, compute=lambda seed: {"score": float("nan")}, arguments={})
    with refusing(NonFiniteLossError, "reproduce-figure", "one, seed 0: score is not finite"):
        reproduce(made_up(trial), "laptop", tmp_path / "made")


def test_generators_and_settings_of_plots_are_left_alone(tmp_path):
    import matplotlib

    def draw(seed: int) -> Figures:
        torch.rand(3)
        random.random()
        return {"score": 1.0}

    trials = made_up(Computation(name="one", seed=0, compute=draw, arguments={}))
    before = random.getstate(), torch.get_rng_state()
    reproduce(trials, "laptop", tmp_path / "plain")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        reproduce(trials, "laptop", tmp_path / "other")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    one, other = (tmp_path / name / "plot.svg" for name in ("plain", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_more_seeds_are_added_to_those_that_are_there(tmp_path):
    log: list[str] = []
    baseline = Baseline(name="simple", seed=0, measure=lambda data: {"score": 1.0}, given={})
    trials = made_up(baseline, Asked("one", 0, log))
    reproduce(trials, "laptop", tmp_path / "made")
    record = reproduce(trials, "laptop", tmp_path / "made", seeds=3)
    assert log == ["one-0", "one-1", "one-2"]
    assert [(row["trial"], row["seed"]) for row in record["rows"]] == [
        ("simple", 0),
        ("one", 0),
        ("one", 1),
        ("one", 2),
    ]
    assert "asterism reproduce made-up --seeds 3\n" in (tmp_path / "made" / "page.md").read_text()
    with refusing(ConfigurationError, "reproduce-seeds", "0"):
        reproduce(trials, "laptop", tmp_path / "made", seeds=0)


def test_seeds_that_the_scale_has_are_its_own(tmp_path):
    log: list[str] = []
    net = [Baseline(name="net", seed=seed, measure=lambda data: {"score": 1.0}, given={}) for seed in range(2)]
    trials = made_up(net[0], Asked("one", 0, log), net[1], Asked("other", 1, log))
    for seeds, expected in ((1, ["net-0", "one-0"]), (2, ["net-0", "one-0", "net-1", "other-1"])):
        rows = reproduce(trials, "laptop", tmp_path / "made", seeds=seeds)["rows"]
        assert [f"{row['trial']}-{row['seed']}" for row in rows] == expected
    with refusing(ConfigurationError, "reproduce-seeds", "from 1 to 2, for each has data of its own, got 3"):
        reproduce(trials, "laptop", tmp_path / "made", seeds=3)
    with refusing(ConfigurationError, "reproduce-seeds", "from 1 to 100, got 1000000000"):
        reproduce(made_up(Asked("one", 0, log), Asked("one", 1, log)), "laptop", tmp_path / "made", seeds=10**9)


def test_a_full_disk_loses_no_result(tmp_path, monkeypatch):
    log: list[str] = []
    trials = [Asked("one", 0, log), Asked("three", 0, log)]
    whole = reproduce(made_up(*trials), "laptop", tmp_path / "whole")
    write, count = integrity.write_json, iter(range(100))

    def full(path: Path, document: object) -> None:
        if next(count) == 2:  # the empty record, and one row, are written
            with writing(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, document)

    with monkeypatch.context() as patch:
        patch.setattr(integrity, "write_json", full)
        with refusing(CheckpointError, "unwritable", "make room and go on"):
            reproduce(made_up(*trials), "laptop", tmp_path / "full")
    assert [row["trial"] for row in read_record(tmp_path / "full" / RECORD)["rows"]] == ["one"]
    assert reproduce(made_up(*trials), "laptop", tmp_path / "full") == whole


# --- trials -----------------------------------------------------------------------------------------------------------


def small_copy(steps: int) -> Training:
    """A run of the copy task that takes seconds."""
    trial = copy_task.trials("laptop")[0]
    shape = replace(trial.config.model, hidden_size=16, intermediate_size=16)
    return replace(
        trial,
        config=replace(
            trial.config,
            model=shape,
            steps=steps,
            batch_size=2,
            evaluation_every=100,
            checkpoint_every=2,
            report_bytes=copy_task.LENGTH,
        ),
        reported=("validation_bits_per_byte",),
    )


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(copy_task, "ROWS", 64)
    monkeypatch.setattr(copy_task, "TESTED", 4)


@pytest.mark.model
@pytest.mark.usefixtures("few_rows")
def test_a_run_that_was_stopped_ends_with_the_same_figures(tmp_path, monkeypatch):
    from asterism.training.run import loop

    whole = small_copy(6).run(tmp_path / "whole")
    step, count = loop.torch.nn.utils.clip_grad_norm_, iter(range(100))

    def stop(*arguments: Any, **options: Any) -> Any:
        if next(count) == 4:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", stop)
        with pytest.raises(KeyboardInterrupt):
            small_copy(6).run(tmp_path / "stopped")
    again = small_copy(6).run(tmp_path / "stopped")
    assert {name: whole[name] for name in whole if name != "minutes"} == {
        name: again[name] for name in again if name != "minutes"
    }
    assert whole["parameters"] > 0 and whole["validation_bits_per_byte"] > 0


@pytest.mark.model
def test_a_task_of_search_is_learnt_with_the_schedule(tmp_path):
    trial = EXPERIMENTS["recall"].trials("laptop")[0]
    assert isinstance(trial, Answering)
    small = replace(trial, search=replace(trial.search, steps=2, width=16, heads=2, batch=2, held_out=4))
    assert small.run(tmp_path) == {**small.run(tmp_path)}  # from its checkpoint
    assert small.settings()["schedule"] == trial.schedule
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["window-1-layer-0"]


@pytest.mark.model
def test_a_run_starts_with_the_model_of_another_and_makes_its_own_files(tmp_path):
    from asterism.reproduce.experiments import long_documents

    first, second = long_documents.trials("laptop")[:2]
    shape = replace(
        first.config.model, mixers="window(1, 1)", hidden_size=16, num_hidden_layers=1, num_attention_heads=1
    )
    few = {"steps": 1, "batch_size": 1, "evaluation_every": 1, "checkpoint_every": 1}
    texts = partial(write_texts, seed=0, count=300)
    replace(first, config=replace(first.config, model=shape, **few), files={"data": texts}).run(tmp_path)
    examples = partial(write_examples, purpose="classify.train", seed=0, count=20, shapes=[anywhere(300)])
    figures = replace(
        second,
        config=replace(second.config, evaluation_examples=2, **few),
        files={"data": examples},
        reported=("accuracy",),
        score=None,
    ).run(tmp_path)
    assert 0 <= figures["accuracy"] <= 1 and figures["parameters"] > 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["classify-4-096-tokens-0", "pretrained-0"]
    record = json.loads((tmp_path / "runs" / "classify-4-096-tokens-0" / "run.json").read_text())
    assert record["config"]["model"] == str(tmp_path / "runs" / "pretrained-0")


def test_a_computation_has_its_arguments_for_settings(tmp_path):
    trial = Computation(name="x", seed=3, compute=lambda a, seed: {"sum": a + seed}, arguments={"a": 4})
    assert trial.settings() == {"a": 4, "seed": 3} and trial.run(tmp_path) == {"sum": 7}


# --- the copy task ----------------------------------------------------------------------------------------------------


def test_rows_of_the_copy_task_are_a_text_twice():
    rows = copy_task.rows(50, seed=1)
    assert rows.shape == (50, 256) and rows.dtype == np.uint8
    assert (rows[:, :128] == rows[:, 128:]).all() and (rows[:, [0, 128]] == 0).all()
    assert set(np.unique(rows[:, 1:128])) == set(range(1, 128))
    assert not (copy_task.rows(50, seed=0) == rows).all(axis=1).any()


@pytest.mark.parametrize(("shift", "least", "most"), [(127, 1, 1), (126, 0, 0.05)])
def test_only_who_reads_127_places_back_copies(monkeypatch, shift, least, most):
    """A model that says again what stood `shift` places before it."""

    def model(ids: torch.Tensor) -> Any:
        back = torch.roll(ids, shift, dims=1)
        return SimpleNamespace(logits=torch.nn.functional.one_hot(back, 256).float())

    monkeypatch.setattr("asterism.training.open_run", lambda folder: SimpleNamespace(model=model))
    assert least <= copy_task._score(Path("nowhere"))["accuracy"] <= most


@pytest.mark.parametrize("pattern", list(copy_task.PATTERNS))
def test_what_two_layers_of_the_copy_task_can_reach(pattern):
    """Strided and fixed reach 127 places back in two layers, in one layer only where a last token of a block stands."""
    schedule = copy_task.PATTERNS[pattern]
    queries = np.arange(128, 255)
    one, two = (depends(schedule, 256, layers, queries, queries - 127) for layers in (1, 2))
    if "strided" in pattern or "fixed" in pattern:
        assert two.all()
        assert one.mean() == pytest.approx({"fixed, union": 8, "fixed, multihead": 8}.get(pattern, 0) / 127)
    elif pattern == "star":
        assert not one.any() and not two[20:].any()
    else:  # four heads with a tenth to a fifth of the keys each
        assert 0.3 < one.mean() < 0.8


# --- findings and pages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_nothing_measured_decides_nothing(one: Experiment, tmp_path):
    nothing = Results(())
    assert [finding.holds for finding in one.findings(nothing)] == [None] * len(one.findings(nothing))
    assert len(one.table(nothing).rows) > 1
    write_plot(one, {"rows": []}, tmp_path / "plot.svg")


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_trials_have_names_of_their_own_and_settings_that_json_holds(one: Experiment):
    for scale in one.setting:
        trials = one.trials(scale)
        assert len({(trial.name, trial.seed) for trial in trials}) == len(trials)
        for trial in trials:
            assert json.loads(json.dumps(trial.settings())) == trial.settings()


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_kept_records_are_whole_and_of_today_s_experiments(one: Experiment):
    record = kept(one)
    if record is None:
        return
    trials = with_seeds(one.trials(record["scale"]), len({row["seed"] for row in record["rows"]}))
    names = [(trial.name, trial.seed) for trial in trials]
    assert [(row["trial"], row["seed"]) for row in record["rows"]] == names
    for row, trial in zip(record["rows"], trials, strict=True):
        assert row["settings"] == telling(trial.settings(), trial), f"{trial.name} has changed: measure it again"
    assert None not in [finding.holds for finding in one.findings(Results(record["rows"]))]


def test_laptops_compute_in_float32_which_every_processor_has_instructions_for():
    runs = [trial for one in EXPERIMENTS.values() for trial in one.trials("laptop") if isinstance(trial, Training)]
    assert len(runs) > 100 and {run.config.dtype for run in runs} == {"float32"}


def test_records_are_kept_in_the_order_of_trials_and_seeds_however_they_were_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.reproduce.kept.PLACE", tmp_path)
    trials = with_seeds(EXPERIMENTS["recall"].trials("laptop"), 3)
    names = [(trial.name, trial.seed) for trial in trials]
    settings = {name: trial.settings() for name, trial in zip(names, trials, strict=True)}
    rows = [
        {"trial": name, "seed": seed, "figures": {}, "machine": MACHINE, "date": "", "settings": settings[name, seed]}
        for name, seed in reversed(names)
    ]
    record = {"version": 1, "experiment": "recall", "scale": "laptop", "rows": rows}
    keep(record)
    found = read_record(tmp_path / "recall.json")
    assert [(row["trial"], row["seed"]) for row in found["rows"]] == names
    keep(found)
    assert read_record(tmp_path / "recall.json") == found
    for wrong in ({"trial": "other"}, {"settings": {**rows[3]["settings"], "steps": 3}}):
        with refusing(CheckpointError, "reproduce-not-kept", "was not measured with today's settings"):
            keep({**record, "rows": [*rows[:3], {**rows[3], **wrong}, *rows[4:]]})
    for wrong in (rows[1:], [*rows, rows[0]]):
        with refusing(CheckpointError, "reproduce-not-kept"):
            keep({**record, "rows": wrong})
    with refusing(ConfigurationError, "unknown-experiment"):
        keep({**record, "experiment": "nope"})
    with refusing(ConfigurationError, "reproduce-scale"):
        keep({**record, "scale": "nope"})
    assert read_record(tmp_path / "recall.json") == found


def test_kept_settings_are_those_that_are_not_the_default():
    trial = copy_task.trials("laptop")[0]
    told = telling(trial.settings(), trial)
    assert told["steps"] == 1_000 and told["model"]["hidden_size"] == 64
    assert "optimizer_state" not in told and "norm" not in told["model"] and len(told) < len(trial.settings()) / 2
    more = replace(trial, config=replace(trial.config, model=replace(trial.config.model, norm="rms")))
    assert telling(more.settings(), more)["model"] == {**told["model"], "norm": "rms"}


def test_pages_are_what_the_records_say(tmp_path):
    written = write_pages(tmp_path)
    assert sorted(path.name for path in written) == sorted(path.name for path in PAGES.glob("*.md"))
    for path in written:
        assert path.read_text() == (PAGES / path.name).read_text(), f"write {path.name} again: benchmarks/papers.py"
    write_pages(tmp_path / "again")
    pictures = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert all(
        (tmp_path / "pictures" / name).read_bytes() == (tmp_path / "again" / "pictures" / name).read_bytes()
        for name in pictures
    )
    assert pictures == sorted(path.name for path in (PAGES / "pictures").iterdir())


def test_a_claim_says_in_how_many_seeds_it_is_decided_so():
    rows = [{"trial": "simple", "seed": 0, "figures": {"score": 2.0}}]
    rows += [{"trial": "net", "seed": seed, "figures": {"score": score}} for seed, score in enumerate((3.0, 1.0, 4.0))]

    def findings(results: Results) -> list[Finding]:
        means = {name: results.mean(name, "score") for name in ("net", "simple")}
        spread = len(results.values("net", "score")) > 1 or None
        return [
            decided("better", means, lambda of: of["net"] > of["simple"], "{net:.2f}"),
            decided("by more than seeds differ", {**means, "spread": spread}, lambda of: False, ""),
        ]

    simple = Baseline(name="simple", seed=0, measure=lambda data: {"score": 2.0}, given={})
    made = replace(made_up(simple, Asked("net", 0, [])), findings=findings)
    better, spread = findings_of(made, Results(rows))
    assert better == Finding("better", True, "2.67", [True, False, True])
    assert better.verdict() == "holds, in 2 of 3 seeds" and str(better) == "better: holds, in 2 of 3 seeds. 2.67"
    assert spread.by_seed == [None] * 3 and spread.verdict() == "fails"
    assert findings_of(made, Results(rows[:2]))[0] == Finding("better", True, "3.00")
    assert findings_of(made, Results(rows[1:]))[0].verdict() == "undecided"
    assert findings_of(made, Results([])) == findings(Results([]))
    other = [{"trial": "other", "seed": seed, "figures": {}} for seed in (0, 2, 7)]  # of seeds 1 and 7 some are missing
    assert findings_of(made, Results([*rows, *other]))[0].verdict() == "holds, in 2 of 2 seeds"
    once = {"trial": "other", "seed": 0, "figures": {}}  # but no baseline
    assert findings_of(made, Results([*rows, once]))[0].verdict() == "holds"


def test_minutes_are_those_of_the_fastest_seed():
    slow = [{"trial": "net", "seed": seed, "figures": {"minutes": minutes}} for seed, minutes in enumerate((9.0, 4.0))]
    results = Results([*slow, {"trial": "other", "seed": 0, "figures": {}}])
    assert (results.fastest("net"), results.shown_minutes("net")) == (4.0, "4.0")
    assert (results.fastest("other"), results.shown_minutes("other")) == (None, "-")


def test_a_claim_is_decided_by_all_its_values():
    values = {"a, 1": 0.25, "b": 0.5}
    assert decided("x", values, lambda of: of["b"] > of["a, 1"], "a {a, 1:.0%}, b {b:.1f}") == Finding(
        "x", True, "a 25%, b 0.5"
    )
    lacks = dict.fromkeys("cdefg")
    assert decided("x", {**values, **lacks}, lambda of: True, "").seen == "Missing: c; d; e, and 2 more."
    assert decided("x", {**values, "c": None}, lambda of: True, "{b}") == Finding("x", None, "Missing: c.")


def test_reach_finds_what_the_paper_says_wrongly():
    record = kept(EXPERIMENTS["reach"])
    assert record is not None
    held = {finding.claim: finding.holds for finding in EXPERIMENTS["reach"].findings(Results(record["rows"]))}
    assert held["two layers of star connect all"] and not held["two layers of strided connect all"]


def test_pairs_that_depend_are_those_of_boolean_products():
    random = np.random.default_rng(0)
    n, pattern = 40, "window(left=2) | random_blocks(block=4, count=1, seed=3, heads=2) & causal()"
    q = torch.zeros(1, 2, n, 4, dtype=torch.float64)
    seen = [
        attend(q, q, torch.eye(n, dtype=q.dtype)[None, None].repeat(1, 2, 1, 1), pattern, implementation="reference")
    ]
    reads = (seen[0][0] > 0).any(dim=0).numpy()
    step, queries, keys = reads | np.eye(n, dtype=bool), *random.integers(0, n, (2, 300))
    whole = step
    for layers in (1, 2, 3):
        assert (depends(pattern, n, layers, queries, keys) == whole[queries, keys]).all()
        whole = (whole.astype(int) @ step.astype(int)) > 0


# --- costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_published_sizes_have_the_parameters_of_the_paper(one: Experiment):
    for cost in costs(one, "paper") if one.published() else ():
        assert cost.flops > 0 and cost.memory > 0 and cost.seconds > 0
        if cost.published is not None:
            assert cost.parameters == pytest.approx(cost.published, rel=0.03)


def test_what_has_no_published_size_says_so():
    with refusing(ConfigurationError, "reproduce-scale", "reach runs at scale laptop, not paper"):
        costs(EXPERIMENTS["reach"], "paper")
    with refusing(ConfigurationError, "reproduce-no-cost"):
        costs(EXPERIMENTS["reach"], "laptop")


def test_names_that_are_not_there_have_a_near_one():
    with refusing(
        ConfigurationError, "unknown-experiment", "there is no experiment 'copy-tsk'. Did you mean 'copy-task'?"
    ):
        find_experiment("copy-tsk")
