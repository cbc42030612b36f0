"""A scorer that learned which windows of a document are wanted: of BM25, and of the words of questions and windows.

    score of a window = beta * b + sum over its words w of x_w (u_w + a . B_w)
    a                 = sum over the question's words w of q_w A_w

b is the window's BM25 score among those of its document, in standard deviations from their mean. x_w = ln(1 + count),
made to a vector of length 1, and so is q_w. Words are in `BUCKETS` by their CRC-32; A, B and u have a row for each. So
a question can find a window that shares no word with it (a dual encoder of bags of words, as Huang et al. 2013,
"Learning Deep Structured Semantic Models for Web Search using Clickthrough Data", with one linear layer), and u says
what wanted windows are about, whatever is asked.

It learns from documents that say which windows are wanted: -log softmax(scores) of those, by AdaGrad, document after
document, until it no longer falls on the documents kept apart. It begins as BM25, and is BM25 in the end if nothing
better was found. Sums are in float64 and in one order, so what is learned is a function of the lessons and the seed.

Invariant: a scorer is immutable; its scores depend on question, windows, and itself.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

BUCKETS = 2**15
WIDTH = 32
"""Numbers that stand for a word."""
PASSES = 12
"""At most, over the lessons."""
PATIENCE = 2
"""Passes that may bring nothing."""
STEP = 0.1
"""Of AdaGrad."""
APART = 10
"""Every tenth document is kept apart."""
FEWEST = 20
"""Lessons to learn from."""

Words = Mapping[str, int]
"""The words of a text, counted."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """What was learned: float32 arrays, `asked` (A), `read` (B) [BUCKETS, WIDTH], `alone` (u) [BUCKETS], `beta` [1]."""

    asked: np.ndarray
    read: np.ndarray
    alone: np.ndarray
    beta: np.ndarray

    @classmethod
    def untaught(cls, seed: int) -> "Scorer":
        """One that ranks as BM25 does, nearly: a word is a little like itself, and like no other."""
        draw = np.random.Generator(np.random.Philox(seed))
        words = draw.normal(0, 0.05, (BUCKETS, WIDTH)).astype(np.float32)
        return cls(words, words.copy(), np.zeros(BUCKETS, np.float32), np.ones(1, np.float32))

    def scores(self, question: Words | None, windows: Sequence[Words], bm25: Sequence[float]) -> list[float]:
        """The score of each window, of which BM25 gives one, too. Without a question what windows say decides."""
        lesson = Lesson.of(question, Bags.of(windows), bm25, [1.0] * len(windows))
        found = _Step(self.asked, self.read, self.alone, float(self.beta[0]), lesson).scores
        return [round(score, 6) for score in found.tolist()]  # what is beyond the last bits decides nothing


@dataclass(frozen=True, eq=False)
class Bags:
    """Words of several texts as numbers.

    words   int64 [U]: the buckets that they have, ascending
    texts   int32 [M]: which text has something,
    places  int32 [M]: of which of the buckets,
    values  float32 [M]: and ln(1 + count) of it, those of a text a vector of length 1
    """

    words: np.ndarray
    texts: np.ndarray
    places: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Words]) -> "Bags":
        """Of words counted."""
        counts = [_buckets(text) for text in texts]
        words = np.array(sorted(set().union(*counts)), dtype=np.int64)
        numbers = np.repeat(np.arange(len(texts), dtype=np.int32), [len(one) for one in counts])
        flat = np.array([bucket for one in counts for bucket in one], dtype=np.int64)
        values = np.log1p(np.array([count for one in counts for count in one.values()], dtype=np.float64))
        norms = np.sqrt(np.bincount(numbers, values**2, minlength=len(texts)))
        return cls(
            words, numbers, np.searchsorted(words, flat).astype(np.int32), (values / norms[numbers]).astype(np.float32)
        )


@dataclass(frozen=True, eq=False)
class Lesson:
    """Which windows of a document are wanted: question and windows as numbers, b [windows], shares of 1 [windows]."""

    question: Bags
    windows: Bags
    bm25: np.ndarray
    wanted: np.ndarray

    @classmethod
    def of(cls, question: Words | None, windows: Bags, bm25: Sequence[float], wanted: Sequence[float]) -> "Lesson":
        """Of BM25's scores as they are, and of what is wanted in any unit, some of it above 0."""
        scores, share = np.array(bm25, dtype=np.float64), np.array(wanted, dtype=np.float64)
        spread = float(scores.std()) or 1.0
        return cls(Bags.of([question or {}]), windows, (scores - scores.mean()) / spread, share / share.sum())


