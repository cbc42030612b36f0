"""Read FASTA and FASTQ strictly, one block at a time; errors name the file and the line.

FASTA: a line ">NAME ..." and lines of letters for each sequence. Lines may have any lengths and end in LF or CRLF;
empty lines are passed over. FASTQ: four lines for each read, "@NAME ...", letters, "+", and as many qualities, which
are checked and not kept. A name ends at the first space or tab, and is printable ASCII. Spaces and gaps within
sequences, sequences without letters, and letters that neither DNA nor RNA has are refused.

Readers of sequences, also that of `genbank.py`, give a `SequenceHeader` for each sequence and then its letters, as
bytes, a part at a time. All letters are allowed ones; those of FASTA have their ends of lines among them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asterism.errors import DataError
from asterism.training.data.genomes.letters import ALLOWED, PROTEIN
from asterism.training.data.genomes.unpacking import blocks, lines

LONGEST_HEADER = 1 << 16
"""Bytes of the line with a name, and with what stands behind the name."""

LONGEST_READ = 1 << 24
"""Bytes of a line of FASTQ; the longest reads of nanopores have four million."""

_NAME = re.compile(rb"[!-~]+")


class SequenceHeader(NamedTuple):
    """A sequence begins: file and line, its name, and in FASTA the byte of the unpacked file at which letters begin."""

    place: str
    name: str
    offset: int = 0


@dataclass
class FastaLayout:
    """Where the letters of a FASTA sequence stand in its file, as the index of samtools (faidx) says it.

    Regular is a sequence of which all lines but the last have `width` bytes, the last has no more, and all end alike:
    then the place of a letter follows from its number.
    """

    offset: int
    width: int = 0
    is_regular: bool = True
    seen: int = 0
    newlines: int = 0
    returns: int = 0
    has_short_line: bool = False

    @property
    def length(self) -> int:
        """How many letters there are."""
        return self.seen - self.newlines - self.returns

    @property
    def bases(self) -> int:
        """How many letters a line has, but for the last."""
        return self.width - (2 if self.returns else 1)

    def add(self, chunk: bytes) -> None:
        """The next bytes of the sequence, with ends of lines, of which none is cut in two."""
        self.is_regular &= not self.has_short_line  # only the last line may be short
        count = chunk.count(b"\n") if self.is_regular else 0
        if count:
            ends = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + self.seen
            self.width = self.width or int(ends[0]) + 1
            wanted = (self.newlines + 1 + np.arange(count)) * self.width - 1
            if (ends != wanted).any():
                self.has_short_line = bool(ends[-1] < wanted[-1])
                is_last = int(ends[-1]) == self.seen + len(chunk) - 1
                self.is_regular = self.has_short_line and is_last and not (ends != wanted)[:-1].any()
        self.newlines += count
        self.returns += chunk.count(b"\r")
        self.seen += len(chunk)

    def finish(self) -> None:
        """Nothing follows."""
        self.width = self.width or self.seen + 1
        last = self.seen - self.newlines * self.width
        alike = self.returns in (0, self.newlines)
        self.is_regular &= alike and self.bases > 0 and (self.has_short_line or last <= self.bases)


def read_fasta(path: str | Path) -> Iterator[SequenceHeader | bytes]:
    """The sequences of a FASTA file. Raises DataError."""
    for run in _runs(path, blocks(path)):
        if run.is_header:
            place = f"{path}, line {run.line:,}"
            yield SequenceHeader(place, _name(place, run.content), run.offset + len(run.content))
        elif run.content.translate(None, ALLOWED + b"\r\n") or run.content.count(b"\r") != run.content.count(b"\r\n"):
            raise _wrong_letter(path, run)
        else:
            yield run.content


def read_fastq(path: str | Path) -> Iterator[SequenceHeader | bytes]:
    """The reads of a FASTQ file. Raises DataError."""
    numbered = lines(path, LONGEST_READ)
    for number, header in numbered:
        place = f"{path}, line {number:,}"
        if not header.startswith("@"):
            raise DataError("fastq-header", f"{place}: a read of FASTQ begins with '@', seen: {header[:20]!r}")
        rest = [line for _, line in islice(numbered, 3)]
        if len(rest) < 3:
            raise DataError(
                "incomplete-download",
                f"{place}: the read has {1 + len(rest)} of its four lines; is the download complete?",
            )
        letters, separator, qualities = rest
        if not separator.startswith("+"):
            raise DataError(
                "fastq-plus", f"{path}, line {number + 2:,}: a line '+' must separate letters and qualities of a read"
            )
        if len(letters) != len(qualities) or not all("!" <= quality <= "~" for quality in set(qualities)):
            raise DataError(
                "fastq-qualities",
                f"{path}, line {number + 3:,}: {len(letters):,} letters need {len(letters):,} qualities, each from"
                f" '!' to '~'; there are {len(qualities):,}",
            )
        raw = letters.encode()
        if raw.translate(None, ALLOWED):
            raise _wrong_letter(path, _LetterRun(number + 1, 0, 0, raw, False))
        yield SequenceHeader(place, _name(place, header.encode()))
        yield raw


class _LetterRun(NamedTuple):
    """A line with a name and its end, or bytes of the lines behind it, of which the first begins at `column`."""

    line: int
    column: int
    offset: int
    content: bytes
    is_header: bool


def _runs(path: str | Path, source: Iterable[bytes]) -> Iterator[_LetterRun]:
    line, column, offset = 1, 0, 0
    header: bytes | None = None
    for data in _whole_ends(source):
        position = 0
        if offset == 0 and not data.startswith(b">"):
            raise DataError(
                "fasta-header", f"{path}, line 1: a FASTA file begins with '>', this one with {data[:20]!r}"
            )
        while position < len(data):
            if header is None and column == 0 and data.startswith(b">", position):
                header = b""
            if header is not None:
                found = data.find(b"\n", position, position + LONGEST_HEADER)
                stop = len(data) if found < 0 else found + 1
                header += data[position : min(stop, position + LONGEST_HEADER + 1)]
                if len(header) > LONGEST_HEADER:
                    raise DataError(
                        "line-too-long",
                        f"{path}, line {line:,}: the name's line has more than {LONGEST_HEADER:,} bytes",
                    )
                if found >= 0:
                    yield _LetterRun(line, 0, offset + stop - len(header), header, True)
                    line, header = line + 1, None
            else:
                found = data.find(b"\n>", position)
                stop = len(data) if found < 0 else found + 1
                run = _LetterRun(line, column, offset + position, data[position:stop], False)
                yield run
                line += run.content.count(b"\n")
                end = run.content.rfind(b"\n")
                column = column + stop - position if end < 0 else len(run.content) - end - 1
            position = stop
        offset += len(data)
    if header is not None:
        raise DataError(
            "sequence-missing", f"{path}, line {line:,}: the file ends after a name; its sequence is missing"
        )
    if offset == 0:
        raise DataError("empty-file", f"{path} is empty")


def _whole_ends(source: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, with no CR apart from its LF."""
    kept = b""
    for block in chain(source, (b"",)):
        data = kept + block
        kept = b"\r" if block and data.endswith(b"\r") else b""
        if data := data[: len(data) - len(kept)]:
            yield data


