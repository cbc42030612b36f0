"""The kinds of trials: a run of `asterism train`, a small model of `asterism search`, a computation, a baseline."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from asterism.errors import AsterismError, ConfigurationError
from asterism.files import flush, make_folder, replacing_file
from asterism.reproduce.experiment import Figures, Trial
from asterism.search.settings import SearchSettings
from asterism.training.recipes import recipe
from asterism.training.settings.configuration import AnyConfig, RunConfig, config_to_dict

RUNS, MODELS, DATA = "runs", "models", "data"
"""Folders below that of an experiment."""
MOST_SEEDS = 100


@dataclass(frozen=True, kw_only=True)
class Training(Trial):
    """A run, in runs/NAME-SEED.

    config    of the run
    reported  figures of the report of the run that are kept, by the names that it has for them
    files     by setting, what makes the file or folder that it names: `config` has its name in data/, which says what
              decides its contents. Files that the user gave lie there too (`Experiment.sources`): None makes nothing
    decisive  what decides those files beyond their names, and is one of the settings
    start     the name of the trial, of the same seed, whose model this run starts with
    score     more figures, of the folder of the finished run
    """

    name: str
    seed: int
    config: AnyConfig
    reported: Sequence[str] = ()
    files: Mapping[str, Callable[[Path], None] | None] = field(default_factory=dict)
    decisive: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    score: Callable[[Path], Figures] | None = None

    def settings(self) -> dict[str, Any]:
        config = config_to_dict(replace(self.config, seed=self.seed))
        settings: dict[str, Any] = json.loads(json.dumps({**config, **self.decisive}))
        return settings

    def prepare(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        """Make the files that the run reads, and other runs may read too; `say` is told of each."""
        for setting, make in self.files.items():
            if make is not None and not (path := self._place(folder, setting)).exists():
                say(f"making {path}")
                made(path, make)

    def _place(self, folder: Path, setting: str) -> Path:
        return folder / DATA / str(getattr(self.config, setting))

    def run(self, folder: Path) -> Figures:
        from asterism.training import train

        self.prepare(folder)
        places: dict[str, Any] = {setting: str(self._place(folder, setting)) for setting in self.files}
        if self.start is not None:
            places["init_from" if isinstance(self.config, RunConfig) else "model"] = str(
                folder / RUNS / file_name(self.start, self.seed)
            )
        place = folder / RUNS / file_name(self.name, self.seed)
        report = train(replace(self.config, seed=self.seed, **places), place, resume=(place / "run.json").exists())
        known = {**report.figures, **report.figures.get("scores", {})}
        found = {"minutes": report.minutes, "parameters": report.parameters}
        found |= {name: known[name] for name in self.reported}
        return found | dict(self.score(place) if self.score is not None else {})


def counted_run(short: str, shape: Mapping[str, Any], steps: int, **settings: Any) -> RunConfig:
    """The recipe of this name with parts of its model and settings replaced, for so many steps and in float32.

    So it is the same run on every machine: recipes count minutes, and choose a type for the processor.
    """
    base = recipe(short)
    usual = {"minutes": None, "dtype": "float32", "checkpoint_every": 200, "evaluation_every": 1_000}
    return replace(base, model=replace(base.model, **shape), steps=steps, **{**usual, **settings})


def made(path: Path, make: Callable[[Path], None]) -> Path:
    """A file or folder, made if it is not there; who is killed meanwhile leaves nothing under its name."""
    if not path.exists():
        make_folder(path.parent)
        with replacing_file(path) as unfinished:
            make(unfinished)
            for file in unfinished.rglob("*"):
                flush(file)
    return path


@dataclass(frozen=True, kw_only=True)
class Computation(Trial):
    """Figures that a function computes from its arguments, without files.

    is_changed  whether some arguments are the user's, so that an error is an answer and no defect
    """

    name: str
    seed: int
    compute: Callable[..., Figures]
    arguments: Mapping[str, Any]
    is_changed: bool = False

    def settings(self) -> dict[str, Any]:
        return {**self.arguments, "seed": self.seed}

    def run(self, folder: Path) -> Figures:
        try:
            return self.compute(**self.arguments, seed=self.seed)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, AsterismError) or not self.is_changed:
                raise
            given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
            raise AsterismError(
                "reproduce-computation", f"{self.name}, with {given}: {type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Baseline(Trial):
    """Figures of a model without attention: `measure` makes them of the folder data/, and `given` decides them."""

    name: str
    seed: int
    measure: Callable[[Path], Figures]
    given: Mapping[str, Any]
    has_seeds: ClassVar[bool] = False

    def settings(self) -> dict[str, Any]:
        return {**self.given, "seed": self.seed}

    def run(self, folder: Path) -> Figures:
        return self.measure(folder / DATA)


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
        trainee = Trainee(
            self.schedule, self.search, task, self.seed, folder / MODELS / file_name(self.name, self.seed)
        )
        trainee.advance(self.search.steps)
        loss, accuracy = trainee.score()
        return {"loss": loss, "accuracy": accuracy, "minutes": trainee.state.seconds / 60}


def with_seeds(trials: Sequence[Trial], seeds: int | None) -> Sequence[Trial]:
    """The trials with so many seeds each: those of the scale, then more of its first, without the baselines.

    Baselines of several seeds have data of their own for each, so there are no more seeds than these. Raises
    ConfigurationError for fewer than one seed, or too many.
    """
    if seeds is None:
        return trials
    own = {trial.seed: [one for one in trials if one.seed == trial.seed] for trial in trials}
    first = own[trials[0].seed]
    has_own_data = len({trial.seed for trial in trials if not trial.has_seeds}) > 1
    most = len(own) if has_own_data else MOST_SEEDS
    if not 1 <= seeds <= most:
        why = ", for each has data of its own" if has_own_data else ""
        raise ConfigurationError("reproduce-seeds", f"seeds: must be from 1 to {most}{why}, got {seeds}")
    return [
        trial
        for more in range(first[0].seed, first[0].seed + seeds)
        for trial in own.get(more, [_with_seed(one, more) for one in first if one.has_seeds])
    ]


def _with_seed(trial: Trial, seed: int) -> Trial:
    return replace(trial, seed=seed)  # type: ignore[type-var]  # every kind of trial is a dataclass


def file_name(trial: str, seed: int) -> str:
    """Of what belongs to a trial alone."""
    return f"{re.sub(r'[^a-z0-9]+', '-', trial.lower())}-{seed}"