def learn(lessons: Sequence[Lesson], documents: Sequence[str], seed: int) -> tuple[Scorer, dict[str, float]]:
    """A scorer of `FEWEST` lessons or more, and how often its best window is wanted: `scorer`, and `bm25`, of `lessons`
    that were kept apart.

    `documents` says which document each lesson is about: those of one are kept apart together.
    """
    numbers = {one: number for number, one in enumerate(dict.fromkeys(documents))}
    apart = [one for one, document in zip(lessons, documents, strict=True) if numbers[document] % APART == APART - 1]
    taught = [one for one, document in zip(lessons, documents, strict=True) if numbers[document] % APART != APART - 1]
    if not apart or not taught:  # fewer documents than APART: the last lessons will do
        held = max(1, len(lessons) // APART)
        taught, apart = list(lessons[:-held]), list(lessons[-held:])
    state = _State(Scorer.untaught(seed))
    best, least, idle = state.scorer(), state.loss(apart), 0
    begun = best
    for number in range(PASSES):
        order = np.random.Generator(np.random.Philox(key=[seed, number + 1])).permutation(len(taught))
        for at in order.tolist():
            state.step(taught[at])
        loss = state.loss(apart)
        if loss < least:
            best, least, idle = state.scorer(), loss, 0
        else:
            idle += 1
            if idle == PATIENCE:
                break
    return best, {"lessons": len(apart), "scorer": _right(best, apart), "bm25": _right(begun, apart)}


def _right(scorer: Scorer, lessons: Sequence[Lesson]) -> float:
    """How often the best window is wanted."""
    values = scorer.asked, scorer.read, scorer.alone, float(scorer.beta[0])
    return sum(bool(one.wanted[int(_Step(*values, one).scores.argmax())] > 0) for one in lessons) / len(lessons)


class _Step:
    """The scores of a lesson's windows, and what its words are worth now."""

    def __init__(self, asked: np.ndarray, read: np.ndarray, alone: np.ndarray, beta: float, lesson: Lesson) -> None:
        question, windows = lesson.question, lesson.windows
        self.question = np.einsum("q,qk->k", question.values, asked[question.words[question.places]].astype(np.float64))
        self.rows = read[windows.words].astype(np.float64)
        worth = alone[windows.words] + np.einsum("uk,k->u", self.rows, self.question)
        found = np.bincount(windows.texts, windows.values * worth[windows.places], minlength=len(lesson.bm25))
        self.scores = beta * lesson.bm25 + found

    @property
    def probabilities(self) -> np.ndarray:
        """Of each window to be wanted."""
        powers = np.exp(self.scores - self.scores.max())
        share: np.ndarray = powers / powers.sum()
        return share


class _State:
    """A scorer that learns: its numbers in float64, and the sums of squared gradients of AdaGrad."""

    def __init__(self, scorer: Scorer) -> None:
        self.asked, self.read = scorer.asked.astype(np.float64), scorer.read.astype(np.float64)
        self.alone, self.beta = scorer.alone.astype(np.float64), scorer.beta.astype(np.float64)
        self.squares = [np.full(one.shape, 1e-2) for one in (self.asked, self.read, self.alone, self.beta)]

    def scorer(self) -> Scorer:
        """As it is now."""
        return Scorer(*(one.astype(np.float32) for one in (self.asked, self.read, self.alone, self.beta)))

    def loss(self, lessons: Sequence[Lesson]) -> float:
        """The mean of -log softmax(scores) of what is wanted."""
        each = (-float((one.wanted * np.log(self._at(one).probabilities + 1e-12)).sum()) for one in lessons)
        return math.fsum(each) / len(lessons)

    def step(self, lesson: Lesson) -> None:
        """Learn from one lesson."""
        now = self._at(lesson)
        error, asked, read = now.probabilities - lesson.wanted, lesson.question, lesson.windows
        words = np.bincount(read.places, read.values * error[read.texts], minlength=len(read.words))
        question = np.einsum("u,uk->k", words, now.rows)
        weights = np.bincount(asked.places, asked.values, minlength=len(asked.words))
        places: tuple[Any, ...] = (asked.words, read.words, read.words, slice(None))
        gradients = (
            np.outer(weights, question),
            np.outer(words, now.question),
            words,
            np.array([float((error * lesson.bm25).sum())]),
        )
        for values, squares, place, gradient in zip(
            (self.asked, self.read, self.alone, self.beta), self.squares, places, gradients, strict=True
        ):
            squares[place] += gradient**2
            values[place] -= STEP * gradient / np.sqrt(squares[place])

    def _at(self, lesson: Lesson) -> _Step:
        return _Step(self.asked, self.read, self.alone, float(self.beta[0]), lesson)


def _buckets(text: Words) -> dict[int, int]:
    """The words of a text, counted, by bucket."""
    found: dict[int, int] = {}
    for word, count in text.items():
        found[_bucket(word)] = found.get(_bucket(word), 0) + count
    return found


@lru_cache(maxsize=2**16)
def _bucket(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % BUCKETS
