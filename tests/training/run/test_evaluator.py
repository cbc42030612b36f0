"""How an evaluation goes: what its budget lets it score, and sums over the batches of several processes."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Evaluation, Metric, Report
from asterism.training.run.processes import Processes
from asterism.training.settings.budget import Budget
from asterism.training.settings.configuration import RunConfig
from asterism.training.settings.parallel import MeshShape

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        (Budget(), range(100)),
        (Budget(200), range(20)),
        (Budget(1), range(1)),
        (Budget(5000), range(100)),
        (Budget(200, spread=True), range(0, 100, 5)),
        (Budget(5000, spread=True), range(100)),
    ],
)
def test_a_budget_is_the_first_rows_or_rows_all_over_the_split(budget, wanted):
    assert range(100)[budget.part(100, 1000)] == wanted


def test_a_budget_of_nothing_there_takes_nothing():
    assert [][Budget(5).part(0, 0)] == []


class Named(torch.nn.Module):
    """Says which of its arguments it was given."""

    device = torch.device("cpu")

    def forward(self, **given):
        return SimpleNamespace(given=set(given), values=given["values"])


def measure(output, batch):
    assert output.given == {"values"} and set(batch) == {"values", "labels"} and not torch.is_grad_enabled()
    return {"total": output.values.sum().item(), "rows": len(output.values)}


def read(numbers):
    return {"values": torch.from_numpy(numbers), "labels": torch.zeros(len(numbers))}


def sums(evaluator, rows):
    config = RunConfig(batch_size=4, dtype="float32")
    return evaluator.sums(Named(), config, rows, read, measure, arguments=("values",), of_rows=("rows",))


def test_every_row_counts_once():
    told = []
    evaluator = Evaluator(watch=lambda done, total: told.append((done, total)))
    assert sums(evaluator, range(3, 13)) == {"total": sum(range(3, 13)), "rows": 10}
    assert told == [(0, 3), (1, 3), (2, 3)]


class Alike(Processes):
    """One of several processes, seen by itself: what others would add is left out."""

    context = None

    def total(self, numbers):
        return list(numbers)


@pytest.mark.parametrize("shape", [MeshShape(dp=2), MeshShape(dp=3), MeshShape(cp=2), MeshShape(dp=2, cp=2)])
def test_processes_take_turns_and_those_that_share_rows_count_them_once(shape):
    found = [sums(Evaluator(processes=Alike(shape, rank)), range(10)) for rank in range(shape.processes)]
    assert sum(one["rows"] for one in found) == 10
    assert sum(one["total"] for one in found) == shape.cp * sum(range(10))


def test_a_metric_has_its_value_and_a_name_in_reports():
    tokens = Metric("tokens", "tokens", is_count=True)
    loss = Metric("loss", "nats/token", "validation_loss")
    assert (tokens.reported, loss.reported) == ("tokens", "validation_loss")
    metrics = {"tokens": 12.0, "loss": np.float64(0.5)}
    assert repr(tokens.of(metrics)) == "12" and loss.of(metrics) == 0.5 and loss.of({}) is None


def test_figures_are_attributes_and_one_flat_object():
    scored = Evaluation(corpus="c", corpus_sha256="s", is_training_corpus=True, figures={"loss": 2.5}, text="2.5 nats")
    assert scored.loss == 2.5 and str(scored) == "2.5 nats"
    assert scored.as_json() == {"corpus": "c", "corpus_sha256": "s", "is_training_corpus": True, "loss": 2.5}
    with pytest.raises(AttributeError, match="Evaluation has no 'accuracy'"):
        _ = scored.accuracy
    assert dataclasses.replace(scored, text="") != scored


def test_a_report_comes_back_from_its_json():
    facts = {"folder": "f", "recipe": "r", "parameters": 1, "steps": 2, "minutes": 0.5, "corpus": "c"}
    report = Report(**facts, corpus_sha256="s", notes=["n"], figures={"validation_loss": 2.5}, text="2.5 nats")
    assert Report.from_json(report.as_json(), "2.5 nats") == report
    with pytest.raises(TypeError):
        Report.from_json({"folder": "f"}, "")
