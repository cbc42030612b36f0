"""Bytes to train on: three disjoint splits of a corpus, and a hash that identifies it.

The default needs no download: the sources and documentation of the running Python's standard library. A folder is
split by file, about 90/5/5: a hash of a file's bytes chooses its split, so whole files are held out and copies of a
file are never on both sides. A single file is split by position, 90/5/5 (enwik8 and text8: 90, 5 and 5 million bytes,
as in the literature); a file of fixed-length records is split between records. Files of a folder are joined in order
of their paths, each followed by one NUL byte. Invariant: every byte of the corpus is in exactly one split, and equal
files give equal splits on every machine.

Up to IN_MEMORY bytes of documents are held in memory. A larger corpus stays on disk and is read on demand
(`stored.py`). Every member of a tar archive, alone or in a folder, counts as a file.

Documents are separated by NUL bytes. They are the files of a folder, or the lines of a JSONL file; any other file has
one document in each split.
"""

import bz2
import hashlib
import json
import lzma
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asterism.calls import is_whole
from asterism.errors import DataError
from asterism.files import replacing_file
from asterism.presence import require_data
from asterism.training.data.corpora.folders import list_folder, regular, split_of
from asterism.training.data.corpora.modality import Modality
from asterism.training.data.corpora.splits import SPLITS, ArrayPieces, Split, Splits
from asterism.training.data.corpora.stored import ARCHIVE, COMPRESSED, Stored, StoredValues, documents_in

STANDARD_LIBRARY = "python standard library"
_LIBRARY_SUFFIXES = {".py", ".txt", ".rst"}
_LIBRARY_EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
IN_MEMORY = 2**30
"""Bytes of documents that are held in memory at most."""
_HUTTER_BYTES = {"enwik8": 100_000_000, "text8": 100_000_000}


