"""Readers of the best windows of a document, ranked by BM25, by a learned scorer, or by the model's first reading.

A row consists of k windows, and each gets a k-th of its room. A document that fits is read whole.

Windows are ranked by the question. A task without a question, such as classification, uses the document itself as the
question; each word counts as often as it occurs. The best windows are then about topics that the document mentions
often, but not in every window (a word of every window weighs nothing). This needs no labels and no other documents.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.calls import is_whole
from asterism.errors import ConfigurationError
from asterism.training.readers.bm25 import bm25, count_words, words_of
from asterism.training.readers.reader import Document, Reader, Row, Stretch, together, windows_of

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class _Ranking(Reader):
    """A reader of the best `k` windows. Consecutive windows overlap by `stride` tokens."""

    k: int = 4
    stride: int = 0
    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("k", is_whole(self.k, 1), "must be a whole number above 0")
        self._require("stride", is_whole(self.stride, 0), "must be a whole number, 0 or more")
        self._require("k1", _is_number(self.k1) and 0 <= self.k1 < 1e6, "must be a number, 0 or more")
        self._require("b", _is_number(self.b) and 0 <= self.b <= 1, "must be a number from 0 to 1")

    @property
    def needs(self) -> int:
        return self.k * (self.stride + 1)

    def windows(self, document: Document) -> list[Stretch]:
        """The windows to rank; a single one if the document fits into a row."""
        if document.tokens <= document.room:
            return [(0, document.tokens)]
        return windows_of(document.tokens, document.room // self.k, self.stride)

    def ranked(self, document: Document, windows: Sequence[Stretch]) -> list[Stretch]:
        """The windows, best first; of equal ones the earlier one first."""
        scores = self.scores(document, words_in(document, windows))
        return [windows[number] for number in sorted(range(len(windows)), key=lambda one: (-scores[one], one))]

    def scores(self, document: Document, words: Sequence[Counter[str]]) -> list[float]:
        """The BM25 scores of windows with these words."""
        question = document.text if document.question is None else document.question
        return bm25(counted(question), words, k1=self.k1, b=self.b)

    def votes(self, words: Sequence[Counter[str]], text: str) -> list[tuple[str, int]]:
        """The sentences of a text, each with the index of the window that BM25 ranks best for it; of equal ones the
        first.

        `words` are those of each window.
        """
        found = []
        for sentence in filter(None, map(str.strip, _SENTENCE_END.split(text))):
            scores = bm25(counted(sentence), words, k1=self.k1, b=self.b)
            found.append((sentence, max(range(len(words)), key=scores.__getitem__)))
        return found


@dataclass(frozen=True)
class Selected(_Ranking):
    """The `k` windows that rank best, read together in the document's order.

    They are ranked `by` "bm25", or by a scorer that has "learned" which windows of training documents to prefer. The
    task defines the preferred windows.
    """

    name: ClassVar[str] = "selected"
    chooses: ClassVar[bool] = True

    by: str = "bm25"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.by in ("bm25", "learned")
        self._require("by", known, "must be bm25 or learned (iterated() asks the model itself)")

    @property
    def learns(self) -> bool:
        return self.by == "learned"

    def scores(self, document: Document, words: Sequence[Counter[str]]) -> list[float]:
        """The scores of BM25, or of the learned scorer."""
        found = super().scores(document, words)
        if not self.learns:
            return found
        assert document.scorer is not None
        question = None if document.question is None else counted(document.question)
        return document.scorer.scores(question, words, found)

    def rows(self, document: Document) -> list[Row]:
        return [together(self.ranked(document, self.windows(document))[: self.k])]


@dataclass(frozen=True)
class Iterated(_Ranking):
    """Every window is read alone. Then the `k` windows in which the model found most are read together.

    Before training, the model cannot rank windows, so BM25 ranks them. The model is trained on the `k` best windows,
    together and each alone, and on up to `k` of the others, evenly spread, each alone.
    """

    name: ClassVar[str] = "iterated"
    chooses: ClassVar[bool] = True

    def rows(self, document: Document) -> list[Row]:
        return [(window,) for window in self.windows(document)]

    def training_rows(self, document: Document) -> list[Row]:
        windows = self.windows(document)
        if len(windows) == 1:
            return [(windows[0],)]
        ranked = self.ranked(document, windows)
        others = sorted(ranked[self.k :])
        some = {others[at * len(others) // self.k] for at in range(self.k)} if others else set()
        return [together(ranked[: self.k]), *((window,) for window in sorted({*ranked[: self.k], *some}))]

    def again(self, rows: Sequence[Row], found: Sequence[float]) -> Row:
        """The row to read again, given how much the model found in each of the rows."""
        best = sorted(range(len(rows)), key=lambda one: (-found[one], one))[: self.k]
        return together([stretch for number in best for stretch in rows[number]])


@dataclass(frozen=True)
class SummarizedParts(Iterated):
    """`iterated` for models that write texts, such as summaries: rows are parts of the document, each a row long.

    The texts of the parts are read again together, if necessary in parts. In training, each sentence of the target goes
    to the part that BM25 ranks best for it (as for the sections of Gidiotis and Tsoumakas 2020, who compare by ROUGE).
    """

    chooses: ClassVar[bool] = False  # the last rows are summaries, not stretches of the document

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k != Iterated.k:
            raise ConfigurationError(
                "iterated-needs-no-k",
                f"reader: iterated reads all summaries of parts again, so it takes no k, got k={self.k}",
            )

    @property
    def needs(self) -> int:
        return self.stride + 1

    def rows(self, document: Document) -> list[Row]:
        return [(window,) for window in windows_of(document.tokens, document.room, self.stride)]

    def shared_out(self, document: Document, parts: Sequence[Row], text: str) -> list[str]:
        """The target of each part: every sentence of a text goes to the part that BM25 ranks best for it."""
        words = words_in(document, [(part[0][0], part[-1][1]) for part in parts])
        said: list[list[str]] = [[] for _ in parts]
        for sentence, number in self.votes(words, text):
            said[number].append(sentence)
        return [" ".join(sentences) for sentences in said]


def counted(text: str) -> Counter[str]:
    """The words of a text, counted."""
    return Counter(word for word, _ in words_of(text))


def words_in(document: Document, windows: Sequence[Stretch]) -> list[Counter[str]]:
    """The words of each window, counted."""
    starts = np.append(np.maximum.accumulate(document.starts), len(document.text))
    begins, ends = ([window[side] for window in windows] for side in (0, 1))
    return count_words(document.text, starts[begins], starts[ends])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
