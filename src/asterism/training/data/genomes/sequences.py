"""Sequences of a file or a folder with random access: read any stretch of any sequence.

`index.py` has read each file once, so that every letter is known to be one; a stretch is then found by arithmetic, in
the file itself or in what was unpacked of it. Places are 0-based and half-open, whatever the formats count.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from asterism.errors import DataError, nearest, shown
from asterism.system import state_of
from asterism.training.data.corpora.folders import list_folder
from asterism.training.data.corpora.stored import read_at
from asterism.training.data.genomes.index import Contents, Indexed, index_of
from asterism.training.data.genomes.letters import UNKNOWN, Masked, reverse_complement, translation

SUFFIXES = (".fa", ".fasta", ".fna", ".ffn", ".frn", ".fas", ".mpfa", ".fq", ".fastq", ".gb", ".gbk", ".gbff")
"""What names of sequences in a folder end with, perhaps before .gz, .bgz or .xz; other files are left alone."""


class SequenceFile:
    """The sequences of one FASTA, FASTQ or GenBank file.

    lengths   how many letters each sequence has, by name, in the order of the file
    contents  what was counted and hashed
    """

    def __init__(self, path: str | Path, masked: Masked = "upper") -> None:
        """Raises DataError for a file that cannot be read as sequences."""
        self.path = Path(path)
        self._table = translation(masked)
        self._indexed: Indexed = index_of(self.path)
        self.contents: Contents = self._indexed.contents
        try:
            self._file = self._indexed.fasta.open("rb", buffering=0)  # open until the end, and so read on if removed
        except OSError as error:
            raise DataError("unreadable-file", f"data: cannot read {self._indexed.fasta}: {error.strerror}") from None
        weakref.finalize(self, self._file.close)
        self._state = state_of(self._file.fileno())
        self.lengths: Mapping[str, int] = {name: place.length for name, place in self._indexed.places.items()}

    @property
    def notes(self) -> list[str]:
        """A note on what replaced letters other than A, C, G, T and N; empty if there are none."""
        said = []
        if self.contents.several:
            said.append(f"{self.path}: {self.contents.several:,} letters stand for several bases (IUPAC) and become N")
        if self.contents.uracil:
            said.append(f"{self.path}: {self.contents.uracil:,} letters are U and become T")
        return said

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """The letters start .. stop - 1 of a sequence, A, C, G, T, N: uint8 [stop - start].

        Raises DataError for a name that is not there and a stretch that is not within the sequence.
        """
        length = self.length(name)
        if not 0 <= start <= stop <= length:
            raise DataError(
                "interval-outside",
                f"{self.path}: {name}:{start:,}-{stop:,} is not within the sequence's {length:,} letters",
            )
        if start == stop:
            return np.zeros(0, dtype=np.uint8)
        place, file = self._indexed.places[name], self._file.fileno()
        first = place.byte(start)
        letters = read_at(file, first, place.byte(stop - 1) + 1 - first).translate(self._table, b"\r\n")
        if len(letters) != stop - start or state_of(file) != self._state:
            raise DataError("file-changed", f"{self.path} has changed since it was opened; start again")
        return np.frombuffer(bytearray(letters), dtype=np.uint8)

    def length(self, name: str) -> int:
        """How many letters a sequence has. Raises DataError for a name that is not there, with the nearest."""
        if name not in self.lengths:
            raise DataError(
                "unknown-sequence", f"{self.path} has no sequence {shown(name)}.{nearest(name, self.lengths)}"
            )
        return self.lengths[name]


class Sequences:
    """The sequences of one or several files; each name occurs once."""

    def __init__(self, files: Sequence[SequenceFile]) -> None:
        """Raises DataError for a name that two files have."""
        self.files = tuple(files)
        self._file_of: dict[str, SequenceFile] = {}
        for file in self.files:
            for name in file.lengths:
                if name in self._file_of:
                    raise DataError(
                        "name-twice", f"{file.path}: the name {shown(name)} is also one of {self._file_of[name].path}"
                    )
                self._file_of[name] = file

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of the files."""
        return tuple(self._file_of)

    @property
    def notes(self) -> list[str]:
        """What became of letters other than A, C, G, T and N, file by file."""
        return [note for file in self.files for note in file.notes]

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def length(self, name: str) -> int:
        """How many letters a sequence has. Raises DataError for a name that is not there, with the nearest."""
        return self._file(name).length(name)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """The letters start .. stop - 1 of a sequence, A, C, G, T, N: uint8 [stop - start]. Raises DataError."""
        return self._file(name).read(name, start, stop)

    def read_padded(self, name: str, start: int, stop: int, strand: str = "+") -> np.ndarray:
        """As `read`, uint8 [stop - start], but beyond the ends of the sequence is N, and "-" is the other strand.

        Raises DataError for a name that is not there, and a stretch that ends before it begins.
        """
        if start > stop:
            raise DataError("interval-order", f"{name}:{start:,}-{stop:,} ends before it begins")
        first, last = max(0, min(start, stop)), min(stop, self.length(name))
        letters = np.full(stop - start, UNKNOWN, dtype=np.uint8)
        if first < last:
            letters[first - start : last - start] = self.read(name, first, last)
        return reverse_complement(letters) if strand == "-" else letters

    def _file(self, name: str) -> SequenceFile:
        if name not in self._file_of:
            where = self.files[0].path if len(self.files) == 1 else self.files[0].path.parent
            raise DataError("unknown-sequence", f"{where} has no sequence {shown(name)}.{nearest(name, self._file_of)}")
        return self._file_of[name]


def open_sequences(path: str | Path, masked: Masked = "upper") -> Sequences:
    """The sequences of a FASTA, FASTQ or GenBank file, or of all of a folder; plain, gzip, bgzip or xz.

    `masked` says what lower case becomes: the base itself ("upper"), or N. Raises DataError for a file without
    sequences, and for a folder without such files.
    """
    path = Path(path)
    if not os.path.isdir(path):
        return Sequences([SequenceFile(path, masked)])
    return Sequences([SequenceFile(file, masked) for file in files_below(path)])


def files_below(folder: Path) -> list[Path]:
    """The files of sequences below a folder, by name, in the order of their paths; names with a dot are passed over.

    Raises DataError if there are none.
    """
    found = []
    for name in list_folder(folder):
        if name.lower().removesuffix(".gz").removesuffix(".bgz").removesuffix(".xz").endswith(SUFFIXES):
            found.append(folder / name)
    if not found:
        raise DataError(
            "no-sequences", f"data: {folder} holds no sequences: files whose names end in {', '.join(SUFFIXES)}"
        )
    return found
