"""The structure of every corpus: three splits of pieces, and each piece is a row of 8-bit values.

A piece is one unit of reading: a picture, a clip, a block of a chromosome, or the whole split if bytes have no parts. A
value is a byte of text, one channel of a pixel, a sample in mu-law, or a base. Pieces are consecutive, so a value has
one index in its split. They are decoded only when they are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from asterism.errors import DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Values(Protocol):
    """Consecutive values: an array, a memory map, or an object that reads them from disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> np.ndarray: ...


class Border(NamedTuple):
    """The tokens of a border between two documents: the model predicts `end`, and reads `start` in its place."""

    end: int
    start: int


class Pieces(ABC):
    """One split.

    bounds     int64 [pieces + 1]: piece p holds the places bounds[p] .. bounds[p + 1] - 1, and none is empty
    labels     int64 [pieces], the class of each; None where the modality is not asked to tell classes apart
    is_stream  whether the split is one piece that begins in the middle of things, so that its first value is read and
               not predicted
    border     the tokens between documents that do not read one another; None where values have no such borders
    """

    bounds: np.ndarray
    labels: np.ndarray | None = None
    is_stream: bool = False
    border: Border | None = None

    def __len__(self) -> int:
        """The number of values of the split."""
        return int(self.bounds[-1])

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """The values at the places start .. stop - 1, all of one piece: uint8 [stop - start]."""

    def bytes_before(self, places: np.ndarray) -> np.ndarray:
        """The number of bytes of data before each place: int64, shaped like `places`. A value is a byte."""
        return places

    def place_of(self, size: int) -> int:
        """The first place with at least `size` bytes before it, or the end of the split."""
        return min(size, len(self))

    def turned(self, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """The values of a window as training reads it: unchanged, or turned into equivalent ones, such as the other
        strand.

        The generator belongs to this window of this step.
        """
        return values


class ArrayPieces(Pieces):
    """Pieces that lie one after the other in `values`, uint8 [values]."""

    def __init__(
        self,
        values: Values,
        bounds: np.ndarray | None = None,
        *,
        labels: np.ndarray | None = None,
        is_stream: bool = False,
    ) -> None:
        self.values, self.labels, self.is_stream = values, labels, is_stream
        self.bounds = np.array([0, len(values)], dtype=np.int64) if bounds is None else bounds

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.values[start:stop]


class Splits(ABC):
    """A corpus: three disjoint splits.

    name    what people call it: a path
    sha256  its identity: of the data, and of the settings by which they are read
    unit    what one value is, in the plural: "bytes", "values", "samples", "bases"
    notes   what a user should know about the data, one line each
    """

    name: str
    sha256: str
    unit: str
    notes: tuple[str, ...] = ()

    @abstractmethod
    def pieces(self, split: Split) -> Pieces:
        """One split, by name."""

    def documents(self, split: Split) -> Iterator[str]:
        """The documents of one split, as text. Raises DataError for data that are not text."""
        raise DataError("not-text", f"data: {self.name} holds {self.unit}, not text: it cannot be tokenized")

    def length(self, split: Split) -> int:
        """How many values a split has."""
        return len(self.pieces(split))

    def require(self, split: Split, context: int) -> Pieces:
        """A split, which must not be empty; a stream must hold a sequence of `context` values. Raises DataError
        otherwise.
        """
        pieces = self.pieces(split)
        if not pieces.is_stream and not len(pieces):
            raise DataError(
                "empty-split",
                f"data: the {split} split of {self.name} is empty; give more data, or choose the held-out data"
                " yourself",
            )
        needed = context + 1 if pieces.is_stream else 1
        if len(pieces) < needed:
            raise DataError(
                "pieces-too-short",
                f"data: the {split} split of {self.name} has {len(pieces):,} {self.unit}, but a sequence of context"
                f" {context:,} needs {needed:,}; give more data or a shorter context",
            )
        return pieces

    def record(self) -> dict[str, Any]:
        """Name, hash, and the values of each split."""
        return {"name": self.name, "sha256": self.sha256, self.unit: {split: self.length(split) for split in SPLITS}}
