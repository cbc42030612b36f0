"""Successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943): train all a little, and the best ones longer.

Every budget has its own candidates, which compete with each other only. Dense attention is trained to the end next to
them. Invariant: the losses of a search do not depend on whether, and where, it was stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.bench.machine import describe
from asterism.errors import NonFiniteLossError
from asterism.files import remove_leftovers
from asterism.search.budget import dense_keys, keys_read, read_limit
from asterism.search.candidates import ALWAYS, DENSE, Place, candidates
from asterism.search.record import MODELS, Row, open_record, score_at, write_record
from asterism.search.settings import SearchSettings
from asterism.search.tasks import SearchTask, make_task
from asterism.search.trainee import Trainee
from asterism.training.run.arithmetic import undisturbed
from asterism.training.run.lock import locked


def search(settings: SearchSettings, folder: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run a search, or what is left of it, and return its record, which is kept in `folder`.

    `say` is given a line for each measurement. Raises ConfigurationError for a budget that cannot be met and a model
    that cannot be, DataError for a task that is not there, CheckpointError for a folder in use or of another search.
    """
    task = make_task(settings.task, settings.length, settings.seed)
    with undisturbed(), locked(folder):
        for place in (folder, folder / MODELS):
            remove_leftovers(place)
        record = open_record(folder, settings, task.record()) or _new(settings, task)
        write_record(folder, record)
        running = _Search(settings, task, folder, record, say)
        for budget in settings.budgets:
            running.halve([row for row in record["rows"] if row["budget"] == budget])
        running.finish()
    return record


def _new(settings: SearchSettings, task: SearchTask) -> dict[str, Any]:
    """The record of a search that has measured nothing."""
    place = Place(settings.length, settings.layers, settings.heads)
    rows: list[Row] = [_row(None, "dense", DENSE, keys_read(DENSE, place.length, place.layers))]
    notes = []
    for text in settings.budgets:
        found = candidates(read_limit(text, settings.length), place, settings.candidates, settings.seed)
        rows += [_row(text, one.name, one.schedule, one.keys) for one in found]
        names = {one.name for one in found}
        if missing := [family.name for family in ALWAYS[: settings.candidates] if family.name not in names]:
            notes.append(f"{text} is too small for {', '.join(missing)}")
        if len(found) < settings.candidates:
            count = "1 candidate" if len(found) == 1 else f"{len(found)} different candidates"
            notes.append(f"{text} allows {count}, not {settings.candidates}")
    return {
        "settings": settings.as_json(),
        "task": task.record(),
        "unit": task.unit,
        "dense_keys": dense_keys(settings.length),
        "rungs": [{"candidates": count, "steps": steps} for count, steps in settings.ladder()],
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe("cpu"),
        "notes": notes,
        "rows": rows,
    }


def _row(budget: str | None, name: str, pattern: str, keys: float) -> Row:
    return {"budget": budget, "name": name, "pattern": pattern, "keys": keys, "scores": {}, "note": None}


@dataclass(frozen=True)
class _Search:
    settings: SearchSettings
    task: SearchTask
    folder: Path
    record: dict[str, Any]
    say: Callable[[str], None]

    def halve(self, rows: list[Row]) -> None:
        """Train the candidates of one budget rung by rung."""
        ladder = self.settings.ladder()
        for rung, (count, _) in enumerate(ladder):
            if rung:
                rows = sorted(rows, key=lambda row: _loss(row, rung - 1))[:count]
            rows = [row for row in rows if self.measure(row, 0, rung)]

    def finish(self) -> None:
        """Train dense attention, and every other seed of what is on the last rung."""
        last = len(self.settings.ladder()) - 1
        self.measure(self.record["rows"][0], 0, last)
        for row in self.record["rows"]:
            if score_at(row, 0, last):
                for seed in range(1, self.settings.seeds):
                    self.measure(row, seed, last)

    def measure(self, row: Row, seed: int, rung: int) -> bool:
        """Score a candidate on a rung, unless it is already scored. Returns False where its loss is not finite."""
        if score_at(row, seed, rung):
            return True
        if row["note"]:
            return False
        number, steps = self.record["rows"].index(row), self.settings.ladder()[rung][1]
        trainee = Trainee(row["pattern"], self.settings, self.task, seed, self.folder / MODELS / f"{number}-{seed}")
        try:
            trainee.advance(steps)
            loss, accuracy = trainee.score()
        except NonFiniteLossError as error:
            row["note"] = str(error)
            self.say(f"{row['name']}: {row['note']}")
        else:
            seconds = round(trainee.state.seconds, 2)
            found = {"rung": rung, "steps": steps, "loss": loss, "accuracy": accuracy, "seconds": seconds}
            row["scores"].setdefault(str(seed), []).append(found)
            budget = row["budget"] or "reference"
            self.say(f"{budget}, rung {rung + 1}, {row['name']}, seed {seed}: loss {loss:.4f}, accuracy {accuracy:.3f}")
        write_record(self.folder, self.record)
        return not row["note"]


def _loss(row: Row, rung: int) -> float:
    found = score_at(row, 0, rung)
    return float("inf") if found is None else found["loss"]
