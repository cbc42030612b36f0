"""Labelled windows of a genome around intervals, each read from the file on demand.

A window has the requested length, is centred on the middle of its interval, and is read on the interval's strand.
Beyond the ends of the sequence it has N.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asterism.errors import DataError
from asterism.training.data.genomes.intervals import Interval, interval
from asterism.training.data.genomes.sequences import Sequences
from asterism.training.data.records.held_out import OnDemand
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import LabelledSequence

FIELDS = ("id", "chromosome", "start", "end", "strand")
"""The fields of an interval in a record: its name, its sequence, and positions as in BED, 0-based and half-open."""


@dataclass(frozen=True, eq=False)
class GenomeWindows(OnDemand):
    """Windows of `length` bases around intervals that are records with `FIELDS`.

    labels  uint8 [intervals, columns]
    """

    sequences: Sequences
    records: Sequence[Record]
    length: int
    columns: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.records)

    def made(self, number: int) -> LabelledSequence:
        record = self.records[number]
        letters = window_letters(self.sequences, interval_of(record), self.length)
        return LabelledSequence(record, letters, True, self.columns, self.labels[number])


def interval_of(record: Record) -> Interval:
    """The interval that a record is. Raises DataError."""
    start, end = (str(record.get(name)) for name in ("start", "end"))
    strand = str(record.fields.get("strand", "."))
    name = str(record.fields.get("id", ""))
    return interval(record.place, record.text("chromosome"), start, end, strand, name, "", first=0)


def window_letters(sequences: Sequences, one: Interval, length: int) -> str:
    """The letters of the window around an interval. Raises DataError for one that is not within its sequence."""
    one.require_within(sequences)
    window = one.around(length // 2, length - length // 2, "centre")
    letters = sequences.read_padded(window.sequence, window.start, window.end, window.strand)
    return letters.tobytes().decode()


def require_all(sequences: Sequences, records: Sequence[Record]) -> None:
    """Raises DataError for the first interval that is not within its sequence, and if there is none at all."""
    if not records:
        raise DataError("no-intervals", "data: no intervals")
    for record in records:
        interval_of(record).require_within(sequences)
