"""Documents that stay on disk: files, and members of tar archives, read on demand.

So a corpus may be larger than memory. Archives are those that WebDataset reads and `tar` makes: each regular member is
a document. They must not be compressed, because a compressed archive has no random access. The input of a step is a
function of (seed, step), so a checkpoint stores no position in the data. Invariant: a file that changes while it is in
use is refused, never read.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asterism.errors import DataError
from asterism.system import state_of
from asterism.training.data.corpora.folders import regular

ARCHIVE = ".tar"
COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst")
"""How the names of archives end that cannot be read from the middle, in any case."""

_COMPRESSED_BYTES = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
"""How gzip, xz, bzip2 and zstd files begin, whatever their names say."""

_BLOCK = 2**22
"""Bytes that are hashed, or cut into documents, at a time."""


@dataclass(frozen=True)
class SourceFile:
    """A file, and its state when it was first read (`state_of`)."""

    path: Path
    state: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> "SourceFile":
        """Raises DataError for what is no file."""
        return cls(path, state_of(regular(path)))

    @property
    def size(self) -> int:
        return self.state[1]

    def read(self, start: int, size: int) -> bytes:
        """So many bytes from `start` on. Raises DataError if the file has changed."""
        try:
            with self.path.open("rb", buffering=0) as file:
                if state_of(file.fileno()) != self.state:
                    raise DataError(
                        "file-changed", f"data: {self.path} has changed since it was first read; start again"
                    )
                content = read_at(file.fileno(), start, size)
        except OSError as error:
            raise DataError("unreadable-file", f"data: cannot read {self.path}: {error.strerror}") from None
        if len(content) < size:
            raise DataError(
                "file-shorter", f"data: {self.path} ends at {start + len(content):,} bytes, before {start + size:,}"
            )
        return content


def read_at(file: int, start: int, size: int) -> bytes:
    """So many bytes of an open file from `start` on, fewer if it ends before.

    The file's own place, which forked processes share, is neither used nor moved.
    """
    parts, left = [], size
    while left and (part := os.pread(file, left, start + size - left)):  # one call gives 2 GiB at most
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Stored:
    """A document: `size` bytes of a source, from `start` on."""

    source: SourceFile
    start: int
    size: int

    def __bytes__(self) -> bytes:
        """Its content."""
        return self.source.read(self.start, self.size)

    def digest(self) -> bytes:
        """The SHA-256 of its content."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.digest()

    def blocks(self) -> Iterator[bytes]:
        """Its content, a few megabytes at a time."""
        for at in range(0, self.size, _BLOCK):
            yield self.source.read(self.start + at, min(_BLOCK, self.size - at))


def documents_in(files: Iterable[Path]) -> Iterator[Stored]:
    """The documents of files, in order: the regular members of an archive, else the file itself.

    Members whose names begin with a dot, or lie in a folder whose name does, are skipped, as such files are. Raises
    DataError for archives that are compressed or damaged.
    """
    for path in files:
        name = path.name.lower()
        if name.endswith(COMPRESSED):
            raise _compressed(path)
        source = SourceFile.of(path)
        if name.endswith(ARCHIVE):
            yield from _members(source)
        else:
            yield Stored(source, 0, source.size)


def _compressed(path: Path) -> DataError:
    return DataError(
        "compressed-archive",
        f"data: {path} is a compressed archive, which allows no random access: unpack it to a {ARCHIVE} file, or to a"
        " folder",
    )


def _members(source: SourceFile) -> Iterator[Stored]:
    try:
        with tarfile.open(source.path, mode="r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # it would keep every one
                if member.size < 0:  # the next member would be this one, for ever
                    raise DataError(
                        "damaged-archive", f"data: {source.path} is not a tar archive, or damaged: a size is negative"
                    )
                if archive.offset > source.size:  # where the next one would begin
                    raise DataError(
                        "damaged-archive",
                        f"data: {source.path} is not a tar archive, or damaged: {member.name:.200} should have"
                        f" {member.size:,} bytes, and the archive has {source.size:,}",
                    )
                if not member.isfile() or _is_hidden(member.name):
                    continue
                if member.issparse():
                    raise DataError(
                        "sparse-archive",
                        f"data: {source.path}: {member.name:.200} is stored with holes; pack it without",
                    )
                yield Stored(source, member.offset_data, member.size)
    except (tarfile.TarError, EOFError, ValueError) as error:
        if source.read(0, min(source.size, 8)).startswith(_COMPRESSED_BYTES):
            raise _compressed(source.path) from None
        raise DataError("damaged-archive", f"data: {source.path} is not a tar archive, or damaged: {error}") from None
    except MemoryError:  # tarfile reads the name of a member as long as its header says
        raise DataError(
            "damaged-archive", f"data: {source.path} is not a tar archive, or damaged: a name is longer than memory"
        ) from None
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {source.path}: {error.strerror or error}") from None


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != "." for part in name.split("/"))


@dataclass(frozen=True, eq=False)
class StoredValues:
    """The documents of a split, each followed by a NUL byte, like an array of uint8.

    A slice opens only the documents that it covers, and reads only the covered parts.
    """

    documents: Sequence[Stored]
    bounds: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        sizes = np.array([document.size + 1 for document in self.documents], dtype=np.int64)
        object.__setattr__(self, "bounds", np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, places: slice) -> np.ndarray:
        """uint8, for a slice without a step."""
        start, stop, step = places.indices(len(self))
        assert step == 1
        values = np.zeros(max(0, stop - start), dtype=np.uint8)
        number = int(np.searchsorted(self.bounds, start, side="right")) - 1
        at = start
        while at < stop:
            document, begin = self.documents[number], int(self.bounds[number])
            first, past = at - begin, min(stop - begin, document.size)
            if first < past:
                content = document.source.read(document.start + first, past - first)
                values[at - start : at - start + len(content)] = np.frombuffer(content, dtype=np.uint8)
            number += 1
            at = int(self.bounds[number])
        return values

    def blocks(self) -> Iterator[bytes]:
        """All of it, a few megabytes at a time."""
        for document in self.documents:
            yield from document.blocks()
            yield b"\0"
