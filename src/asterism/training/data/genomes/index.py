"""The index of a file of sequences, stored in the user's cache so that the file need not be read again.

An entry holds an index as samtools makes it (`sequences.fai`), what was counted and hashed (`contents.json`), and, for
files that are compressed, irregular or no FASTA, their letters as regular FASTA (`sequences.fasta`). Invariant: an
entry belongs to one state of one file (path, size, time of change), appears whole and is never changed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from asterism.errors import CheckpointError, DataError, shown
from asterism.files import replacing, write_json
from asterism.system import alone, sha256_of, state_of
from asterism.training.data.genomes.fasta import FastaLayout, SequenceHeader, read_fasta, read_fastq
from asterism.training.data.genomes.genbank import read_genbank_sequences
from asterism.training.data.genomes.letters import translation
from asterism.training.data.genomes.unpacking import blocks, compression_of

GRID = 1 << 17
"""Letters of a block: the grid on which letters are hashed, for splits."""

MOST_SEQUENCES = 1_000_000
"""Sequences of a file; their names and places are held in memory."""

_VERSION = 3
_UPPER = translation("upper")
_COMMON = b"ACGTNacgtn"


@dataclass(frozen=True)
class Contents:
    """The facts about a file of sequences, without the letters.

    sha256   of names and letters as they stand, whatever the lines and the compression
    buckets  for each block of `GRID` letters of each sequence a number from 0 to 99, by the hash of its bases
    unknown  for each block how many of its letters are none of A, C, G, T
    several, uracil   how many letters stand for several bases, are U
    """

    sha256: str
    buckets: list[int]
    unknown: list[int]
    several: int
    uracil: int


class IndexLine(NamedTuple):
    """A sequence in the index: `length` letters from byte `offset` on, `bases` in each line of `width` bytes."""

    length: int
    offset: int
    bases: int
    width: int

    def byte(self, letter: int) -> int:
        """Where a letter stands in the file. Of lines "ACGT\\n" from byte 3 on, letter 5 is byte 3 + 1 * 5 + 1."""
        line, column = divmod(letter, self.bases)
        return self.offset + line * self.width + column


@dataclass(frozen=True)
class Indexed:
    """A regular FASTA file, its index as a file and by the names of sequences, and its contents."""

    fasta: Path
    index: Path
    places: Mapping[str, IndexLine]
    contents: Contents


def index_of(path: str | Path) -> Indexed:
    """The entry of a file, which is made if it does not exist.

    Raises DataError for a file that is not FASTA, FASTQ or GenBank, for more than `MOST_SEQUENCES`, and for a full
    disk.
    """
    path = Path(path)
    compression_of(path)  # what is no file at all is refused before anything is made
    try:
        before, folder = state_of(path), _folder(path)
        if (found := _kept(path, folder)) is not None:
            return found
        with alone(folder.parent / "making.lock"):  # those that a launcher starts at once would all read the file
            if (found := _kept(path, folder)) is not None:  # another process was faster
                return found
            _make(path, folder)
        if state_of(path) != before:
            shutil.rmtree(folder, ignore_errors=True)
            raise DataError("file-changed", f"{path} changed while it was read; start again when it is complete")
        _forget_earlier(folder)
    except OSError as error:
        raise DataError(
            "index-not-kept",
            f"data: the index of {path} cannot be stored: {error.strerror or error}; set ASTERISM_CACHE to a folder"
            " that you can write to",
        ) from None
    except CheckpointError as error:
        raise DataError("index-not-kept", f"{error} (ASTERISM_CACHE sets the folder of the index)") from None
    if (found := _kept(path, folder)) is None:
        raise DataError("index-removed", f"data: the index of {path} in {folder} was removed while it was being opened")
    return found


def _make(path: Path, folder: Path) -> None:
    """Read the file once, or twice if its lines turn out to be irregular, and write its entry."""
    with replacing(folder) as temporary:
        read, recorder = _reader(path), None
        if read is read_fasta and not compression_of(path):
            recorder = _Recorder()
            recorder.record(read(path))
        if recorder is None or not all(layout.is_regular for layout in recorder.layouts):
            with (temporary / "sequences.fasta").open("wb") as copy:
                recorder = _Recorder(copy)
                recorder.record(read(path))
        rows = zip(recorder.names, recorder.layouts, strict=True)
        index = temporary / "sequences.fai"
        index.write_text("".join(f"{n}\t{at.length}\t{at.offset}\t{at.bases}\t{at.width}\n" for n, at in rows))
        record = {"version": _VERSION, "index_sha256": sha256_of(index).hex(), **vars(recorder.contents())}
        write_json(temporary / "contents.json", record)


def _reader(path: Path) -> Callable[[Path], Iterator[SequenceHeader | bytes]]:
    """What reads a file, by its first bytes, of which a block may have only one."""
    head = b""
    for block in blocks(path):
        head += block
        if len(head) >= len(b"LOCUS"):
            break
    if head.startswith(b"@"):
        return read_fastq
    return read_genbank_sequences if head.startswith(b"LOCUS") else read_fasta


def _kept(path: Path, folder: Path) -> Indexed | None:
    """The entry in a folder; None if there is none, one whose index is damaged, or one of another version."""
    try:
        copy, index = folder / "sequences.fasta", folder / "sequences.fai"
        record: dict[str, Any] = json.loads((folder / "contents.json").read_text())
        if record.pop("version") != _VERSION or record.pop("index_sha256") != sha256_of(index).hex():
            return None
        cells = (line.split("\t") for line in index.read_text().splitlines())
        places = {name: IndexLine(*map(int, numbers)) for name, *numbers in cells}
        return Indexed(copy if copy.exists() else path, index, places, Contents(**record))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _folder(path: Path) -> Path:
    """Where the entry of a file in its present state is kept."""
    names = (os.fsencode(os.path.realpath(path)), repr(state_of(path)).encode())
    return _place() / "-".join(hashlib.sha256(one).hexdigest()[:24] for one in names)


def _place() -> Path:
    """The folder of all entries, at the first of the user's caches that can be written. Raises OSError."""
    from asterism.kernels.cpu.cache import places, require_private  # with torch

    refusals: list[OSError] = []
    for place in places():
        try:
            folder = place / "genomes"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = Path(os.path.realpath(folder))
            require_private(folder)
            return folder
        except OSError as error:
            refusals.append(error)
    raise refusals[0] if refusals else OSError("there is no folder for it")


