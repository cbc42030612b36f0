"""An experiment with other settings, or with some of its trials: what `--set` and `--only` ask for.

What was tried where a claim fails is repeated so: the trials that it is about, with the setting that was changed.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from typing import Any

from asterism.errors import ConfigurationError, nearest, shown
from asterism.reproduce.experiment import Experiment, Scale, Trial, require_scale
from asterism.reproduce.trials import Answering, Computation, Training
from asterism.search.settings import SearchSettings
from asterism.training.settings.configuration import config_from_dict, config_to_dict


def changed(
    experiment: Experiment, scale: Scale, settings: Mapping[str, str] | None = None, only: Sequence[str] = ()
) -> Experiment:
    """The experiment at this scale, with the trials of these names and those that they start with (none: all).

    `settings` are texts by names as records have them, such as `steps` and `model.hidden_size`; what is no JSON is a
    text. Trials without a setting keep theirs, and so do baselines. Raises ConfigurationError for a name that no trial
    has, for a value of another kind, and for one that cannot work.
    """
    require_scale(experiment, scale)
    settings = settings or {}
    trials = _chosen(experiment, experiment.trials(scale), only)
    known = {name for trial in trials for name in settable(trial)}
    for name in settings:
        if name not in known:
            raise ConfigurationError(
                "reproduce-set",
                f"set: none of these trials of {experiment.name} has a setting {shown(name)} that can be changed."
                f"{nearest(name, known)}",
            )
    made = [_with_settings(trial, settings) for trial in trials]
    flags = [f"--set {shlex.quote(f'{name}={settings[name]}')}" for name in sorted(settings)]
    return replace(experiment, trials=lambda _: made, changes=flags, only=only)


def _chosen(experiment: Experiment, trials: Sequence[Trial], only: Sequence[str]) -> Sequence[Trial]:
    """The trials of these names, and those whose models they start with."""
    if not only:
        return trials
    named = {trial.name: trial for trial in trials}
    wanted = set[str]()
    for name in only:
        if name not in named:
            near = nearest(name, named) or f" It has {', '.join(map(repr, named))}."
            raise ConfigurationError("reproduce-only", f"only: {experiment.name} has no trial {shown(name)}.{near}")
        start: str | None = name
        while start is not None and start not in wanted:
            wanted.add(start)
            trial = named[start]
            start = trial.start if isinstance(trial, Training) else None
    return [trial for trial in trials if trial.name in wanted]


def settable(trial: Trial) -> dict[str, Any]:
    """The settings that can be changed, by name: not the seed, and not what decides files that trials share."""
    match trial:
        case Training():
            given = {name: value for name, value in config_to_dict(trial.config).items() if name not in trial.files}
        case Answering():
            given = {"schedule": trial.schedule, **asdict(trial.search)}
        case Computation():
            given = dict(trial.arguments)
        case _:
            return {}
    given.pop("seed", None)
    inner = {
        f"{name}.{key}": value for name, part in given.items() if isinstance(part, dict) for key, value in part.items()
    }
    return {name: value for name, value in given.items() if not isinstance(value, dict)} | inner


def _with_settings(trial: Trial, settings: Mapping[str, str]) -> Trial:
    before = settable(trial)
    new = {name: _read(trial, name, text, before[name]) for name, text in settings.items() if name in before}
    if not new:
        return trial
    match trial:
        case Training():
            values = config_to_dict(trial.config)
            for name, value in new.items():
                outer, _, key = name.partition(".")
                values[outer] = {**values[outer], key: value} if key else value
            return replace(trial, config=config_from_dict(trial.config.kind, values))
        case Answering():
            schedule = new.pop("schedule", trial.schedule)
            return replace(trial, schedule=schedule, search=SearchSettings(**{**asdict(trial.search), **new}))
        case Computation():
            return replace(trial, arguments={**trial.arguments, **new}, is_changed=True)
    raise AssertionError(trial)


def _read(trial: Trial, name: str, text: str, before: Any) -> Any:
    """The value that a text says, of the kind of the one before."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(before, str):
        return text
    if isinstance(value, list):
        value = tuple(value)
    if not all(isfinite(one) for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, float)):
        raise ConfigurationError("reproduce-finite", f"set: {name} must be finite, got {shown(text)}")
    kinds = (int, float) if type(before) is float else type(before)
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(before, bool)
    if before is None or fits or (value is None and isinstance(trial, Training)):  # whose settings know more kinds
        return value
    raise ConfigurationError(
        "reproduce-value",
        f"set: {name} of {trial.name!r} is {before!r}, and {shown(text)} is no value for it; --only chooses trials",
    )