@dataclass(frozen=True, kw_only=True, eq=False)
class ByteSplits(Splits):
    """Three splits, each of uint8 [bytes]; `sha256` is of train, validation and test, one after the other.

    With `record_length` every split is a whole number of records; each record is a sequence of its own.
    """

    name: str
    sha256: str
    train: np.ndarray | StoredValues
    validation: np.ndarray | StoredValues
    test: np.ndarray | StoredValues
    record_length: int | None = None
    unit = "bytes"

    def split(self, name: Split) -> np.ndarray | StoredValues:
        """The bytes of one split, by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def pieces(self, split: Split) -> ArrayPieces:
        """A stream, or the records."""
        values, length = self.split(split), self.record_length
        bounds = None if length is None else np.arange(0, len(values) + 1, length, dtype=np.int64)
        return ArrayPieces(values, bounds, is_stream=length is None)

    def documents(self, split: Split) -> Iterator[str]:
        """The documents of one split, without those of white space only. Invalid UTF-8 becomes U+FFFD."""
        values = self.split(split)
        wholes = [values.tobytes()] if isinstance(values, np.ndarray) else map(bytes, values.documents)
        for document in (part for whole in wholes for part in whole.split(b"\0")):
            if document.strip():
                yield document.decode(errors="replace")


COMPRESSED_AT_ONCE = 2**20
"""Bytes that are read at a time to be compressed."""

LONGEST_PROMPT = 2**24
"""Bytes of a file that is continued."""


class Bytes(Modality):
    """Raw bytes: text and anything else. With `record_length`, a file consists of records of that many bytes."""

    name, unit = "bytes", "bytes"

    def __init__(self, record_length: int | None = None) -> None:
        holds = record_length is None or is_whole(record_length, 1, 2**63)
        self._require("record_length", record_length, holds, "must be at least 1")
        self.record_length = self.sequence_length = record_length
        self.is_stream = record_length is None

    def splits(self, path: str | None) -> ByteSplits:
        """As `load_corpus`."""
        return load_corpus(path, record_length=self.record_length)

    def texts(self, path: str | None) -> ByteSplits:
        """As `load_documents`."""
        return load_documents(path)

    def baselines(self, splits: Splits, split: Split, first: int, stop: int) -> dict[str, float]:
        """Bits per byte of zlib, bz2 and lzma, each at its strongest standard setting (9)."""
        pieces, every = splits.pieces(split), COMPRESSED_AT_ONCE
        return compressed(pieces.read(at, min(at + every, stop)).tobytes() for at in range(first, stop, every))

    def read_prompt(self, path: Path) -> np.ndarray:
        try:
            if (size := regular(path, what="prompt").stat().st_size) > LONGEST_PROMPT:
                raise DataError(
                    "prompt-too-long",
                    f"prompt: {path} has {size:,} bytes; a prompt may have at most {LONGEST_PROMPT:,}: cut it",
                )
            return np.frombuffer(path.read_bytes(), dtype=np.uint8)
        except OSError as error:
            raise DataError("unreadable-file", f"prompt: cannot read {path}: {error.strerror}") from error

    def write(self, sequences: Sequence[np.ndarray], output: Path) -> list[Path]:
        """One after the other, as they are."""
        with replacing_file(output) as unfinished:
            unfinished.write_bytes(b"".join(one.tobytes() for one in sequences))
        return [output]


def compressed(blocks: Iterable[bytes]) -> dict[str, float]:
    """Bits per byte that zlib, bz2 and lzma need for all blocks as one, each at its strongest standard setting (9)."""
    compressors: dict[str, Any] = {
        "zlib": zlib.compressobj(9),
        "bz2": bz2.BZ2Compressor(9),
        "lzma": lzma.LZMACompressor(preset=9),
    }
    sizes, size = dict.fromkeys(compressors, 0), 0
    for block in blocks:
        size += len(block)
        for name, one in compressors.items():
            sizes[name] += len(one.compress(block))
    return {name: 8 * (sizes[name] + len(one.flush())) / size for name, one in compressors.items()}


def load_corpus(path: str | Path | None = None, *, record_length: int | None = None) -> ByteSplits:
    """The corpus at `path` (a file or folder), or the standard library's sources for None.

    A single file is memory-mapped, not read. Raises DataError when data are missing, unreadable, empty or too few to
    fill all three splits, when records do not divide a file, and when a file named enwik8 or text8 is not whole.
    """
    if path is None:
        if record_length is not None:
            raise DataError(
                "records-need-file", "data: records need a file; give its path along with the record length"
            )
        return _from_files(STANDARD_LIBRARY, _library_folder(), _library_files())
    path = Path(path)
    try:
        if path.is_dir():
            if record_length is not None:
                raise DataError("records-single-file", f"data: {path} is a folder; records are read from a single file")
            return _from_files(str(path), path, [path / name for name in list_folder(path, any_name=True)])
        if path.name.lower().endswith((ARCHIVE, *COMPRESSED)) and path.is_file():
            if record_length is not None:
                raise DataError(
                    "records-single-file", f"data: {path} is an archive; records are read from a single file"
                )
            return _from_files(str(path), path.parent, [path])
        return _from_file(path, record_length)
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {error.filename or path}: {error.strerror}") from error


def load_documents(path: str | Path | None = None) -> ByteSplits:
    """As `load_corpus`, but in a file whose name ends in .jsonl every line is a document, and is split by its hash.

    A line is an object with the document under "text". Raises DataError, also for any other line, with its number.
    """
    if path is None or Path(path).suffix != ".jsonl" or not Path(path).is_file():
        return load_corpus(path)
    try:
        with open(path, "rb") as lines:
            return _from_documents(str(path), [_text_of(path, number, line) for number, line in enumerate(lines, 1)])
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {path}: {error.strerror}") from error


def _text_of(path: str | Path, number: int, line: bytes) -> bytes:
    """The document in one line of a JSONL file."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise DataError("not-json", f"data: {path} line {number} is not JSON: {error}") from None
    text = entry.get("text") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise DataError(
            "no-document", f'data: {path} line {number} has no document: an object {{"text": "..."}} is needed'
        )
    if not text.strip():
        raise DataError("empty-document", f"data: {path} line {number} holds an empty document; remove the line")
    if "\0" in text:
        raise DataError(
            "nul-character", f"data: {path} line {number} has a NUL character, which would end the document; remove it"
        )
    return text.encode(errors="replace")


