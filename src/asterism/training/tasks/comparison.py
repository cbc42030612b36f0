"""What a task's scores are compared with: scores without a model, and whether the model tells examples apart at all."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.errors import AsterismError
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.answers import Answers
from asterism.training.tasks.corpus import identity
from asterism.training.tasks.task import Task


def baselines_of(
    task: Task[Any], config: FineTuneConfig, trained_on: str, scored: Sequence[Any], there: Sequence[Any]
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The scores of baselines on labelled examples with the right answers `there`, by name, and notes for the user.

    Baselines learn from the training examples of the run, which are read again. `trained_on` is the hash of its files.
    Without these files, or for a task without baselines, there are none.
    """
    if type(task.answers).baselines is Answers.baselines:
        return {}, []
    try:
        if identity(*task.examples.files(config)) != trained_on:
            return {}, [f"no baselines: {config.data} has changed since the run was trained on it"]
        training = task.examples.divided(config)[0]
    except (AsterismError, OSError) as error:
        return {}, [f"no baselines, which learn from the training examples of the run: {error}"]
    return task.answers.baselines(training, scored, there), []


def notes_on_sameness(said: Sequence[Any], there: Sequence[Any]) -> list[str]:
    """A note if the model says the same of all examples although the right answers `there` differ."""
    if any(one != said[0] for one in said) or all(one == there[0] for one in there):
        return []
    return [
        f"the model answers the same to all {len(said):,} examples, {json.dumps(said[0])[:60]}, although the right"
        " answers differ: it has learned nothing of them yet; try more steps, or another learning rate"
    ]


def score_lines(
    metric: str, scores: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]], notes: Sequence[str] = ()
) -> list[str]:
    """Scores for people, those of baselines next to the metric, and the notes."""
    known = [f"{name} {found[metric]:.4f}" for name, found in baselines.items()]
    beside = {metric: f"   without a model: {', '.join(known)}"} if known else {}
    lines = [f"{name:<24}{value:.4f}{beside.get(name, '')}" for name, value in scores.items()]
    return [*lines, *(f"note: {note}" for note in notes)]
