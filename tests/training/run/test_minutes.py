"""Runs that `minutes` end: how often they are evaluated near their end, and how far they run past it."""

import json
import sys
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from tiny_run import history

from asterism.training import pipeline, train
from asterism.training.objectives.causal import CausalTokens
from asterism.training.run import session
from asterism.training.run.progress import LogLines
from asterism.training.run.session import Session

pytestmark = pytest.mark.model


@pytest.fixture
def timed(monkeypatch):
    """A clock by which each step takes a second, and an evaluation on the way as many as the test says."""
    clock = SimpleNamespace(now=0.0, evaluation=0.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    begin, evaluate = Session.begin_step, CausalTokens.evaluate

    def begun(self):
        begin(self)
        clock.now += 1

    def evaluated(self, model, corpus, evaluator):
        clock.now += clock.evaluation if evaluator.budget.spread else 0
        return evaluate(self, model, corpus, evaluator)

    monkeypatch.setattr(Session, "begin_step", begun)
    monkeypatch.setattr(CausalTokens, "evaluate", evaluated)
    return clock


def evaluations(folder):
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [(one["step"], one["seconds"]) for one in lines if "validation_bits_per_byte" in one]


def test_no_evaluation_on_the_way_comes_just_before_the_final_one(tiny, timed, tmp_path):
    timed.evaluation = 4.0
    report = train(replace(tiny, minutes=1.0, steps=1_000), tmp_path / "run", progress=False)
    # After steps 10, 20, 30 and 40, at 10, 24, 38 and 52 s; of 4 s each but the last: 52 + 2 * 4 >= 60.
    assert evaluations(tmp_path / "run") == [(10, 10.0), (20, 24.0), (30, 38.0), (48, 60.0)]
    assert report.minutes == 1.0


def test_no_step_begins_after_an_evaluation_that_outlasts_the_run(tiny, timed, tmp_path):
    timed.evaluation = 100.0
    report = train(replace(tiny, minutes=1.0, steps=1_000), tmp_path / "run", progress=False)
    assert report.steps == 10
    assert [one["step"] for one in history(tmp_path / "run") if "loss" in one] == [7, 10]


def test_the_first_evaluation_is_left_out_if_it_would_end_the_run_by_its_likely_cost(tiny, timed, tmp_path):
    costly = replace(tiny, minutes=1.0, steps=1_000, evaluation_every=50, evaluation_bytes=20 * 3 * 8 * 64)
    train(costly, tmp_path / "run", progress=False)  # 20 s for an evaluation on the way, at 50 s
    assert [step for step, _ in evaluations(tmp_path / "run")] == [60]


def test_runs_that_end_by_steps_are_evaluated_by_steps_alone(tiny, timed, tmp_path):
    timed.evaluation = 100.0
    train(replace(tiny, steps=11), tmp_path / "run", progress=False)
    assert [step for step, _ in evaluations(tmp_path / "run")] == [10, 11]


def test_the_time_of_saving_and_the_final_evaluation_is_printed(tiny, timed, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := StringIO())
    monkeypatch.setattr(pipeline, "make_display", lambda enabled: LogLines())
    train(replace(tiny, minutes=0.05), tmp_path / "run")
    told = stream.getvalue()
    assert "\ntrained for 0:03; saving the model, and evaluating on the validation split\n" in told
    assert "\nsaving and the final evaluation took 0:0" in told
