"""A long array that is appended piece by piece, and need not fit into memory.

Up to IN_MEMORY bytes are held in memory. A longer array goes into an unnamed file in the folder for temporary files
($TMPDIR), which is mapped into memory. The system reads its parts on demand and drops them again. The file ends with
the array, and with the process in any case.
"""

import tempfile
from typing import IO

import numpy as np

from asterism.errors import DataError

IN_MEMORY = 2**30
"""Bytes that are held in memory at most."""


class Appended:
    """int32 numbers, one piece after the other."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.held = 0
        self.file: IO[bytes] | None = None

    def append(self, numbers: np.ndarray) -> None:
        """The next numbers, integers [count] that int32 holds. Raises DataError if the disk takes no more."""
        self.parts.append(numbers.astype(np.int32, copy=False))
        self.held += self.parts[-1].nbytes
        if self.held > IN_MEMORY:
            self._write()

    def array(self) -> np.ndarray:
        """All of it: int32 [numbers], not to be written to. Nothing can be appended after it."""
        if self.file is None:
            return np.concatenate(self.parts or [np.zeros(0, dtype=np.int32)])
        self._write()
        with self.file:  # the map keeps what it needs
            return np.asarray(np.memmap(self.file, dtype=np.int32, mode="r"))

    def _write(self) -> None:
        folder = tempfile.gettempdir()
        try:
            self.file = self.file or tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it ends with this object
            for part in self.parts:
                self.file.write(np.ascontiguousarray(part).data)
            self.file.flush()
        except OSError as error:
            raise DataError(
                "temporary-folder",
                f"data: tokens that do not fit into memory are written to {folder}, which failed: {error.strerror};"
                " set TMPDIR to a folder with more room",
            ) from None
        self.parts, self.held = [], 0
