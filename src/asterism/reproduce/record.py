"""The record of an experiment: one JSON file with a row for each trial, rewritten whenever one is measured.

A row has the trial's name and seed, its settings, its figures, and the date. A trial that has a row with the same
settings is not run again; one with other settings is refused.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asterism.bench.machine import describe
from asterism.errors import CheckpointError, NonFiniteLossError
from asterism.reproduce.experiment import Experiment, Figures, Results, Scale, Trial
from asterism.training.run.integrity import read_fields, write_sealed

RECORD = "record.json"
VERSION = 1
"""Of the form of records."""
_LARGEST = 1e100
"""No figure is as large. It leaves room for the means and axes that are made of figures."""


def open_record(folder: Path, experiment: Experiment, scale: Scale) -> dict[str, Any]:
    """The record in a folder, or a new one, not written yet, where the folder holds nothing.

    Raises CheckpointError for a record of another experiment, scale or version, or with other changes, for a damaged
    one, and for a folder of other things.
    """
    path = folder / RECORD
    if not path.exists():
        if others := sorted(one.name for one in folder.iterdir() if one.name[0] != ".") if folder.is_dir() else []:
            raise CheckpointError(
                "reproduce-folder", f"{folder} holds no experiment but {others[0]}; give another --output, or remove it"
            )
        record: dict[str, Any] = {"version": VERSION, "experiment": experiment.name, "scale": scale, "rows": []}
        return record | ({"changes": list(experiment.changes)} if experiment.changes else {})
    record = read_record(path)
    for name, mine in (("experiment", experiment.name), ("scale", scale)):
        if record[name] != mine:
            raise CheckpointError(
                "reproduce-other", f"{folder} holds {name} {record[name]!r}, not {mine!r}; give another --output"
            )
    theirs: list[str] = record.get("changes", [])
    if theirs != list(experiment.changes):
        raise CheckpointError(
            "reproduce-other-changes",
            f"{folder} holds {experiment.name} {' '.join(theirs) or 'without --set'}; give the same, or another"
            " --output",
        )
    return record


def read_record(path: Path) -> dict[str, Any]:
    """A record. Raises CheckpointError for a damaged one, and for one of another version of the form."""
    record = read_fields(path, ("version", "experiment", "scale", "rows"), "an experiment")
    if record["version"] != VERSION:
        raise CheckpointError(
            "reproduce-version",
            f"{path} has version {record['version']!r}, not {VERSION}; give another --output, or remove it to measure"
            " again",
        )
    rows, changes = record["rows"], record.get("changes", [])
    is_list = isinstance(rows, list) and isinstance(changes, list) and all(isinstance(one, str) for one in changes)
    if not is_list or not all(map(_is_row, rows)) or len({(row["trial"], row["seed"]) for row in rows}) < len(rows):
        raise CheckpointError(
            "reproduce-rows", f"{path} has rows that are not those of an experiment; remove it to measure again"
        )
    return record


def _is_row(row: Any) -> bool:
    kinds = {"trial": str, "seed": int, "figures": dict, "settings": dict, "machine": dict, "date": str}
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), kind) for name, kind in kinds.items())
        and isinstance(row["machine"].get("processor"), str)
        and isinstance(row["machine"].get("kernel"), str | None)  # there is none without a compiler
        and all(isinstance(value, int | float) and _is_finite(value) for value in row["figures"].values())
    )


def _is_finite(figure: float) -> bool:
    return abs(figure) < _LARGEST


def is_measured(record: Mapping[str, Any], trial: Trial, folder: Path) -> bool:
    """Whether the record has a trial. Raises CheckpointError where it was measured with other settings."""
    for row in record["rows"]:
        if (row["trial"], row["seed"]) == (trial.name, trial.seed):
            if differing := _difference(row["settings"], trial.settings()):
                raise CheckpointError(
                    "reproduce-changed",
                    f"{folder} holds {trial.name!r} with {differing}; give another --output, or remove it to measure"
                    " again",
                )
            return True
    return False


def add(folder: Path, record: dict[str, Any], trial: Trial, figures: Figures) -> None:
    """Add a row, and write the record. Raises NonFiniteLossError for a figure that is not finite."""
    if wrong := [name for name, value in figures.items() if not _is_finite(value)]:
        raise NonFiniteLossError("reproduce-figure", f"{trial.name}, seed {trial.seed}: {wrong[0]} is not finite")
    row = {"trial": trial.name, "seed": trial.seed, "figures": dict(figures), "date": time.strftime("%Y-%m-%d")}
    record["rows"].append(row | {"machine": describe("cpu"), "settings": trial.settings()})
    write_record(folder, record)


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record in its folder."""
    write_sealed(folder / RECORD, record)


def results_of(record: Mapping[str, Any]) -> Results:
    """The figures of a record."""
    return Results(record["rows"])


def _difference(theirs: Mapping[str, Any], mine: Mapping[str, Any], inside: str = "") -> str:
    """The first setting that differs: `learning_rate 0.001, not 0.003`; empty if none does."""
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        a, b = theirs.get(name), mine.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            if found := _difference(a, b, f"{inside}{name}."):
                return found
        elif a != b:
            return f"{inside}{name} {a!r}, not {b!r}"
    return ""
