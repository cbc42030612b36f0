"""Scores, cell by cell: one for each task and length. As values, as a table, and as a file to resume from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asterism.columns import aligned
from asterism.errors import CheckpointError
from asterism.files import read_json, write_json

_HEADINGS = ("task", "tokens", "samples", "recall", "95 % interval", "random pick")


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The score of a task at a length.

    task, length  which; the length is in tokens of the model, the room for the answer included
    samples       how many prompts were answered
    tokens        the fewest and the most tokens of a prompt with the room for its answer
    recall        the mean share of the answers that were found in what the model wrote, from 0 to 1
    low, high     its interval at 95 %
    pick          the same of a reader that picks among the strings of the text that have the form of an answer
    seconds       how long the model took for all answers
    """

    task: str
    length: int
    samples: int
    tokens: tuple[int, int]
    recall: float
    low: float
    high: float
    pick: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All cells, in the order of tasks and then of lengths. `settings` decide them: model, samples, seed, version."""

    settings: Mapping[str, Any]
    cells: tuple[TaskScore, ...]

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**self.settings, "cells": [asdict(cell) for cell in self.cells]}

    def __str__(self) -> str:
        return "\n".join(aligned([_HEADINGS, *(_row(cell) for cell in self.cells)]))


def _row(cell: TaskScore) -> tuple[str, ...]:
    figures = (f"{cell.recall:.3f}", f"{cell.low:.3f} to {cell.high:.3f}", f"{cell.pick:.3f}")
    return (cell.task, f"{cell.length:,}", f"{cell.samples:,}", *figures)


class RecordFile:
    """Cells that are finished, in a JSON file that is whole after each: what a stopped evaluation resumes from.

    The cells of another evaluation with the same settings may be of other tasks and lengths; they stay in the file.
    Raises CheckpointError for a file that exists unless `resume`, and for one that is damaged or has other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.path, self.settings = path, dict(settings)
        self.cells: dict[tuple[str, int], TaskScore] = {}
        if path is None or not path.exists():
            return
        if not resume:
            raise CheckpointError("output-exists", f"record: {path} exists; add --resume, or choose another name")
        document = read_json(path)
        try:
            cells = [TaskScore(**{**cell, "tokens": tuple(cell["tokens"])}) for cell in document.pop("cells")]
            self.cells = {(cell.task, cell.length): cell for cell in cells}
            str(Scores(settings={}, cells=tuple(cells)))
            if not all(0 <= share <= 1 for cell in cells for share in (cell.low, cell.recall, cell.high, cell.pick)):
                raise ValueError("a score is not between 0 and 1")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError("damaged-file", f"record: {path} is not a record of `evaluate --ruler`") from error
        for name in self.settings.keys() | document.keys():
            if document.get(name) != self.settings.get(name):
                raise CheckpointError(
                    "output-of-other-settings",
                    f"record: {path} was started with another value of {name!r}; choose another name",
                )

    def add(self, cell: TaskScore) -> None:
        """Keep a finished cell."""
        self.cells[cell.task, cell.length] = cell
        if self.path is not None:
            write_json(self.path, Scores(settings=self.settings, cells=tuple(self.cells.values())).as_json())
