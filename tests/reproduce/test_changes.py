"""Experiments with other settings, and with some of their trials."""

import json

import pytest
from refusals import refusing

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.reproduce import EXPERIMENTS, changed, reproduce
from asterism.reproduce.record import is_measured, read_record
from asterism.reproduce.trials import Answering, Baseline, Computation, Training

RECALL, LANGUAGE, REACH = (EXPERIMENTS[name] for name in ("recall", "language", "reach"))


def names_of(experiment, scale="laptop"):
    return [trial.name for trial in experiment.trials(scale)]


def test_a_setting_goes_to_every_trial_that_has_it_and_nothing_else_changes():
    usual = LANGUAGE.trials("laptop")
    made = changed(LANGUAGE, "laptop", {"steps": "7", "model.hidden_size": "32"}).trials("laptop")
    assert len(made) == len(usual) > 10
    for one, other in zip(usual, made, strict=True):
        before, after = one.settings(), other.settings()
        assert (after.pop("steps"), after["model"].pop("hidden_size")) == (7, 32)
        assert (before.pop("steps"), before["model"].pop("hidden_size")) == (900, 64)
        assert before == after and (one.name, one.seed) == (other.name, other.seed)
    assert names_of(LANGUAGE) == [trial.name for trial in usual]


def test_every_kind_of_trial_takes_settings_and_baselines_keep_theirs():
    arena = changed(EXPERIMENTS["lra-text"], "laptop", {"steps": "7"}).trials("laptop")
    assert (
        isinstance(arena[0], Baseline) and arena[0].settings() == EXPERIMENTS["lra-text"].trials("laptop")[0].settings()
    )
    assert all(isinstance(trial, Training) and trial.config.steps == 7 for trial in arena[1:])
    recall = changed(RECALL, "laptop", {"steps": "7", "learning_rate": "1", "schedule": "causal()"}).trials("laptop")
    assert all(isinstance(trial, Answering) for trial in recall)
    assert {(t.search.steps, t.search.learning_rate, t.schedule) for t in recall} == {(7, 1, "causal()")}
    reach = changed(REACH, "laptop", {"length": "64"}).trials("laptop")
    assert all(isinstance(trial, Computation) and trial.arguments["length"] == 64 for trial in reach)


def test_a_chosen_trial_brings_the_one_that_it_starts_with():
    summaries = EXPERIMENTS["summaries"]
    trained = next(trial for trial in summaries.trials("laptop") if getattr(trial, "start", None) == "pretrained")
    found = names_of(changed(summaries, "laptop", only=[trained.name]))
    assert found == [name for name in names_of(summaries) if name in ("scraps", "pretrained", trained.name)]


@pytest.mark.parametrize(
    ("settings", "only", "code", "words"),
    [
        ({"stps": "3"}, (), "reproduce-set", "Did you mean 'steps'?"),
        ({"seed": "3"}, (), "reproduce-set", "none of these trials of recall has a setting 'seed'"),
        ({"steps": "many"}, (), "reproduce-value", "steps of 'window, 1 layer' is 1000, and 'many' is no value for it"),
        ({"steps": "true"}, (), "reproduce-value", "'true' is no value for it"),
        ({"steps": "1.5"}, (), "reproduce-value", "'1.5' is no value for it"),
        ({"steps": "0"}, (), "search-setting", "steps: must be at least 1"),
        ({"learning_rate": "1e400"}, (), "reproduce-finite", "learning_rate must be finite, got '1e400'"),
        ({"budgets": "[1e400]"}, (), "reproduce-finite", "budgets must be finite"),
        ({}, ("dense 1 layer",), "reproduce-only", "Did you mean 'dense, 1 layer'?"),
        ({}, ("xyz",), "reproduce-only", "It has 'window, 1 layer', 'strided, 1 layer'"),
    ],
)
def test_what_cannot_be_changed_is_refused(settings, only, code, words):
    with refusing(ConfigurationError, code, words):
        changed(RECALL, "laptop", settings, only)


def test_files_that_trials_share_are_not_changed():
    with refusing(ConfigurationError, "reproduce-set", "'data'"):
        changed(EXPERIMENTS["lra-text"], "laptop", {"data": "mine.jsonl"})
    with refusing(ConfigurationError, "reproduce-scale", "recall runs at scale laptop and workstation, not paper"):
        changed(RECALL, "paper", {"steps": "3"})


def test_the_page_of_a_changed_experiment_says_so_and_its_folder_is_not_that_of_the_usual_one(tmp_path):
    made = changed(REACH, "laptop", {"length": "32"}, ["star", "bare star"])
    record = reproduce(made, "laptop", tmp_path / "made")
    assert [row["trial"] for row in record["rows"]] == ["star", "bare star"]
    assert json.loads(json.dumps(record)) == read_record(tmp_path / "made" / "record.json")
    page = (tmp_path / "made" / "page.md").read_text()
    flags = "--only star --only 'bare star' --set length=32"
    more = changed(REACH, "laptop", {"length": "32"}, ["fixed"])
    assert f"**Changed**: `{flags}`." in page and f"asterism reproduce reach {flags} --output DIR\n" in page
    with refusing(CheckpointError, "reproduce-changed", "length 32, not 256"):
        is_measured(record, REACH.trials("laptop")[0], tmp_path)
    reproduce(more, "laptop", tmp_path / "made")
    page = (tmp_path / "made" / "page.md").read_text()
    assert "`--only star --only 'bare star' --only fixed --set length=32`" in page
    for other in (
        REACH,
        changed(REACH, "laptop", only=["window"]),
        changed(REACH, "laptop", {"length": "64"}, ["window"]),
    ):
        with refusing(CheckpointError, "reproduce-other-changes", "holds reach --set length=32; give the same"):
            reproduce(other, "laptop", tmp_path / "made")
    with refusing(CheckpointError, "reproduce-other-changes", "holds reach without --set"):
        reproduce(changed(REACH, "laptop", only=["window"]), "laptop", tmp_path / "usual")
        reproduce(more, "laptop", tmp_path / "usual")


@pytest.mark.parametrize(
    ("name", "settings", "only", "words"),
    [
        ("reach", {"length": "null"}, ["star"], "length of 'star' is 256, and 'null' is no value for it"),
        ("fnet", {"model.mixers": "linear()"}, [], "model.mixers of 'hybrid' is"),
        ("price", {"function": "nope"}, ["far, epsilon 0.2"], "KeyError: 'nope'"),
        ("furthest", {"steps": "0"}, ["alone, 1 layer, 8 tokens"], "Error"),
        ("fnet-length", {"length": "0"}, ["FNet, 512 tokens"], "fourier() with 0 tokens"),
    ],
)
def test_values_that_cannot_work_are_one_line(name, settings, only, words, tmp_path):
    with pytest.raises(AsterismError) as caught:
        reproduce(changed(EXPERIMENTS[name], "laptop", settings, only), "laptop", tmp_path / "made")
    assert words in str(caught.value) and "\n" not in str(caught.value)
