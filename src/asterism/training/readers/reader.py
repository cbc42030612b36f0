"""The definition of a reader: it chooses which stretches of a document's tokens share a row of the model's input.

    document -> rows -> what the model says of each -> (the rows to read next -> ...) -> one answer

A reader is an immutable value and equal to its text, such as "windows(length=512, stride=128)". It depends neither on
the tokenizer nor on the model. The task makes rows of the stretches, and makes one answer of the model's results.

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
"""The part of a document in one row of the model's input: stretches in the document's order that do not touch."""


@dataclass(frozen=True, eq=False)
class Document:
    """A document as a reader sees it.

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

    `length` is the most tokens of a row, including the question and special tokens; None means the run's length.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """The version; it is raised when the reader makes other rows of the same documents than before."""
    cuts: ClassVar[bool] = False
    """Whether only the first tokens of a document are read, as many as fit into a row."""
    chooses: ClassVar[bool] = False
    """Whether it chooses the stretches of a document from which the answer is made."""

    length: int | None = None

    def __post_init__(self) -> None:
        self._require("length", self.length is None or is_whole(self.length, 1), "must be a whole number above 0")

    def __str__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in given.items())})"

    @abstractmethod
    def rows(self, document: Document) -> list[Row]:
        """The rows of a document, at least one. The document has at least one token, and room for at least `needs`."""

    def training_rows(self, document: Document) -> list[Row]:
        """The rows on which a model is trained for this reader."""
        return self.rows(document)

    @property
    def pools_by(self) -> str | None:
        """How the results of several rows become one answer, for a reader that pools."""
        return None

    @property
    def learns(self) -> bool:
        """Whether it requires documents with a `scorer`, which is learned from training documents."""
        return False

    @property
    def needs(self) -> int:
        """The number of tokens of a document for which a row needs room."""
        return 1

    def refusal(self, document: Document) -> str | None:
        """The reason why this reader cannot read a document, or None."""
        return None

    def settled(self, pools: Sequence[str]) -> Self:
        """The same reader as stored by a task that pools by one of `pools`; the length of its rows is the task's.

        Raises ConfigurationError if it pools in another way.
        """
        return replace(self, length=None)

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigurationError(
                "reader-argument", f"reader: {self.name}: {name} {rule}, got {shown(getattr(self, name))}"
            )


def windows_of(tokens: int, size: int, shared: int) -> list[Stretch]:
    """Consecutive windows of `size` tokens to the end of the document, which overlap by `shared` tokens.

    The last may be shorter. `shared` is less than `size`.
    """
    return [(begin, min(begin + size, tokens)) for begin in range(0, max(1, tokens - shared), size - shared)]


def together(windows: Sequence[Stretch]) -> Row:
    """Windows as the stretches of one row: in the document's order, overlaps kept once, touching ones joined."""
    row: list[Stretch] = []
    for begin, end in sorted(windows):
        if row and begin <= row[-1][1]:
            row[-1] = (row[-1][0], max(end, row[-1][1]))
        else:
            row.append((begin, end))
    return tuple(row)
