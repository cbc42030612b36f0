"""Read sequences of bases with labels of 0 and 1 from records.

A record has a `sequence` of bases, or a `text` of anything; its labels are its other fields, a list `labels`, or the
row of its `id` in a table. Letters of bases are made capitals, U becomes T, and those of IUPAC that stand for several
bases become N; any other is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from asterism.errors import DataError
from asterism.training.data.genomes import letters
from asterism.training.data.records.formats import LIST_SEPARATOR, read_records
from asterism.training.data.records.record import Record

_CAPITALS = letters.translation("upper")

NOT_LABELS = ("id", "sequence", "text", "labels")
"""The fields of a record that are no column of labels."""


@dataclass(frozen=True, eq=False)
class LabelledSequence:
    """A sequence with its record and, if known, its labels.

    record   where it stands, and its fields
    letters  capitals of A, C, G, T, N; or a text as it stands, if it is not `of_bases`
    columns  the names of the labels
    labels   uint8 [columns] of 0 and 1; None if they are not known
    """

    record: Record
    letters: str
    of_bases: bool = True
    columns: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    def labels_in(self, columns: tuple[str, ...]) -> np.ndarray:
        """Its labels, uint8 [columns]. Raises DataError unless they are known, and in these columns."""
        if self.columns != columns or self.labels is None:
            odd = sorted(set(self.columns) ^ set(columns))[:1] or ["their order"]
            raise DataError(
                "columns-differ",
                f"{self.record.place}: has {len(self.columns):,} columns of labels, but the training data has"
                f" {len(columns):,}; they differ in {odd[0]}",
            )
        return self.labels

    @property
    def reversed(self) -> "LabelledSequence":
        """The other strand, with the same labels. Raises DataError for a text, which has none."""
        if not self.of_bases:
            raise DataError(
                "no-other-strand",
                f"{self.record.place}: a text has no second strand: leave augment_strands and average_strands out, or"
                " give a `sequence` of bases",
            )
        return replace(self, letters=other_strand(self.letters))


def bases(text: str, place: str) -> str:
    """The letters of a sequence as capitals A, C, G, T, N. Raises DataError at the first letter that is not a base."""
    raw = text.encode("ascii", "replace")
    if odd := raw.translate(None, delete=letters.ALLOWED):
        at = raw.index(odd[:1])
        raise DataError(
            "bad-letter", f"{place}: letter {at + 1:,} of the sequence is {text[at]!r}, which is not a code for bases"
        )
    return raw.translate(_CAPITALS).decode()


def other_strand(text: str) -> str:
    """The other strand of A, C, G, T, N in text, read in its own direction."""
    return letters.reverse_complement(np.frombuffer(text.encode(), dtype=np.uint8)).tobytes().decode()


def letters_of(record: Record) -> tuple[str, bool]:
    """The sequence of a record, or its text; and whether it is one of bases. Raises DataError."""
    if "sequence" not in record.fields and "text" in record.fields:
        return record.text("text"), False
    return bases(record.text("sequence").strip(), f"{record.place}: field 'sequence'"), True


def columns_of(record: Record) -> tuple[str, ...]:
    """The names of a record's columns of labels: its other fields, or the numbers of those in `labels`.

    Raises DataError if there is none.
    """
    if "labels" in record.fields:
        return tuple(map(str, range(len(_listed(record)))))
    names = tuple(str(name) for name in record.fields if name not in NOT_LABELS)
    if not names:
        raise DataError(
            "no-labels", f"{record.place}: no labels: give columns of 0 and 1, or a list of them as 'labels'"
        )
    for name in names:
        record.refuse_surrogates(name, name)
    return names


def labels_of(record: Record, columns: Sequence[str]) -> np.ndarray:
    """The labels of a record in these columns: uint8 [columns] of 0 and 1. Raises DataError."""
    if "labels" in record.fields:
        values = _listed(record)
        if len(values) != len(columns):
            raise record.error("labels", f"has {len(values):,} entries, the others have {len(columns):,}")
        return np.array([_bit(record, "labels", value) for value in values], dtype=np.uint8)
    return np.array([_bit(record, name, record.get(name)) for name in columns], dtype=np.uint8)


def _listed(record: Record) -> list[Any]:
    value = record.get("labels")
    if isinstance(value, str):
        value = [one.strip() for one in value.split(LIST_SEPARATOR)]
    if not isinstance(value, list):
        raise record.error("labels", f"must be a list of 0 and 1, got {value!r:.40}")
    return value


def _bit(record: Record, field: str, value: Any) -> int:
    if value not in (0, 1, "0", "1"):
        raise record.error(field, f"must be 0 or 1, got {value!r:.40}")
    return int(value)


class LabelTable:
    """A table of labels (JSONL or CSV), found by `id`. Raises DataError for an id that stands there twice."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: dict[str, Record] = {}
        for record in read_records(path, ("jsonl", "csv")):
            name = str(record.get("id"))
            if name in self.rows:
                raise record.error("id", f"{name!r} is in the table twice")
            self.rows[name] = record

    def row(self, record: Record) -> Record:
        """The row of a record's `id`. Raises DataError for an id that the table does not have."""
        name = str(record.get("id"))
        if name not in self.rows:
            raise record.error("id", f"{name!r} has no row in {self.path}")
        return self.rows[name]

    def of(self, record: Record) -> Record:
        """The record with the labels of its `id`. Raises as `row` does."""
        return Record(record.place, {**record.fields, **self.row(record).fields}, record.raw, record.head)


def read_sequences(path: Path, formats: Sequence[str], table: str | None) -> Iterator[Record]:
    """The records of a file, with the labels of a table if there is one. Raises DataError."""
    labels = None if table is None else LabelTable(table)
    for record in read_records(path, formats):
        yield record if labels is None else labels.of(record)
