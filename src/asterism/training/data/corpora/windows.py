"""The windows of training and of scoring: which values a model reads, and which it predicts.

A window at the place `start` of a split predicts `context` values from there on, or those up to the end of its piece;
the model reads the values one place earlier. So position i of a window predicts the value at start + i from i + 1
values of context. At the beginning of a piece (a picture, a clip, a record) it reads a token that is no value in place
of the value before: 0, or 256 + the class of the piece; there position i has i values of context. What lies beyond the
end of a piece is padding. Invariant: all windows are equally long, so a pattern is compiled for one length only.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from asterism.labels import IGNORED
from asterism.randomness import of_row
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.splits import Pieces, Split, Splits

FIRST_CLASS = 256
"""The token that stands before a piece of class 0; that of class c is the c-th behind it."""


class WindowCorpus(Corpus[torch.Tensor]):
    """Windows of `context` values, drawn anew for each step: int64 [count, context + 1] as `read_windows` gives them.

    Raises DataError if the training or validation split is empty, or a stream that is shorter than a window.
    """

    unit: ClassVar[str] = "bytes"

    def __init__(self, splits: Splits, context: int, seed: int) -> None:
        self.name, self.sha256, self.notes = splits.name, splits.sha256, splits.notes
        self.splits, self.context, self.seed = splits, context, seed
        self.train, self.validation = (splits.require(split, context) for split in ("train", "validation"))
        if not splits.length("test"):
            self.notes = (
                *self.notes,
                f"the test split of {splits.name} is empty: nothing is left to test the run with",
            )

    def length(self, split: Split) -> int:
        return self.splits.length(split)

    def draw(self, step: int, count: int) -> torch.Tensor:
        """Random windows of the training split, turned as its pieces may be."""
        starts = draw_starts(self.train, self.context, count, seed=self.seed, step=step)
        return read_windows(self.train, starts, self.context, turn=(self.seed, step))

    def record(self) -> dict[str, Any]:
        """The test split is counted, too."""
        return self.splits.record()


def read_windows(
    pieces: Pieces, starts: np.ndarray, context: int, *, turn: tuple[int, int] | None = None
) -> torch.Tensor:
    """The values of windows: int64 [len(starts), context + 1]; columns 0..-2 are read, columns 1.. are predicted.

    Padding is IGNORED. With turn = (seed, step) each window is read as training may read it (`Pieces.turned`).
    """
    rows = np.full((len(starts), context + 1), IGNORED, dtype=np.int64)
    homes = np.searchsorted(pieces.bounds, starts, side="right") - 1
    for number, (row, start, home) in enumerate(zip(rows, starts.tolist(), homes.tolist(), strict=True)):
        begin, end = int(pieces.bounds[home]), int(pieces.bounds[home + 1])
        before, stop = int(start > begin), min(start + context, end)
        values = pieces.read(start - before, stop)
        if turn is not None:
            values = pieces.turned(values, of_row(*turn, number))
        row[1 - before : 1 + stop - start] = values
        if not before:
            row[0] = 0 if pieces.labels is None else FIRST_CLASS + int(pieces.labels[home])
    return torch.from_numpy(rows)


def draw_starts(pieces: Pieces, context: int, count: int, *, seed: int, step: int) -> np.ndarray:
    """The starts of one step's random windows: int64 [count], a function of (seed, step).

    A piece is drawn in proportion to the windows that it fills, the last one perhaps in part, and then any place from
    which a window does not reach beyond it; both with replacement, through numpy's Philox keyed by (seed, step): no
    state to keep, any step can be drawn again, and no global generator is touched.
    """
    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    if pieces.is_stream:
        return random.integers(1, len(pieces) - context, count, endpoint=True)
    lengths = np.diff(pieces.bounds)
    shares = np.cumsum(-(-lengths // context))
    drawn = np.searchsorted(shares, random.integers(0, shares[-1], count), side="right")
    return pieces.bounds[drawn] + random.integers(0, np.maximum(lengths[drawn] - context, 0), endpoint=True)


@dataclass(frozen=True, eq=False)
class ScoringPlan:
    """Windows that together score every value of a range once: window w scores its positions firsts[w] .. stops[w] - 1.

    `starts`, `firsts` and `stops` are int64 [windows].
    """

    starts: np.ndarray
    firsts: np.ndarray
    stops: np.ndarray

    @property
    def bytes_scored(self) -> int:
        """The number of values that the windows score together."""
        return int((self.stops - self.firsts).sum())

    def thin(self, limit: int) -> "ScoringPlan":
        """A subset of the windows, evenly spread over the range, that scores about `limit` values."""
        every = max(1, -(-self.bytes_scored // limit))
        return ScoringPlan(self.starts[::every], self.firsts[::every], self.stops[::every])


def plan_windows(context: int, minimum_context: int, *, begin: int, first: int, stop: int) -> ScoringPlan:
    """Windows that score the places first .. stop - 1 of a piece that begins at `begin`, each with at least
    `minimum_context` values of the piece before it.

    They advance by the number of values they score, context - minimum_context + 1 (context when minimum_context is 0);
    the last one ends at `stop` and scores what is left. Needs begin + minimum_context <= first: earlier values have too
    little context. A piece that is shorter than the context is one window.
    """
    lead = max(0, minimum_context - 1)
    scored_from = np.arange(first, stop, context - lead)
    starts = np.maximum(begin, np.minimum(scored_from - lead, stop - context))
    ends = np.append(scored_from[1:], stop)
    return ScoringPlan(starts, scored_from - starts, ends - starts)


def plan_pieces(pieces: Pieces, context: int, minimum_context: int, lead: int, stop: int) -> ScoringPlan:
    """Windows that score all values before the place `stop`, but for the first `lead` of every piece.

    The first value of a stream is always left out, because the stream need not begin there.
    """
    lead = max(lead, int(pieces.is_stream))
    plans = [
        plan_windows(context, minimum_context, begin=begin, first=begin + lead, stop=min(end, stop))
        for begin, end in zip(pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), strict=True)
        if begin + lead < min(end, stop)
    ]
    names = ("starts", "firsts", "stops")
    parts = ([getattr(plan, name) for plan in plans] or [np.zeros(0, dtype=np.int64)] for name in names)
    return ScoringPlan(*(np.concatenate(part) for part in parts))
