"""Read GenBank's flat files: the features of a record as intervals, and its sequence.

A record is LOCUS ..., FEATURES, ORIGIN, "//". Its name is that of VERSION, which NCBI's FASTA and GFF have, too, or
else of LOCUS. A location is a place, a range (`12..340`, `<12..>340`), or complement(...), join(...) and order(...) of
them; a join gives an interval for each part, in the order in which they are read. What lies in other records
(`J00194.1:100..202`) or between two letters (`123^124`) is refused.

The reader is our own because Biopython accepts most of the errors that are refused here, with or without a warning:
records that break off, letters out of order, locations in other records. It also names no lines, and holds a whole
chromosome as text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from asterism.errors import DataError, shown
from asterism.training.data.genomes.fasta import SequenceHeader
from asterism.training.data.genomes.intervals import Interval, Strand, interval
from asterism.training.data.genomes.letters import ALLOWED
from asterism.training.data.genomes.unpacking import lines

LONGEST_LINE = 1 << 16
"""Bytes of a line; the format has 80."""

LONGEST_LOCATION = 1 << 20
"""Characters of a location, and of a qualifier that gives a name."""

DEEPEST_LOCATION = 8
"""How many operators may stand one within another in a location."""

_NAMES = ("gene", "locus_tag", "protein_id", "product", "label")
"""Qualifiers that may say what a feature is called, best first."""

_LOCUS = re.compile(r"LOCUS\s+(\S+)\s+(\d+)\s+(bp|aa)\b")
_RANGE = re.compile(r"<?(\d+)(?:\.\.>?(\d+))?")
_OTHER_STRAND: dict[str, Strand] = {"+": "-", "-": "+"}


def read_genbank(path: str | Path) -> Iterator[Interval]:
    """The features of all records. Raises DataError."""
    for event in _events(path):
        if isinstance(event, _Feature):
            yield from event.intervals()


def read_genbank_sequences(path: str | Path) -> Iterator[SequenceHeader | bytes]:
    """The sequences of all records. Raises DataError, also for a record without its sequence."""
    for event in _events(path):
        if isinstance(event, SequenceHeader | bytes):
            yield event
        elif isinstance(event, _Record) and event.section != "ORIGIN":
            raise DataError("sequence-missing", f"{event.place}: the record has no sequence (ORIGIN)")


@dataclass
class _Record:
    """A record as far as it was read. `section` is the keyword that its lines stand under; `seen` counts letters."""

    place: str
    name: str
    length: int
    section: str = "LOCUS"
    seen: int = 0


@dataclass
class _Feature:
    place: str
    sequence: str
    kind: str
    location: str
    named: dict[str, str] = field(default_factory=dict)
    _last: str | None = None
    _is_quoted: bool = False

    def add(self, text: str) -> None:
        """Another line: what begins with "/" is a qualifier, unless a quotation goes on; all else continues."""
        if text.startswith("/") and not self._is_quoted:
            self._last, _, text = text[1:].partition("=")
            self.named.setdefault(self._last, "")
            if self._last not in _NAMES:
                self.named.pop(self._last)
        elif self._last is None:
            self.location += text
            _require_length(self.place, self.location)
            return
        if text.count('"') % 2:
            self._is_quoted = not self._is_quoted
        if self._last in _NAMES:
            self.named[self._last] = f"{self.named[self._last]} {text}".strip()
            _require_length(self.place, self.named[self._last])

    def intervals(self) -> Iterator[Interval]:
        """An interval for each part of the location."""
        names = (self.named[key].removeprefix('"').removesuffix('"') for key in _NAMES if key in self.named)
        name = next((name.replace('""', '"') for name in names if name), "")
        for start, end, strand in _parts(self.place, self.location, 0):
            yield interval(self.place, self.sequence, start, end, strand, name, self.kind, first=1)


def _events(path: str | Path) -> Iterator[_Feature | SequenceHeader | bytes | _Record]:
    """Of each record its features, a header where its ORIGIN begins, its letters line by line, and at last itself."""
    record: _Record | None = None
    feature: _Feature | None = None
    place = f"{path}"
    for number, line in lines(path, LONGEST_LINE):
        place = f"{path}, line {number:,}"
        if not line.strip():
            continue
        begins = not line.startswith(" ") or line[5:6].strip()  # all else continues a feature
        if feature is not None and begins:
            yield feature
            feature = None
        if record is None:
            record = _locus(place, line)
        elif line.startswith("//"):
            if record.section == "ORIGIN" and record.seen != record.length:
                raise DataError(
                    "genbank-length",
                    f"{place}: the record has {record.seen:,} letters; its LOCUS line has {record.length:,}",
                )
            yield record
            record = None
        elif record.section == "ORIGIN":
            yield _letters(place, line, record)
        elif not line.startswith(" "):
            record.section, *rest = line.split()
            if record.section == "VERSION" and rest:
                record.name = rest[0]
            if record.section == "ORIGIN":
                yield SequenceHeader(record.place, record.name)
        elif record.section == "FEATURES":
            if begins:
                feature = _feature(place, line, record)
            elif feature is None:
                raise DataError("genbank-qualifier", f"{place}: a qualifier comes before the first feature")
            else:
                feature.add(line.strip())
    if record is not None:
        raise DataError(
            "incomplete-download",
            f"{place}: the file ends within the record {shown(record.name)}; is the download complete?",
        )


def _locus(place: str, line: str) -> _Record:
    if (found := _LOCUS.match(line)) is None:
        raise DataError(
            "genbank-header", f"{place}: a record of GenBank begins with 'LOCUS NAME LENGTH bp', seen: {line[:40]!r}"
        )
    if found[3] == "aa":
        raise DataError("protein-record", f"{place}: the record {shown(found[1])} is a protein; give a genome")
    return _Record(place, found[1], int(found[2][:18]))


def _feature(place: str, line: str, record: _Record) -> _Feature:
    cells = line.split(maxsplit=1)
    if len(cells) != 2:
        raise DataError("location-missing", f"{place}: the feature {shown(cells[0])} has no location")
    return _Feature(place, record.name, cells[0], cells[1].strip())


def _letters(place: str, line: str, record: _Record) -> bytes:
    """The letters of "       61 acgtacgtac acgtacgtac", whose number must be that of the first."""
    first, *groups = line.split()
    if first != str(record.seen + 1):
        raise DataError(
            "genbank-numbering",
            f"{place}: the line begins with {first[:20]!r}, not with its letter's number, {record.seen + 1}",
        )
    letters = "".join(groups).encode()
    if wrong := letters.translate(None, ALLOWED):
        raise DataError("bad-letter", f"{place}: {chr(wrong[0])!r} is not a letter of DNA")
    record.seen += len(letters)
    return letters


def _parts(place: str, text: str, depth: int) -> list[tuple[str, str, Strand]]:
    """Start, end and strand of each part of a location, in the order in which they are read."""
    text = text.strip()
    if depth > DEEPEST_LOCATION:
        raise DataError("nested-too-deeply", f"{place}: the location has more than {DEEPEST_LOCATION} nested operators")
    if found := _RANGE.fullmatch(text):
        return [(found[1], found[2] or found[1], "+")]
    operator, _, inner = text.partition("(")
    if operator not in ("complement", "join", "order") or not inner.endswith(")"):
        raise DataError(
            "genbank-location",
            f"{place}: the location {shown(text[:60])} cannot be read: give a position, a range, or complement, join"
            " or order of them",
        )
    parts = [part for one in _arguments(inner[:-1]) for part in _parts(place, one, depth + 1)]
    if operator == "complement":
        return [(start, end, _OTHER_STRAND[strand]) for start, end, strand in reversed(parts)]
    return parts


def _arguments(text: str) -> list[str]:
    """What stands between commas that are within no brackets."""
    arguments, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            arguments.append(text[begin:at])
            begin = at + 1
    return [*arguments, text[begin:]]


def _require_length(place: str, text: str) -> None:
    if len(text) > LONGEST_LOCATION:
        raise DataError(
            "location-too-long",
            f"{place}: a location or name of a feature has more than {LONGEST_LOCATION:,} characters",
        )
