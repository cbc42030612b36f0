"""Check every promise for every subject, and show the outcomes as a record and as a table."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from asterism.bench.machine import describe
from asterism.promises.checks import PROMISES
from asterism.promises.subjects import SUBJECTS
from asterism.quiet import quiet_transformers

_MARKS = {True: "kept", False: "BROKEN", None: "-"}


def check_promises(say: Callable[[str], None]) -> dict[str, Any]:
    """Check every promise for every subject and return the record. `say` gets the name of the next subject."""
    rows = []
    with quiet_transformers():
        for subject in SUBJECTS:
            say(subject.name)
            for promise, check in PROMISES.items():
                outcome = check(subject)._asdict()
                rows.append({"subject": subject.name, "is_ours": subject.is_ours, "promise": promise, **outcome})
    return {"date": datetime.now(UTC).date().isoformat(), "machine": describe("cpu"), "rows": rows}


def broken(record: Mapping[str, Any]) -> list[str]:
    """The promises that our models break."""
    return [
        f"{row['subject']}, {row['promise']} ({row['seen']})"
        for row in record["rows"]
        if row["is_ours"] and row["kept"] is False
    ]


def table(record: Mapping[str, Any]) -> str:
    """A table with one line for each promise and subject to which it applies."""
    packages = record["machine"]["packages"]
    lines = [f"transformers {packages.get('transformers')}, torch {packages.get('torch')}, {record['date']}"]
    for promise in PROMISES:
        lines += ["", promise]
        for row in record["rows"]:
            if row["promise"] == promise and row["kept"] is not None:
                lines.append(f"  {row['subject']:<28} {_MARKS[row['kept']]:<7} {row['seen']}")
    return "\n".join(lines)