def _forget_earlier(folder: Path) -> None:
    """Remove what is kept of earlier states of the same file."""
    file = folder.name.partition("-")[0]
    for other in folder.parent.glob(f"{file}-*"):
        if other.name != folder.name:
            shutil.rmtree(other, ignore_errors=True)


@dataclass
class _Recorder:
    """Counts and hashes what a file holds, and writes it out as regular FASTA if there is a file to write to.

    layouts  where the sequences stand in the file that is read, or in the one that is written
    """

    copy: IO[bytes] | None = None
    names: dict[str, str] = field(default_factory=dict)
    layouts: list[FastaLayout] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    several: int = 0
    uracil: int = 0

    def __post_init__(self) -> None:
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._place, self._name, self._length, self._known = "", "", 0, 0

    def contents(self) -> Contents:
        """What was found."""
        digest = self._whole.hexdigest()
        return Contents(digest, self.buckets, self.unknown, self.several, self.uracil)

    def record(self, sequences: Iterable[SequenceHeader | bytes]) -> None:
        """All sequences of a file. Raises DataError, also for a name that comes twice and one without letters."""
        for part in sequences:
            if isinstance(part, bytes):
                self._add(part)
            else:
                if self.names:
                    self._end()
                self._begin(*part)
        self._end()

    def _begin(self, place: str, name: str, offset: int) -> None:
        if name in self.names:
            raise DataError("name-twice", f"{place}: the name {shown(name)} was given before, in {self.names[name]}")
        if len(self.names) == MOST_SEQUENCES:
            raise DataError(
                "too-many-sequences", f"{place}: a file may hold at most {MOST_SEQUENCES:,} sequences; divide it"
            )
        self.names[name] = place.rpartition(", ")[2]
        self._place, self._name, self._length, self._known = place, name, 0, 0
        header = f">{name}\n".encode()
        self._whole.update(header)
        if self.copy is not None:
            self.copy.write(header)
            offset = self.copy.tell()
        self.layouts.append(FastaLayout(offset))

    def _add(self, raw: bytes) -> None:
        letters = raw.translate(None, b"\r\n")
        self._whole.update(letters)
        self._count(letters)
        upper = letters.translate(_UPPER)
        done = 0
        while done < len(upper):
            part = upper[done : done + GRID - self._length % GRID]
            self._block.update(part)
            self._known += len(part) - part.count(b"N")
            self._length += len(part)
            done += len(part)
            if self._length % GRID == 0:
                self._close_block(GRID)
        if self.copy is not None:
            self.copy.write(letters)
        self.layouts[-1].add(raw if self.copy is None else letters)

    def _end(self) -> None:
        if not self._length:
            raise DataError("empty-sequence", f"{self._place}: the sequence {shown(self._name)} has no letters")
        if self._length % GRID:
            self._close_block(self._length % GRID)
        self._whole.update(b"\n")
        if self.copy is not None:
            self.copy.write(b"\n")
            self.layouts[-1].add(b"\n")
        self.layouts[-1].finish()

    def _count(self, letters: bytes) -> None:
        if others := letters.translate(None, _COMMON):
            self.uracil += others.upper().count(b"U")
            self.several += len(others.translate(None, b"Uu"))

    def _close_block(self, size: int) -> None:
        self.buckets.append(int.from_bytes(self._block.digest()[:8], "big") % 100)
        self.unknown.append(size - self._known)
        self._block, self._known = hashlib.sha256(), 0