def _name(place: str, header: bytes) -> str:
    """The first word of a header, behind its '>' or '@'."""
    words = header[1:].split(maxsplit=1)
    if not words or header[1:2].isspace():
        raise DataError("name-missing", f"{place}: the sequence has no name after {chr(header[0])!r}")
    if not _NAME.fullmatch(words[0]):
        raise DataError("name-not-ascii", f"{place}: the name {words[0][:40]!r} must be printable ASCII")
    return words[0].decode()


def _wrong_letter(path: str | Path, run: _LetterRun) -> DataError:
    rows = [row.removesuffix(b"\r") for row in run.content.split(b"\n")]
    number = next(number for number, row in enumerate(rows) if row.translate(None, ALLOWED))
    letters = rows[number]
    wrong = letters.translate(None, ALLOWED)
    letter = chr(wrong[0])
    column = letters.index(wrong[:1]) + 1 + (run.column if number == 0 else 0)
    if wrong[0] in PROTEIN or wrong[0] in PROTEIN.lower():
        reason = "stands for an amino acid, not for a base; genomes are read, not proteins"
    elif letter == ">":
        reason = "stands inside a line; is the end of a line missing before it?"
    elif letter in "-.*":
        reason = "is a gap of an alignment; sequences have none"
    else:
        reason = "is not a letter of DNA: use A, C, G, T, N, U and IUPAC's R, Y, S, W, K, M, B, D, H, V, in either case"
    return DataError("bad-letter", f"{path}, line {run.line + number:,}, column {column:,}: {letter!r} {reason}")
