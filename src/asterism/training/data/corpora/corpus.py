"""The interface of all kinds of data, so that a run does not depend on the kind.

Invariant: the sequences of a step are a function of (seed, step), and two corpora with one hash are the same data.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from asterism.training.data.corpora.splits import Split

Sequences = TypeVar("Sequences")


class Corpus(ABC, Generic[Sequences]):
    """The data of one run, in splits.

    name    what people call them: a path
    sha256  their identity, by which a resumed run knows them again
    unit    what `length` counts, in the plural: "bytes", "tokens", "examples"
    notes   what a user should know about them, one line each
    summary what they hold, one line each, which a run prints before its first step
    """

    name: str
    sha256: str
    unit: ClassVar[str]
    notes: Sequence[str] = ()
    summary: Sequence[str] = ()

    @abstractmethod
    def length(self, split: Split) -> int:
        """The number of units of a split."""

    @abstractmethod
    def draw(self, step: int, count: int) -> Sequences:
        """The `count` sequences of the training split that a step reads; the seed is that of the run."""

    def record(self) -> dict[str, Any]:
        """The facts about the data in run.json: "name", "sha256", and sizes."""
        splits: tuple[Split, ...] = ("train", "validation")
        sizes = {split: self.length(split) for split in splits}
        return {"name": self.name, "sha256": self.sha256, self.unit: sizes}
