"""What a reader is: which stretches of a document's tokens stand together in a row that the model reads.

    document -> rows -> what the model says of each -> (the rows to read next -> ...) -> one answer

A reader is an immutable value; it is its text, such as "windows(length=512, stride=128)". It knows neither tokenizer
nor model: the task makes rows of the stretches, and one answer of what the model says about the rows.

Invariant: the rows of a document are a function of the document and the reader alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from asterism.calls import is_whole
from asterism.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from asterism.training.readers.learned import Scorer

Stretch = tuple[int, int]
"""Tokens of a document: the number of the first, and that after the last."""
Row = tuple[Stretch, ...]
"""What a row of the model's input holds of a document: stretches in the document's order that do not touch."""


@dataclass(frozen=True, eq=False)
class Document:
    """What a reader sees of a document.

    tokens    how many it has
    room      how many of them a row has place for, beside the question and special tokens
    text      its text; "" for words that are given one by one, which no ranking reads
    starts    int [tokens]: the character of the text at which each token begins
    question  what is asked about it; None if nothing is
    scorer    what has learned which of its windows are wanted, for a reader that `learns`
    """

    tokens: int
    room: int
    text: str
    starts: np.ndarray
    question: str | None
    scorer: "Scorer | None" = None


@dataclass(frozen=True)
class Reader(ABC):
    """One way to read a document.

    `length` is how many tokens a row has at most, the question and special tokens included; None: as many as the run.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised where it makes other rows of the same documents than it made before."""
    cuts: ClassVar[bool] = False
    """Whether no more of a document is read than its first tokens that fit into a row."""
    chooses: ClassVar[bool] = False
    """Whether it chooses the stretches of a document that the answer is made of."""

    length: int | None = None

    def __post_init__(self) -> None:
        self._require("length", self.length is None or is_whole(self.length, 1), "must be a whole number above 0")

    def __str__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in given.items())})"

    @abstractmethod
    def rows(self, document: Document) -> list[Row]:
        """What is read of a document, one row at least. Its tokens and its room are 1 at least, room `needs`."""

    def training_rows(self, document: Document) -> list[Row]:
        """What a model is trained on to be asked by this reader."""
        return self.rows(document)

    @property
    def pools_by(self) -> str | None:
        """How what is said about several rows becomes one answer, for a reader that does so."""
        return None

    @property
    def learns(self) -> bool:
        """Whether it reads only documents with a `scorer`, which learned from training documents."""
        return False

    @property
    def needs(self) -> int:
        """How many tokens of a document a row must have place for."""
        return 1

    def refusal(self, document: Document) -> str | None:
        """Why this reader cannot read a document, if it cannot."""
        return None

    def settled(self, pools: Sequence[str]) -> Self:
        """The same reader as a task that pools by one of `pools` keeps it: the length of its rows is the task's.

        Raises ConfigurationError if it pools in another way.
        """
        return replace(self, length=None)

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigurationError(
                "reader-argument", f"reader: {self.name}: {name} {rule}, got {shown(getattr(self, name))}"
            )


def windows_of(tokens: int, size: int, shared: int) -> list[Stretch]:
    """Windows of `size` tokens that follow each other, each sharing `shared` tokens with the one before, to the end.

    The last may be shorter. `shared` is less than `size`.
    """
    return [(begin, min(begin + size, tokens)) for begin in range(0, max(1, tokens - shared), size - shared)]


def together(windows: Sequence[Stretch]) -> Row:
    """Windows as the stretches of one row: in the document's order, what they share once, neighbours joined."""
    row: list[Stretch] = []
    for begin, end in sorted(windows):
        if row and begin <= row[-1][1]:
            row[-1] = (row[-1][0], max(end, row[-1][1]))
        else:
            row.append((begin, end))
    return tuple(row)