def _from_file(path: Path, record_length: int | None) -> ByteSplits:
    require_data(path)
    size = regular(path).stat().st_size
    if size == 0:
        raise DataError("empty-file", f"data: {path} is empty")
    whole = _HUTTER_BYTES.get(path.name, size)
    if size != whole:
        raise DataError(
            "incomplete-download",
            f"data: {path} has {size:,} bytes, {path.name} has {whole:,}; is the download complete?",
        )
    unit = 1 if record_length is None else record_length
    if unit < 1 or size % unit:
        raise DataError(
            "record-length", f"data: {path} has {size:,} bytes, not a multiple of the record length {unit:,}"
        )
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    held_out = (size // unit) // 20 * unit
    first, second = size - 2 * held_out, size - held_out
    return _corpus(str(path), data[:first], data[first:second], data[second:], record_length)


def _from_files(name: str, folder: Path, files: Iterable[Path]) -> ByteSplits:
    if not (paths := sorted(files, key=lambda one: one.relative_to(folder).as_posix())):
        raise DataError("no-files", f"data: {name} holds no files")
    documents = list(documents_in(paths))
    if sum(document.size for document in documents) <= IN_MEMORY:
        return _from_documents(name, map(bytes, documents))
    homes: dict[Split, list[Stored]] = {split: [] for split in SPLITS}
    for document in documents:
        homes[split_of(document.digest(), SPLITS)].append(document)
    _refuse_few(name, homes)
    train, validation, test = (StoredValues(homes[split]) for split in SPLITS)
    return _corpus(name, train, validation, test, None)


def _from_documents(name: str, documents: Iterable[bytes]) -> ByteSplits:
    parts: dict[Split, list[bytes]] = {split: [] for split in SPLITS}
    for content in documents:
        parts[split_of(hashlib.sha256(content).digest(), SPLITS)].append(content + b"\0")
    _refuse_few(name, parts)
    train, validation, test = (np.frombuffer(b"".join(parts[split]), dtype=np.uint8) for split in SPLITS)
    return _corpus(name, train, validation, test, None)


def _refuse_few(name: str, parts: Mapping[Split, Sequence[Any]]) -> None:
    """Raise DataError if some split has no document. Documents of any size are never cut."""
    count = sum(map(len, parts.values()))
    if empty := [split for split in SPLITS if not parts[split]]:
        raise DataError(
            "too-few-documents",
            f"data: {name} has {count:,} documents, too few: their hashes put none into the {empty[0]} split; give"
            " more documents, or one file of bytes, which is cut into splits",
        )


def _corpus(
    name: str,
    train: np.ndarray | StoredValues,
    validation: np.ndarray | StoredValues,
    test: np.ndarray | StoredValues,
    record_length: int | None,
) -> ByteSplits:
    digest = hashlib.sha256()
    for split, data in zip(SPLITS, (train, validation, test), strict=True):
        if not len(data):
            raise DataError(
                "empty-split", f"data: {name} is too small to split: its {split} split is empty; give more data"
            )
        for block in [data.data] if isinstance(data, np.ndarray) else data.blocks():
            digest.update(block)
    return ByteSplits(
        name=name,
        sha256=digest.hexdigest(),
        train=train,
        validation=validation,
        test=test,
        record_length=record_length,
    )


def _library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _library_files() -> list[Path]:
    """Sources and text documentation of the standard library, without tests and installed packages."""
    folder = _library_folder()
    found = (path for path in folder.rglob("*") if path.suffix in _LIBRARY_SUFFIXES and path.is_file())
    return [path for path in found if not _LIBRARY_EXCLUDED & set(path.relative_to(folder).parts[:-1])]
