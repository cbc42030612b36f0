"""The kept records: what the experiments found when they were last run, as files of the package.

`keep` writes them. Of the settings of its trials a kept record has those that differ from the defaults, so that an
experiment that has changed since is noticed.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from asterism.errors import CheckpointError
from asterism.files import make_folder, write_text, writing
from asterism.reproduce.experiment import Experiment, Trial, require_scale
from asterism.reproduce.page import page, write_plot
from asterism.reproduce.papers import PAPERS
from asterism.reproduce.record import read_record
from asterism.reproduce.registry import EXPERIMENTS, find_experiment
from asterism.reproduce.trials import Training, with_seeds
from asterism.shape import ModelConfig
from asterism.training.run.integrity import write_sealed
from asterism.training.settings.configuration import RunConfig

PLACE = Path(str(files("asterism.reproduce"))) / "records"
PICTURES = "pictures"


def kept(experiment: Experiment) -> dict[str, Any] | None:
    """The kept record of an experiment, if there is one. Raises CheckpointError for a damaged one."""
    path = PLACE / f"{experiment.name}.json"
    return read_record(path) if path.exists() else None


def keep(record: Mapping[str, Any]) -> None:
    """Keep a record in the package's source, in place of the one that is there.

    Its rows are in the order of the trials, in whatever order they were measured. Raises CheckpointError for rows that
    are not those of the experiment, or have other settings, and ConfigurationError for an unknown experiment or scale.
    """
    experiment = find_experiment(record["experiment"])
    require_scale(experiment, record["scale"])
    trials = with_seeds(experiment.trials(record["scale"]), len({row["seed"] for row in record["rows"]}))
    rows = {(row["trial"], row["seed"]): row for row in record["rows"]}
    kept_rows = []
    for trial in trials:
        row = rows.pop((trial.name, trial.seed), None)
        settings = None if row is None else telling(row["settings"], trial)
        if row is None or settings != telling(trial.settings(), trial):
            raise CheckpointError(
                "reproduce-not-kept",
                f"{experiment.name}: {trial.name!r}, seed {trial.seed}, was not measured with today's settings",
            )
        kept_rows.append({**row, "settings": settings})
    if len(kept_rows) != len(record["rows"]):
        raise CheckpointError(
            "reproduce-not-kept",
            f"{experiment.name}: it has {len(trials)} trials, and the record {len(record['rows'])}",
        )
    write_sealed(PLACE / f"{experiment.name}.json", {**record, "rows": kept_rows})


def telling(settings: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """The settings of a trial that are not the defaults of its configuration."""
    usual: dict[str, Any] = {}
    if isinstance(trial, Training):
        usual = {one.name: one.default for one in fields(trial.config) if one.default is not MISSING}
        usual |= {"model": asdict(ModelConfig())} if isinstance(trial.config, RunConfig) else {}
    return _without(settings, json.loads(json.dumps(usual)))


def _without(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        name: _without(value, usual[name]) if isinstance(value, dict) and isinstance(usual.get(name), dict) else value
        for name, value in settings.items()
    }
    return {name: value for name, value in inner.items() if name not in usual or value not in (usual[name], {})}


def write_pages(folder: Path) -> list[Path]:
    """Write a page for each paper with kept records, NAME.md, and the plots in pictures/; return the pages."""
    with writing(folder):
        make_folder(folder / PICTURES)
    found = {name: record for name, one in EXPERIMENTS.items() if (record := kept(one)) is not None}
    written = []
    for paper in PAPERS:
        some = [(EXPERIMENTS[name], record) for name, record in found.items() if EXPERIMENTS[name].paper == paper]
        if not some:
            continue
        for one, record in some:
            write_plot(one, record, folder / PICTURES / f"{one.name}.svg")
        written.append(folder / f"{paper}.md")
        write_text(written[-1], page(paper, some))
    return written
