"""Tasks of a search: made-up texts of bytes with answers, or a text of the user's.

recall    pairs of a key and a value among filler in the first half; every key again in the second half, where its
          value is to be predicted: multi-query associative recall (Arora 2023, Zoology, arXiv 2312.04927). A pair is
          one byte, because small models take thousands of steps to learn to bind two
needles   a capital and a digit hidden at any depth of random letters, which are to be predicted at the end
PATH      the next byte of a file, or of the files of a folder

Invariant: the examples of a step depend on the seed, the step and the length alone, so a training that was stopped
reads the same as one that was not.
"""

import math
import os
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch

from asterism.errors import ConfigurationError, DataError, nearest, shown
from asterism.labels import IGNORED, shifted
from asterism.training.data.corpora.bytes import load_corpus
from asterism.training.data.corpora.splits import Pieces
from asterism.training.data.corpora.windows import draw_starts, model_inputs, read_windows

_HELD_OUT = 2**62
"""The step of held-out examples, which no training reaches."""

KEYS, VALUES, FILLER = 16, 8, ord(".")
FIRST_PAIR, FIRST_KEY, FIRST_VALUE = 128, ord("@"), ord("0")
"""Bytes of `recall`: 128 + 8 * key + value is a pair."""


class Examples(NamedTuple):
    """What a model reads, and what each place is to predict: int64 [B, N] both; -100 where no prediction counts."""

    ids: torch.Tensor
    targets: torch.Tensor


class SearchTask(ABC):
    """Examples of `length` bytes, drawn by a seed. A loss in nats times `scale` is in `unit`."""

    unit, scale = "nats per answer", 1.0

    def __init__(self, name: str, length: int, seed: int) -> None:
        self.name, self.length, self.seed = name, length, seed

    @abstractmethod
    def draw(self, step: int, count: int) -> Examples:
        """`count` examples for one step of training."""

    @abstractmethod
    def held_out(self, count: int) -> Examples:
        """`count` examples that training does not see."""

    def record(self) -> dict[str, Any]:
        """What decides the examples, as JSON."""
        return {"name": self.name, "length": self.length, "seed": self.seed}


class _MadeUp(SearchTask):
    def draw(self, step: int, count: int) -> Examples:
        random = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        ids, answers = (torch.from_numpy(one) for one in self._write(random, count))
        return Examples(ids, shifted(torch.where(answers, ids, IGNORED)))

    def held_out(self, count: int) -> Examples:
        return self.draw(_HELD_OUT, count)

    @abstractmethod
    def _write(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """ids int64 [count, length], and which of them are answers, bool of the same shape."""


class Recall(_MadeUp):
    """A pair and a query for every sixteen bytes, at most 16 of each."""

    def _write(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        half, pairs = self.length // 2, min(KEYS, self.length // 16)
        keys, values = _distinct(random, count, KEYS, pairs), random.integers(0, VALUES, (count, pairs))
        row = np.arange(count)[:, None]
        ids = np.full((count, self.length), FILLER, np.int64)
        ids[row, _distinct(random, count, half, pairs)] = FIRST_PAIR + keys * VALUES + values
        place = half + 2 * _distinct(random, count, (self.length - half) // 2, pairs)
        ids[row, place], ids[row, place + 1] = FIRST_KEY + keys, FIRST_VALUE + values
        answers = np.zeros(ids.shape, bool)
        answers[row, place + 1] = True
        return ids, answers


class Needles(_MadeUp):
    """A capital and a digit among small letters."""

    def _write(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        ids = random.integers(ord("a"), ord("z") + 1, (count, self.length))
        needle = np.stack([random.integers(ord(a), ord(b) + 1, count) for a, b in ("AZ", "09")], axis=1)
        place = random.integers(0, self.length - 4, (count, 1)) + np.arange(2)
        np.put_along_axis(ids, place, needle, axis=1)
        ids[:, -3], ids[:, -2:] = ord("?"), needle
        answers = np.zeros(ids.shape, bool)
        answers[:, -2:] = True
        return ids, answers


class NextByte(SearchTask):
    """Windows of a text; those held out are spread evenly over its validation split.

    Raises DataError for data that cannot be read, and for a split that is shorter than a window.
    """

    unit, scale = "bits per byte", 1 / math.log(2)

    def __init__(self, path: str, length: int, seed: int) -> None:
        super().__init__(path, length, seed)
        self.splits = load_corpus(path)
        self.train, self.validation = (self.splits.require(split, length) for split in ("train", "validation"))

    def draw(self, step: int, count: int) -> Examples:
        return self._read(self.train, draw_starts(self.train, self.length, count, seed=self.seed, step=step))

    def held_out(self, count: int) -> Examples:
        return self._read(self.validation, np.linspace(1, len(self.validation) - self.length, count).astype(np.int64))

    def record(self) -> dict[str, Any]:
        return {**super().record(), "data": self.splits.record()}

    def _read(self, pieces: Pieces, starts: np.ndarray) -> Examples:
        inputs = model_inputs(read_windows(pieces, starts, self.length))
        return Examples(inputs["input_ids"], inputs["shift_labels"])


MADE_UP: dict[str, type[_MadeUp]] = {"recall": Recall, "needles": Needles}
SHORTEST = 64
"""Bytes of an example."""


def make_task(name: str, length: int, seed: int) -> SearchTask:
    """The task of a name, or of the text at a path.

    Raises DataError for a name that is neither, for data that cannot be read, and for a text too short for `length`;
    ConfigurationError for a length of less than 64.
    """
    if length < SHORTEST:
        raise ConfigurationError("search-length", f"length: must be at least {SHORTEST} bytes, got {length}")
    if name in MADE_UP:
        return MADE_UP[name](name, length, seed)
    if not os.path.exists(name):  # noqa: PTH110  # false of what can be no name of a file
        near = nearest(name, MADE_UP) or f" The tasks are {', '.join(MADE_UP)}; anything else is the path of a text."
        raise DataError("search-task", f"there is neither a task nor a file {shown(name)}.{near}")
    return NextByte(name, length, seed)


def _distinct(random: np.random.Generator, rows: int, among: int, count: int) -> np.ndarray:
    """Different numbers below `among` in every row: int64 [rows, count]."""
    return np.argsort(random.random((rows, among)), axis=1)[:, :count]
