"""The windows of training and of scoring: which values a model reads, and which it predicts.

A value is one of 8 bits, or a token (`tokens.py`).

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

from asterism.labels import IGNORED, read_and_predicted
from asterism.randomness import of_row
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.splits import Border, Pieces, Split, Splits

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


def model_inputs(windows: torch.Tensor, border: Border | None = None) -> dict[str, torch.Tensor]:
    """The arguments of a model for windows int64 [B, context + 1]: input_ids and shift_labels, int64 [B, context] each.

    shift_labels holds the value after each column. Padding is read as 0 and follows all predicted values. Where
    documents have borders, position_ids int64 [B, context] restart at each, so that no document reads another.
    """
    read, predicted = read_and_predicted(windows)
    labels = predicted.contiguous()
    if border is None:
        return {"input_ids": read.clamp(min=0), "shift_labels": labels}
    columns, begins = torch.arange(read.shape[1]).expand_as(read), read == border.end
    firsts = torch.where(begins, columns, 0).cummax(dim=1).values
    inputs = read.masked_fill(begins, border.start).clamp(min=0)
    return {"input_ids": inputs, "position_ids": columns - firsts, "shift_labels": labels}


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

    `starts`, `firsts` and `stops` are int64 [windows], and so is `sizes`: how many bytes of data each window scores.
    """

    starts: np.ndarray
    firsts: np.ndarray
    stops: np.ndarray
    sizes: np.ndarray

    @property
    def bytes_scored(self) -> int:
        """The number of bytes that the windows score together."""
        return int(self.sizes.sum())

    def thin(self, limit: int) -> "ScoringPlan":
        """A subset of the windows, evenly spread over the range, that scores about `limit` bytes."""
        every = max(1, -(-self.bytes_scored // limit))
        return ScoringPlan(*(one[::every] for one in (self.starts, self.firsts, self.stops, self.sizes)))


Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The starts, firsts and stops of a `ScoringPlan`."""


def plan_windows(context: int, minimum_context: int, *, begin: int, first: int, stop: int) -> Windows:
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
    return starts, scored_from - starts, ends - starts


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
    none: list[Windows] = [(np.zeros(0, dtype=np.int64),) * 3]
    starts, firsts, stops = (np.concatenate(part) for part in zip(*(plans or none), strict=True))
    sizes = pieces.bytes_before(starts + stops) - pieces.bytes_before(starts + firsts)
    return ScoringPlan(starts, firsts, stops, sizes)
