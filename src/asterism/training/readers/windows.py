"""A reader of all of a document through overlapping windows, each alone; their results are pooled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from asterism.calls import is_whole
from asterism.errors import ConfigurationError
from asterism.training.readers.reader import Document, Reader, Row, windows_of

POOLS = ("mean", "max", "span")
"""The ways to pool the results of several windows. The task decides which of them it accepts."""


@dataclass(frozen=True)
class Windows(Reader):
    """Consecutive rows to the end of the document, which overlap by `stride` of its tokens.

    `pool` makes one answer of the rows: "mean" or "max" of the probabilities, or the best "span". None means the
    task's.
    """

    name: ClassVar[str] = "windows"

    stride: int = 0
    pool: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("stride", is_whole(self.stride, 0), "must be a whole number, 0 or more")
        self._require("pool", self.pool in (None, *POOLS), f"must be one of: {', '.join(POOLS)}")

    def settled(self, pools: Sequence[str]) -> Self:
        pool = self.pool or pools[0]
        if pool not in pools:
            raise ConfigurationError(
                "reader-pool", f"reader: windows: pool must be {' or '.join(pools)} for this task, got {pool}"
            )
        return replace(super().settled(pools), pool=pool)

    @property
    def pools_by(self) -> str | None:
        return self.pool

    @property
    def needs(self) -> int:
        return self.stride + 1

    def rows(self, document: Document) -> list[Row]:
        return [(window,) for window in windows_of(document.tokens, document.room, self.stride)]
