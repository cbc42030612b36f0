"""The output of predictions: standard output, or a file that can be continued after a kill.

An unfinished file has a record of everything that decides its contents next to it, FILE.resume, which is removed when
the file is whole. Lines are appended, so a kill leaves whole lines and perhaps a part of one. A resumed call compares
the record, and then every written row with its row of the input.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.files import read_json, write_json, writing
from asterism.system import lock
from asterism.training.data.records.formats import Format
from asterism.training.data.records.record import STDIN, Record, Source


def output_path(output: str | Path) -> Path:
    """The path of an output. Raises ConfigurationError or CheckpointError if it cannot be the name of a file."""
    path = Path(output)
    if str(output) == STDIN:
        raise ConfigurationError(
            "output-stdin", "output: '-' is not a file name; leave output out to write to standard output"
        )
    if not path.name or "\0" in str(output):
        raise ConfigurationError("file-name", f"output: {str(output)!r} cannot be the name of a file; choose another")
    with writing(path):  # a name that is too long
        path.exists()
    return path


def refuse_existing(path: Path | None) -> None:
    """Raise CheckpointError if a new output would replace an existing file that is not empty."""
    if path is not None and _is_kept(path) and path.exists() and (path.is_dir() or path.stat().st_size):
        remedy = "go on with it by --resume, or " if can_go_on(path) else ""
        raise CheckpointError("output-exists", f"output: {path} exists; {remedy}choose another name")


def can_go_on(path: str | Path) -> bool:
    """Whether an output was begun but not finished."""
    return resume_file(Path(path)).exists()


def _is_kept(path: Path) -> bool:
    """Whether a path is, or will be, a regular file. /dev/null and pipes are treated like stdout."""
    return path.is_file() or path.is_dir() or not path.exists()


def resume_file(path: Path) -> Path:
    """The path of the record next to an unfinished output."""
    return path.with_name(f"{path.name}.resume")


def compare_settings(path: Path, beside: Path, recorded: Any, settings: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the output `path` was begun with other `settings`, according to its record."""
    if not isinstance(recorded, dict) or recorded.keys() != settings.keys():
        raise CheckpointError("damaged-output-settings", f"{beside} is damaged: it must hold {', '.join(settings)}")
    for name, value in settings.items():
        if recorded[name] != value:
            short = not isinstance(value, dict) and len(f"{value}{recorded[name]}") < 40
            what = f"{name} {recorded[name]}, not {value}" if short else f"another {name}"
            raise CheckpointError("output-of-other-settings", f"resume: {path} was started with {what}")


def locked_output(file: BinaryIO, path: Path) -> BinaryIO:
    """Lock an output within the body, because two writers would write its rows twice. Raises CheckpointError if it is
    locked.
    """
    try:
        lock(file)
    except BlockingIOError:
        file.close()
        raise CheckpointError("output-in-use", f"output: {path} is being written by another process") from None
    return file


class PredictionOutput:
    """Writes rows with predictions to a new or continued file, or to stdout if `path` is None.

    `settings` decide the predictions. Nothing is written before the first row.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], format: Format) -> None:
        self.path = path
        self.settings = dict(settings)
        self.format = format
        self.file: BinaryIO | None = None
        self.resume_file = None if path is None or not _is_kept(path) else resume_file(path)
        self.resumed = False
        self.rows = 0
        self.size = 0  # bytes of the rows that were there before

    def matched(self, records: Iterator[Record], name: str) -> Iterator[tuple[Record, Record]]:
        """The rows of a continued output, each with its record of the input (called `name`).

        After the last one, new rows are appended. Raises CheckpointError if the file or its record belongs to another
        input, run or settings, or if the record is missing.
        """
        if self.path is None or self.resume_file is None:
            raise CheckpointError("resume-needs-output", "resume: only a file can be resumed; give --output")
        if not self.path.exists() or not (self.path.stat().st_size or self.resume_file.exists()):
            return
        self._check_settings(self.path, self.resume_file)
        self.resumed = True
        for written in self._written(self.path):
            record = next(records, None)
            if record is None or not self.format.is_made_of(written, record):
                raise CheckpointError(
                    "output-not-of-data", f"resume: {written.place} was not made from row {self.rows + 1:,} of {name}"
                )
            yield written, record
            self.size += len(written.raw.encode()) + (0 if self.rows else len(written.head.encode()))
            self.rows += 1

    def _check_settings(self, path: Path, beside: Path) -> None:
        if not beside.exists():
            raise CheckpointError(
                "output-finished",
                f"resume: {path} is finished, or not an output of Asterism: {beside.name} is not next to it",
            )
        compare_settings(path, beside, read_json(beside), self.settings)

    def _written(self, path: Path) -> Iterator[Record]:
        """The rows that are whole."""
        source = Source(path, whole_lines=True)
        try:
            for written in self.format.written_format.read(source):
                if not self.format.is_whole(written):
                    return
                yield written
        except DataError as error:
            if source.position < path.stat().st_size:  # else a row of several lines was cut off
                raise CheckpointError("unreadable-output", f"resume: the output cannot be read: {error}") from error

    def write(self, record: Record, prediction: Mapping[str, Any]) -> None:
        """Add a row; the first also opens the file."""
        file = self.file or self._open()
        head = "" if self.rows else self.format.head(record, prediction)
        with self._told():
            file.write(f"{head}{self.format.body(record, prediction)}".encode(errors="backslashreplace"))
        self.rows += 1

    def flush(self) -> None:
        """Flush the written rows, so that readers see them and a kill does not lose them."""
        if self.file is not None:
            with self._told():
                self.file.flush()

    def finish(self) -> None:
        """Complete the file after the last row: it is whole on disk, and its record is removed."""
        self.flush()
        if self.resume_file is not None:
            if self.file is not None:
                with self._told():
                    os.fsync(self.file.fileno())
            self.resume_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Flush the written rows, and release the file."""
        try:
            self.flush()
        finally:
            if self.file is not None and self.path is not None:
                with suppress(OSError):  # which tries again to write what `flush` could not
                    self.file.close()

    def _told(self) -> AbstractContextManager[None]:
        """Raise CheckpointError for errors of the disk. A closed stdout or pipe is no error."""
        return nullcontext() if self.path is None or self.resume_file is None else writing(self.path)

    def _open(self) -> BinaryIO:
        if self.path is None:
            self.file = sys.stdout.buffer
        elif self.resume_file is None:
            self.file = self.path.open("wb")
        elif self.rows:
            self.file = locked_output(self.path.open("r+b"), self.path)
            if not self.resume_file.exists():
                raise CheckpointError(
                    "output-finished", f"output: {self.path} was finished by another process just now"
                )
            self.file.truncate(self.size)
            self.file.seek(0, os.SEEK_END)
        else:
            self.file = self._begin(self.path, self.resume_file)
        return self.file

    def _begin(self, path: Path, beside: Path) -> BinaryIO:
        # Since the first look another process may have begun this file, or finished it: only an empty file, and one
        # without a whole row that is gone on with, may be begun. The record comes after the lock, lest it replace that
        # of the other process; who is killed in between leaves an empty file.
        with writing(path):
            file = locked_output(path.open("ab"), path)
        if path.stat().st_size and not (self.resumed and beside.exists()):
            file.close()
            raise CheckpointError("output-finished", f"output: another process has written {path}; choose another name")
        write_json(beside, self.settings)
        file.truncate(0)
        return file
