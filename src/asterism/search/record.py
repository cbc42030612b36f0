"""The record of a search: one JSON file, rewritten after each measurement. A search continues from it, and prints it.

A row is one candidate of one budget. `scores` has a list for each seed of training, with an entry for each rung that it
reached: rung, steps, loss, accuracy, and the seconds of training until then.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.columns import aligned
from asterism.errors import CheckpointError
from asterism.search.settings import SearchSettings
from asterism.training.run.integrity import read_fields, write_sealed

RECORD, PICTURE, MODELS = "record.json", "frontier.svg", "models"
Row = dict[str, Any]


def open_record(folder: Path, settings: SearchSettings, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record that is in a folder, or None where the folder holds nothing yet.

    Raises CheckpointError for the record of another search, for a damaged one, and for a folder of other things.
    """
    path = folder / RECORD
    if not path.exists():
        if others := sorted(one.name for one in folder.iterdir() if one.name[0] != ".") if folder.is_dir() else []:
            raise CheckpointError(
                "search-folder", f"{folder} holds no search but {others[0]}; give another --output, or remove it"
            )
        return None
    record = read_fields(path, ("settings", "task", "rungs", "rows"), "a search")
    others = settings.differences(record["settings"])
    if not others and record["task"] != task:
        others = [f"other data in {settings.task}"]
    if others:
        raise CheckpointError(
            "search-other",
            f"{folder} holds a search with {others[0]}; give another --output, or the settings of that search",
        )
    return record


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record, atomically."""
    write_sealed(folder / RECORD, record)


def score_at(row: Row, seed: int, rung: int) -> dict[str, Any] | None:
    """The score that a seed of a row has on a rung, if it has one."""
    return next((one for one in row["scores"].get(str(seed), ()) if one["rung"] == rung), None)


def reached(row: Row) -> int:
    """The highest rung with a score, or -1."""
    return max((one["rung"] for scores in row["scores"].values() for one in scores), default=-1)


def summary(row: Row) -> dict[str, Any]:
    """Of the highest rung reached, over the seeds that did: means and spreads (half of greatest less least), seconds of
    training in all; loss and accuracy None where nothing was measured."""
    rung = reached(row)
    last = [one for scores in row["scores"].values() for one in scores if one["rung"] == rung]
    found: dict[str, Any] = {"rung": rung, "seeds": len(last)}
    for name in ("loss", "accuracy"):
        values = [one[name] for one in last]
        found[name] = statistics.mean(values) if values else None
        found[f"{name}_spread"] = (max(values) - min(values)) / 2 if values else None
    found["seconds"] = sum(scores[-1]["seconds"] for scores in row["scores"].values() if scores)
    return found


def ranked(record: Mapping[str, Any]) -> list[tuple[Row, dict[str, Any]]]:
    """The rows with their summaries: dense attention first, then by budget, the rung reached, and the loss."""
    budgets = [None, *record["settings"]["budgets"]]
    rows = [(row, summary(row)) for row in record["rows"]]
    return sorted(rows, key=lambda one: (budgets.index(one[0]["budget"]), -one[1]["rung"], _loss(one[1])))


def table(record: Mapping[str, Any]) -> str:
    """The ranking, the patterns, the best of each budget, and notes, as `asterism search` prints them."""
    heading = ("candidate", "budget", "keys", "of dense", "rung", f"loss ({record['unit']})", "accuracy", "seconds")
    lines: list[Sequence[str]] = [heading]
    found = ranked(record)
    for row, short in found:
        loss, accuracy = (_with_spread(short, name, digits) for name, digits in (("loss", 4), ("accuracy", 3)))
        keys, share = f"{row['keys']:.1f}", f"{row['keys'] / record['dense_keys']:.1%}"
        rung = str(short["rung"] + 1) if short["rung"] >= 0 else "-"
        measured = (rung, loss, accuracy, f"{short['seconds']:.0f}")
        lines.append((row["name"], row["budget"] or "-", keys, share, *measured))
    patterns = [(row["name"], row["budget"] or "-", row["pattern"]) for row, _ in found]
    text = [*aligned(lines, left=(0, 1)), "", *aligned(patterns, left=(0, 1, 2)), ""]
    text += [*_best(record), *record["notes"]]
    text += [f"{row['name']}: {row['note']}" for row, _ in found if row["note"]]
    return "\n".join(text)


def _best(record: Mapping[str, Any]) -> list[str]:
    """The best candidate of each budget, with its model, and a warning where dense attention has learnt too little."""
    found, text = ranked(record), []
    dense = next(_loss(short) for row, short in found if row["budget"] is None)
    for budget in record["settings"]["budgets"]:
        row, short = next((row, short) for row, short in found if row["budget"] == budget)
        if short["loss"] is None:
            continue
        place = f"{MODELS}/{record['rows'].index(row)}-0"
        text.append(f"best of {budget}: {row['pattern']}, loss {short['loss']:.4f}; its first model is {place}")
        if short["loss"] < dense < float("inf"):
            text.append(
                f"With all keys the loss is higher, {dense:.4f}: more --steps may change the order, or more --seeds."
            )
    return text


def _loss(short: Mapping[str, Any]) -> float:
    return float("inf") if short["loss"] is None else short["loss"]


def _with_spread(short: Mapping[str, Any], name: str, digits: int) -> str:
    if short[name] is None:
        return "-"
    spread = f" +- {short[f'{name}_spread']:.{digits}f}" if short["seeds"] > 1 else ""
    return f"{short[name]:.{digits}f}{spread}"
