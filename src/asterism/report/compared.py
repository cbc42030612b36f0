"""Several runs as one document: each of them, and the settings in which they differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asterism.report.described import MOST_PREDICTIONS, Description, by_name, describe

MOST_RUNS = 32
"""How many runs a page compares."""


def describe_runs(paths: Sequence[str | Path], most_predictions: int = MOST_PREDICTIONS) -> dict[str, Description]:
    """The runs in folders, by names that differ. Raises CheckpointError for a folder that holds no run."""
    return by_name(describe(path, most_predictions) for path in paths)


def differences(runs: dict[str, Description]) -> dict[str, dict[str, Any]]:
    """For each setting, version or hash that all runs have, and that is not the same in all, what it is in each."""
    each = {name: _facts(run) for name, run in runs.items()}
    shared = [fact for fact in next(iter(each.values()), {}) if all(fact in facts for facts in each.values())]
    rows = {fact: {name: facts[fact] for name, facts in each.items()} for fact in shared}
    return {fact: row for fact, row in rows.items() if len({repr(value) for value in row.values()}) > 1}


def _facts(run: Description) -> dict[str, Any]:
    document = run.document
    facts = {"kind": document["kind"], "learns": document["learns"], **document["settings"]}
    facts |= {f"data: {name}": value for name, value in document["data"].items() if name == "SHA-256"}
    return facts | {f"environment: {name}": value for name, value in document["environment"].items()}


def document_of(runs: dict[str, Description]) -> dict[str, Any]:
    """The document that `asterism report --json` prints: finite numbers, texts, lists and objects."""
    return {"runs": [run.document for run in runs.values()], "differences": differences(runs)}
