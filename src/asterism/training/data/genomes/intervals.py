"""Intervals of sequences in annotation: one type for all formats.

Positions are 0-based and half-open, as in BED and Python. Readers of other formats convert theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from asterism.errors import DataError, shown

if TYPE_CHECKING:
    from asterism.training.data.genomes.sequences import Sequences

Strand = Literal["+", "-", "."]
"""Read as the file has it, as the other strand, or neither, which is read as "+"."""

Anchor = Literal["start", "centre", "end"]
"""A letter of an interval: the first that its strand reads, the one in the middle, the last."""

FURTHEST = 1 << 40
"""No place may be as far: a terabase, hundreds of times the longest genome known."""

_OFFSETS: dict[str, Callable[[int], int]] = {
    "start": lambda length: 0,
    "centre": lambda length: length // 2,
    "end": lambda length: length - 1,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """The letters start .. end - 1 of a sequence.

    name   what it is called, such as a gene's symbol; may be empty
    kind   what it is, such as "gene" or "CDS"; may be empty
    place  the file and line that it was read from; two intervals are equal without it
    """

    sequence: str
    start: int
    end: int
    strand: Strand = "."
    name: str = ""
    kind: str = ""
    place: str = field(default="", compare=False)

    def __len__(self) -> int:
        return self.end - self.start

    def around(self, before: int, after: int, anchor: Anchor = "start") -> "Interval":
        """The `before` letters ahead of the anchor and the `after` from it on, as this interval's strand reads.

        The result may begin before its sequence or end after it.
        """
        offset = _OFFSETS[anchor](len(self))
        if self.strand == "-":
            behind = self.end - offset
            return replace(self, start=behind - after, end=behind + before)
        return replace(self, start=self.start + offset - before, end=self.start + offset + after)

    def letters(self, sequences: "Sequences") -> np.ndarray:
        """Its letters as its strand reads them: uint8 [end - start].

        Raises DataError if it is not within its sequence; `Sequences.read_padded` has N for what is not.
        """
        self.require_within(sequences)
        return sequences.read_padded(self.sequence, self.start, self.end, self.strand)

    def require_within(self, sequences: "Sequences") -> None:
        """Raises DataError, naming the line it was read from, if its sequence is not there or does not hold it."""
        where = f"{self.place}: " if self.place else ""
        try:
            length = sequences.length(self.sequence)
        except DataError as error:
            raise DataError("bad-interval", f"{where}{error}") from None
        if not 0 <= self.start <= self.end <= length:
            raise DataError(
                "interval-outside",
                f"{where}{self.sequence}:{self.start:,}-{self.end:,} (0-based, half-open) is not within the sequence's"
                f" {length:,} letters",
            )


def interval(
    place: str, sequence: str, start: str, end: str, strand: str, name: str, kind: str, *, first: int
) -> Interval:
    """An interval from the texts of a line. `first` is the number that the format gives to the first letter: 0 for
    half-open intervals, 1 for those whose end is within.

    Raises DataError for what is no number, lies before the first letter or beyond `FURTHEST`, ends before it begins, or
    has no sequence or a strand that there is not.
    """
    if not sequence:
        raise DataError("name-missing", f"{place}: the sequence has no name")
    begin, stop = (number(place, text, which) for text, which in ((start, "start"), (end, "end")))
    if begin < first:
        raise DataError(
            "interval-start",
            f"{place}: start {begin:,} is before the first letter, number {first} in this format",
        )
    if begin > stop:
        raise DataError(
            "interval-order",
            f"{place}: start {begin:,} is after end {stop:,}; on either strand the smaller number comes first",
        )
    if strand not in ("+", "-", "."):
        raise DataError("interval-strand", f"{place}: strand must be '+', '-' or '.', got {shown(strand)}")
    return Interval(sequence, begin - first, stop, strand, name, kind, place)  # type: ignore[arg-type]


def number(place: str, text: str, which: str) -> int:
    """A place as the digits of a text say it. Raises DataError."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise DataError("not-a-whole-number", f"{place}: {which} must be a whole number, got {shown(text[:40])}")
    if len(digits) > len(str(FURTHEST)) or int(digits) >= FURTHEST:
        raise DataError(
            "interval-too-far",
            f"{place}: {which} must be at most {FURTHEST:,}, got {text[:20]}",
        )
    return int(text)
