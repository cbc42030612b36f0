"""Which bytes a model reads and which it predicts: the windows of training and of scoring.

A window at `start` predicts the bytes start .. start + context - 1; the model reads the bytes one place earlier, so
position i of the window predicts byte start + i from bytes start - 1 .. start + i - 1, which is i + 1 bytes of
context. A record (an image, a clip) is a window of its own: it reads a zero in place of the byte before it, and
position i has i bytes of context. Invariant: all windows are whole, so a pattern is compiled for one length only.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from asterism.training.data.contract import Corpus
from asterism.training.data.corpus import ByteSplits, Split


class ByteWindows(Corpus[torch.Tensor]):
    """Windows of `context` bytes, drawn anew for each step: int64 [count, context + 1] as `read_windows` gives them.

    Raises DataError if the training or validation split is shorter than a window.
    """

    unit: ClassVar[str] = "bytes"

    def __init__(self, splits: ByteSplits, context: int, seed: int) -> None:
        self.name, self.sha256 = splits.name, splits.sha256
        self.splits, self.context, self.seed = splits, context, seed
        self.train, self.validation = (splits.require(split, context) for split in ("train", "validation"))

    def length(self, split: Split) -> int:
        return len(self.splits.split(split))

    def draw(self, step: int, count: int) -> torch.Tensor:
        """Random windows of the training split."""
        records = self.splits.record_length is not None
        starts = draw_starts(len(self.train), self.context, count, records=records, seed=self.seed, step=step)
        return read_windows(self.train, starts, self.context, records=records)

    def record(self) -> dict[str, Any]:
        """The test split is counted, too."""
        return self.splits.record()


def read_windows(data: np.ndarray, starts: np.ndarray, context: int, *, records: bool) -> torch.Tensor:
    """The bytes of windows: int64 [len(starts), context + 1]; columns 0..-2 are read, columns 1.. are predicted."""
    rows = np.zeros((len(starts), context + 1), dtype=np.int64)
    before = 0 if records else 1
    for row, start in zip(rows, starts.tolist(), strict=True):
        row[1 - before :] = data[start - before : start + context]
    return torch.from_numpy(rows)


def draw_starts(size: int, context: int, count: int, *, records: bool, seed: int, step: int) -> np.ndarray:
    """The starts of one step's random windows in a split of `size` bytes: int64 [count], a function of (seed, step).

    Uniform with replacement, through numpy's Philox keyed by (seed, step): no state to keep, any step can be drawn
    again, and no global generator is touched.
    """
    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    if records:
        return random.integers(0, size // context, count) * context
    return random.integers(1, size - context, count, endpoint=True)


@dataclass(frozen=True, eq=False)
class ScoringPlan:
    """Windows that together score every byte of a range once: window w scores its positions `firsts[w]` and later.

    `starts` and `firsts` are int64 [windows].
    """

    starts: np.ndarray
    firsts: np.ndarray
    context: int

    @property
    def bytes_scored(self) -> int:
        """How many bytes the windows score together."""
        return int((self.context - self.firsts).sum())

    def thin(self, limit: int) -> "ScoringPlan":
        """Every so manieth window, so that about `limit` bytes are scored, spread evenly over the range."""
        every = max(1, -(-self.bytes_scored // limit))
        return ScoringPlan(self.starts[::every], self.firsts[::every], self.context)


def plan_stream(context: int, minimum_context: int, *, first: int, stop: int) -> ScoringPlan:
    """Windows that score the bytes first .. stop - 1 of a stream, each with at least `minimum_context` bytes before it.

    They advance by the number of bytes they score, context - minimum_context + 1 (context when minimum_context is 0);
    the last one ends at `stop` and scores what is left. Needs max(1, minimum_context) <= first, because earlier bytes
    have too little context, and context < stop.
    """
    lead = max(0, minimum_context - 1)
    scored_from = np.arange(first, stop, context - lead)
    starts = np.minimum(scored_from - lead, stop - context)
    return ScoringPlan(starts, scored_from - starts, context)


def plan_records(context: int, *, stop: int) -> ScoringPlan:
    """Windows that score every byte of the records in the first `stop` bytes of a split."""
    starts = np.arange(0, stop - context + 1, context)
    return ScoringPlan(starts, np.zeros_like(starts), context)
