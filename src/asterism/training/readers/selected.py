"""Reading the best windows of a document together: those that BM25, a scorer that learned, or the model itself at first
sight ranks best.

A row is made of k windows, so each has a k-th of the place that a row has. A document that fits is read whole.

Windows are ranked against the question. Where nothing is asked, as in classification, they are ranked against the
document itself: its words, as often as it has them, so that windows are best which are about what the document says
often, though not everywhere (a word of every window weighs nothing). This needs no labels, and nothing but the
document.
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
    """A reader of the best `k` windows, where consecutive windows share `stride` tokens."""

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
        """The windows that are ranked; one, if the document fits into a row."""
        if document.tokens <= document.room:
            return [(0, document.tokens)]
        return windows_of(document.tokens, document.room // self.k, self.stride)

    def ranked(self, document: Document, windows: Sequence[Stretch]) -> list[Stretch]:
        """The windows, the best first; of equals the earlier one."""
        scores = self.scores(document, words_in(document, windows))
        return [windows[number] for number in sorted(range(len(windows)), key=lambda one: (-scores[one], one))]

    def scores(self, document: Document, words: Sequence[Counter[str]]) -> list[float]:
        """What windows with these words are worth: BM25."""
        question = document.text if document.question is None else document.question
        return bm25(counted(question), words, k1=self.k1, b=self.b)

    def votes(self, words: Sequence[Counter[str]], text: str) -> list[tuple[str, int]]:
        """The sentences of a text, each with the number of the window that BM25 ranks best for it, of equals the first.

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

    They are ranked `by` "bm25", or by a scorer that has "learned" which windows training documents want; what that is
    their task says.
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
        """BM25, or what was learned of it and of words."""
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
    """Every window is read by itself; the `k` in which the model found most are kept, and read again together.

    Trained on the windows that BM25 ranks best, each by itself and `k` together, and on as many of the others, evenly
    spread, by themselves: what the model will find is not known before it has learned.
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
        """What is read again, after the model found so much in each of the rows."""
        best = sorted(range(len(rows)), key=lambda one: (-found[one], one))[: self.k]
        return together([stretch for number in best for stretch in rows[number]])


@dataclass(frozen=True)
class SummarizedParts(Iterated):
    """As `iterated`, where the model finds texts, such as summaries: rows are parts of the document, each a row long.

    The texts are read again together, in parts if need be. What a part is to say in training is the sentences of the
    whole text that it ranks best for (as the sections of Gidiotis and Tsoumakas 2020, who compare by ROUGE).
    """

    chooses: ClassVar[bool] = False  # what is read last are summaries, and no stretches of the document

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
        """What of a text each part is to say: every sentence goes to the part that BM25 ranks best for it."""
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
