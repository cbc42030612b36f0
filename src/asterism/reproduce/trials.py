"""The kinds of trials: a run of `asterism train`, a model that learns a task of `asterism search`, a computation."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asterism.files import make_folder, replacing_file
from asterism.reproduce.experiment import Figures, Trial
from asterism.search.settings import SearchSettings
from asterism.training.settings.configuration import RunConfig, config_to_dict

RUNS, MODELS, DATA = "runs", "models", "data"
"""Folders below that of an experiment."""


@dataclass(frozen=True, kw_only=True)
class Training(Trial):
    """A run, in runs/NAME-SEED.

    config    of the run; where `write` makes its data, `config.data` is the name of their file in data/
    reported  figures of the report of the run that are kept, by the names that it has for them
    write     makes the data
    score     more figures, of the folder of the finished run
    """

    name: str
    seed: int
    config: RunConfig
    reported: Sequence[str] = ()
    write: Callable[[Path], None] | None = None
    score: Callable[[Path], Figures] | None = None

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(json.dumps(config_to_dict(replace(self.config, seed=self.seed))))
        return settings

    def run(self, folder: Path) -> Figures:
        from asterism.training import train

        config = replace(self.config, seed=self.seed)
        if self.write is not None:
            config = replace(config, data=str(self._data(folder)))
        place = folder / RUNS / _file_name(self)
        report = train(config, place, resume=(place / "run.json").exists())
        found = {"minutes": report.minutes, "parameters": report.parameters}
        found |= {name: report.figures[name] for name in self.reported}
        return found | dict(self.score(place) if self.score is not None else {})

    def _data(self, folder: Path) -> Path:
        assert self.write is not None and self.config.data is not None
        path = folder / DATA / self.config.data
        if not path.exists():
            make_folder(path.parent)
            with replacing_file(path) as unfinished:
                self.write(unfinished)
        return path


@dataclass(frozen=True, kw_only=True)
class Computation(Trial):
    """Figures that a function computes from its arguments, without files."""

    name: str
    seed: int
    compute: Callable[..., Figures]
    arguments: Mapping[str, Any]

    def settings(self) -> dict[str, Any]:
        return {**self.arguments, "seed": self.seed}

    def run(self, folder: Path) -> Figures:
        return self.compute(**self.arguments, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class Answering(Trial):
    """A small model that learns a task of `asterism search` with one schedule, in models/NAME-SEED."""

    name: str
    seed: int
    schedule: str
    search: SearchSettings

    def settings(self) -> dict[str, Any]:
        return {"schedule": self.schedule, **self.search.as_json()}

    def run(self, folder: Path) -> Figures:
        from asterism.search.tasks import make_task
        from asterism.search.trainee import Trainee

        task = make_task(self.search.task, self.search.length, self.search.seed)
        trainee = Trainee(self.schedule, self.search, task, self.seed, folder / MODELS / _file_name(self))
        trainee.advance(self.search.steps)
        loss, accuracy = trainee.score()
        return {"loss": loss, "accuracy": accuracy, "minutes": trainee.state.seconds / 60}


def _file_name(trial: Trial) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '-', trial.name.lower())}-{trial.seed}"
