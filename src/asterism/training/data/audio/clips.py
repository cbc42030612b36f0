"""A folder of recordings as a corpus: every file is a piece, and is decoded when it is read, not before."""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from asterism.errors import DataError
from asterism.system import sha256_of
from asterism.training.data.audio.decoding import Recording, inspect, read_codes
from asterism.training.data.corpora.folders import list_folder, split_folder
from asterism.training.data.corpora.splits import SPLITS, Pieces, Split, Splits

SUFFIXES = (".wav", ".wave", ".flac", ".ogg", ".oga")
"""How the names of recordings end, in any case."""

BLOCKS_KEPT = 256
"""So many blocks of a split stay in memory, those that were read last: at most 64 MiB."""


class Clips(Pieces):
    """Recordings at one rate, in mu-law, one after the other."""

    def __init__(self, recordings: Sequence[Recording], rate: int, labels: np.ndarray | None = None) -> None:
        self.recordings, self.rate, self.labels = recordings, rate, labels
        lengths = [recording.length(rate) for recording in recordings]
        self.bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._block = lru_cache(maxsize=BLOCKS_KEPT)(self._decode)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Raises DataError for a file that cannot be decoded, or is no longer what it was."""
        home = int(np.searchsorted(self.bounds, start, side="right")) - 1
        first, last, size = start - self.bounds[home], stop - self.bounds[home], self._size(home)
        blocks = range(int(first // size), int(-(-last // size)))
        values = np.concatenate([self._block(home, block) for block in blocks] or [np.zeros(0, dtype=np.uint8)])
        return values[first - blocks.start * size : last - blocks.start * size]

    def _size(self, home: int) -> int:
        return self.recordings[home].block(self.rate)

    def _decode(self, home: int, block: int) -> np.ndarray:
        recording, size = self.recordings[home], self._size(home)
        stop = min((block + 1) * size, recording.length(self.rate))
        try:
            return read_codes(recording, self.rate, block * size, stop)
        except (ValueError, OSError) as error:
            raise refused(recording.path, error) from None


class AudioSplits(Splits):
    """The three splits of a folder; `classes` are the names of its classes, where they are told apart."""

    unit = "samples"

    def __init__(self, path: str | None, rate: int, classes: int | None, settings: str) -> None:
        if path is None:
            raise DataError("recordings-folder", "data: give a folder of recordings")
        if os.path.isfile(path):
            raise DataError("recordings-folder", f"data: {path} is a file; give the folder that holds the recordings")
        self.name = path
        there = list_folder(Path(path))
        names = [name for name in there if name.lower().endswith(SUFFIXES)]
        if not names:
            raise DataError("no-recordings", f"data: {path} holds no recordings: no name ends in {', '.join(SUFFIXES)}")
        recordings: dict[Path, Recording] = {}
        folder = split_folder(Path(path), names, lambda file: _digest(file, recordings))
        self.classes = folder.classes if classes is not None else ()
        if classes not in (None, len(folder.classes)):
            raise DataError(
                "classes-differ",
                f"data: {path} has {len(folder.classes)} class folders, but {settings} has {classes} classes",
            )
        self.sha256 = folder.identity(settings)
        self._splits = {
            split: Clips(
                [recordings[Path(path) / name] for name in files.names],
                rate,
                None if classes is None else files.labels,
            )
            for split, files in folder.splits.items()
        }
        if left := [name for name in there if not name.lower().endswith(SUFFIXES)]:
            self.notes = (f"{len(left):,} files are left out, which are no recordings, such as {left[0]}",)

    def pieces(self, split: Split) -> Clips:
        """Every piece is a recording."""
        return self._splits[split]

    def record(self) -> dict[str, Any]:
        """Recordings are counted, too; classes by their names."""
        clips = {split: len(self.pieces(split).recordings) for split in SPLITS}
        return super().record() | {"clips": clips} | ({"classes": list(self.classes)} if self.classes else {})


def refused(path: Path, error: Exception, *, what: str = "data") -> DataError:
    """What is said of a file that cannot be read."""
    reason = error if isinstance(error, ValueError) else f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return DataError("bad-recording", f"{what}: {path} {reason}")


def _digest(path: Path, recordings: dict[Path, Recording]) -> bytes:
    """The SHA-256 of a recording that can be read, which is added to `recordings`."""
    try:
        recordings[path] = inspect(path)
        return sha256_of(path)
    except (ValueError, OSError) as error:
        raise refused(path, error) from None
