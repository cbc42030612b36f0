"""Records read from JSONL, CSV, CoNLL and JSON files, each with the place it came from.

Every complaint about a record names file, line (or place in the document) and field: `Record` makes that message, so
the readers of the tasks say only what is wrong. Invariant: a file is read whole before anything is done with it.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.errors import DataError, nearest

LARGEST_FIELD = 2**31 - 1
"""Characters in a field of a CSV file; the csv module's own limit, 131,072, is less than a long document."""


@dataclass(frozen=True)
class Record:
    """The fields of one record, and where it stands, such as "train.jsonl, line 3"."""

    place: str
    fields: dict[str, Any]

    def error(self, field: str, message: str) -> DataError:
        """A DataError about one field, ready to be raised."""
        return DataError(f"{self.place}: field {field!r} {message}")

    def get(self, field: str) -> Any:
        """The value of a field. Raises DataError if it is not there, with the nearest that is."""
        if self.fields.get(field) is None:
            there = ", ".join(self.fields) or "none"
            hint = nearest(field, self.fields)
            raise DataError(f"{self.place}: field {field!r} is missing; there are: {there}.{hint}")
        return self.fields[field]

    def text(self, field: str) -> str:
        """A field that holds text with at least one visible character. Raises DataError."""
        value = self.get(field)
        if not isinstance(value, str):
            raise self.error(field, f"must be text, got {json.dumps(value)[:40]}")
        if not value.strip():
            raise self.error(field, "is empty")
        return value

    def texts(self, field: str) -> list[str]:
        """A field that holds a list of texts. Raises DataError."""
        value = self.get(field)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(field, f"must be a list of texts, got {json.dumps(value)[:40]}")
        return value


def read_text(path: Path) -> str:
    """The text of a file. Raises DataError if there is none, or if it is not UTF-8 or empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"data: there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"data: {path} is not UTF-8 text: byte {error.start:,} cannot be read") from None
    except OSError as error:
        raise DataError(f"data: cannot read {path}: {error.strerror}") from None
    if not text.strip():
        raise DataError(f"data: {path} is empty")
    return text


def read_json_lines(path: Path) -> Iterator[Record]:
    """One record for each line that is not blank. Raises DataError for a line that is no JSON object."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield Record(place, _object(place, line))


def read_json(path: Path) -> Record:
    """A file that is one JSON object. Raises DataError."""
    return Record(str(path), _object(str(path), read_text(path)))


def read_csv(path: Path) -> list[Record]:
    """One record for each row under a first row of names; its line is that of the row's end. Raises DataError."""
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    limit = csv.field_size_limit(LARGEST_FIELD)
    try:
        records = [Record(f"{path}, line {rows.line_num}", row) for row in rows]
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.reader.line_num}: cannot be read as CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)
    for record in records:
        if None in record.fields or None in record.fields.values():
            raise DataError(f"{record.place}: the row does not have the {len(rows.fieldnames or ())} fields of line 1")
    return records


def read_conll(path: Path) -> Iterator[Record]:
    """One record of `tokens` and `tags` for each group of lines between blank ones.

    The first column is the token and the last one its tag, as in the shared tasks of CoNLL 2000 to 2003; lines that
    begin with -DOCSTART- are left out. Raises DataError for a line of fewer than two columns.
    """
    tokens: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            if len(columns) < 2:
                raise DataError(f"{path}, line {number}: field 'tags' is missing: the line is {line.strip()!r} alone")
            first = first if tokens else number
            tokens.append(columns[0])
            tags.append(columns[-1])
        elif tokens:
            yield Record(f"{path}, line {first}", {"tokens": tokens, "tags": tags})
            tokens, tags = [], []


def suffix(path: Path, known: Sequence[str]) -> str:
    """The suffix that says how a file is written. Raises DataError if it is none of the known ones."""
    if path.suffix.lower() not in known:
        raise DataError(f"data: {path} must be a file of one of the kinds {', '.join(known)}, by its name")
    return path.suffix.lower()


def _object(place: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object, got {text.strip()[:40]}")
    return value
