"""Sequences that were drawn for files that are not written yet, so that a stop loses one batch of them at most.

They lie beside the output, in FILE.resume: one line of JSON that says what decides them, then batch after batch, uint8,
each behind its SHA-256. Who goes on compares the line; what was cut off, or is not what its sum says, is drawn again.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from asterism.errors import CheckpointError
from asterism.files import LARGEST, writing
from asterism.training.ask.prediction_output import compare_settings, locked_output, resume_file

_SUM = hashlib.sha256().digest_size


class Drawn:
    """The batches of one output. Where `resume`, those that are there come first; nothing is written before `add`.

    `settings` decide what is drawn. Raises CheckpointError for an output that was begun, unless it is gone on with, and
    for one that was begun with others, or is being written by another process.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.output, self.path, self.settings = output, resume_file(output), dict(settings)
        self.file: BinaryIO | None = None
        if not self.path.exists() or not self.path.stat().st_size:
            return
        if not resume:
            raise CheckpointError(
                "output-begun", f"output: {output} is unfinished; resume it with --resume, or choose another name"
            )
        self.file = locked_output(self.path.open("r+b"), output)
        try:
            self._compare(self.file.readline(LARGEST))
        except CheckpointError:
            self.close()
            raise

    def _compare(self, line: bytes) -> None:
        try:
            recorded = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                "damaged-file", f"{self.path} is damaged: {error}; remove it and start again"
            ) from None
        compare_settings(self.output, self.path, recorded, self.settings)

    def batch(self, rows: int, length: int) -> np.ndarray | None:
        """The next batch, uint8 [rows, length], if it was drawn before; else it is to be drawn, and given to `add`."""
        if self.file is None:
            return None
        at = self.file.tell()
        digest, values = self.file.read(_SUM), self.file.read(rows * length)
        if len(values) == rows * length and hashlib.sha256(values).digest() == digest:
            return np.frombuffer(values, dtype=np.uint8).reshape(rows, length)
        self.file.seek(at)
        return None

    def add(self, batch: np.ndarray) -> None:
        """Keep a batch that was drawn, uint8 [sequences, values], behind those before it."""
        values = batch.tobytes()
        with writing(self.path):
            self.file = self.file or self._begin()
            self.file.write(hashlib.sha256(values).digest() + values)
            self.file.truncate()
            self.file.flush()

    def _begin(self) -> BinaryIO:
        file = locked_output(self.path.open("a+b"), self.output)
        if file.tell():
            file.close()
            raise CheckpointError(
                "output-in-use", f"output: another process has started {self.output}; choose another name"
            )
        file.write(json.dumps(self.settings).encode() + b"\n")
        return file

    def remove(self) -> None:
        """The output is written."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the file."""
        if self.file is not None:
            with suppress(OSError):  # which tries again to write what `add` could not
                self.file.close()
