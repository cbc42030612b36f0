"""Store drawn sequences until their files are written, so that a stop loses at most one batch.

They are stored next to the output in FILE.resume. Its first line is JSON with everything that decides the sequences.
Then follow the batches, uint8, each after its SHA-256. A resumed run compares the line. Batches that were cut off or do
not match their sum are drawn again.
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
    """The batches of one output. With `resume`, stored batches come first. Nothing is written before `add`.

    `settings` decide what is drawn. Raises CheckpointError for an output that was begun, unless it is resumed, that was
    begun with other settings, or that another process is writing.
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
        """The next stored batch, uint8 [rows, length], or None if it has to be drawn and passed to `add`."""
        if self.file is None:
            return None
        at = self.file.tell()
        digest, values = self.file.read(_SUM), self.file.read(rows * length)
        if len(values) == rows * length and hashlib.sha256(values).digest() == digest:
            return np.frombuffer(values, dtype=np.uint8).reshape(rows, length)
        self.file.seek(at)
        return None

    def add(self, batch: np.ndarray) -> None:
        """Append a drawn batch, uint8 [sequences, values], to the stored ones."""
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
        """Remove the file, because the output is written."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the file."""
        if self.file is not None:
            with suppress(OSError):  # which tries again to write what `add` could not
                self.file.close()
