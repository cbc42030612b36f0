"""Ascending sets of positions, stored as runs: stretches of neighbours, or of every step-th token.

A set of thousands of runs is three short arrays and a text; where the i-th member stands, and how many members stand
before a position, are binary searches among the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from asterism.errors import PatternError, shown
from asterism.memo import cached_property
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import GREATEST, Ranges

_MOST_RUNS = 2**24
"""The most runs of a set, 400 MiB of numbers."""


class CutPieces(NamedTuple):
    """What is left of sets of members when runs cut them: each piece is a set of positions in one run.

    row          int64 [pieces]: which set each piece is of; every set has at least one
    first, last  int64 [pieces] each: positions
    step         int64 [pieces]: how far apart the members are; 0 where only the first and the last one are known
    sure         whether the first and the last position are known to be of the set
    """

    row: Integers
    first: Integers
    last: Integers
    step: Integers
    sure: bool


@dataclass(frozen=True, eq=False)
class Runs:
    """Positions start[i], start[i] + step[i], ... up to stop[i] - 1, run after run; int64 arrays, ascending.

    Every run has a member, and stop[i] - 1 is one. Runs that touch are one.
    """

    start: Integers
    stop: Integers
    step: Integers

    @cached_property
    def text(self) -> str:
        """start:stop:step,..., where a step of 1 and the stop of a single position are left out."""
        rows = zip(self.start.tolist(), self.stop.tolist(), self.step.tolist(), strict=True)
        return ",".join(_write_run(*row) for row in rows)

    @cached_property
    def before(self) -> Integers:
        """How many members stand before each run, and how many there are: [runs + 1]."""
        counts = (self.stop - self.start - 1) // self.step + 1
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __len__(self) -> int:
        """How many members."""
        return int(self.before[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def past(self) -> int:
        """One past the last member; 0 if there is none."""
        return int(self.stop[-1]) if len(self.stop) else 0

    @property
    def is_range(self) -> bool:
        """Whether the members, if any, are neighbours."""
        return len(self.start) == 0 or (len(self.start) == 1 and self.step[0] == 1)

    @cached_property
    def comb(self) -> tuple[int, int] | None:
        """(width, apart) where all runs are of `width` neighbours, the last one of at most so many, and begin `apart`
        positions one after another; None for other sets."""
        if len(self.start) == 1:
            return int(self.before[1]) if self.step[0] == 1 else 1, int(max(self.step[0], self.before[1]))
        widths, gaps = np.diff(self.before), np.diff(self.start)
        if not len(widths) or (self.step != 1).any() or (widths[:-1] != widths[0]).any() or widths[-1] > widths[0]:
            return None
        return (int(widths[0]), int(gaps[0])) if (gaps == gaps[0]).all() else None

    def places(self, members: Integers) -> Integers:
        """Where the members of these numbers stand."""
        if len(self.start) == 1:
            return self.start[0] + members * self.step[0]
        run = self.run_of(members)
        return self.start[run] + (members - self.before[run]) * self.step[run]

    def count_below(self, positions: Integers) -> Integers:
        """How many members stand before each position."""
        if not len(self.start):
            return np.zeros_like(positions)
        run = np.searchsorted(self.start, positions, side="right") - 1
        own = np.maximum(run, 0)
        # Whole steps up to the position, rounded up: the member at the run's start is before all that follow it.
        within = -(-(np.minimum(positions, self.stop[own]) - self.start[own]) // self.step[own])
        return np.where(run < 0, 0, self.before[own] + within)

    def moved(self, by: int) -> "Runs":
        """The same set, every member so much further on."""
        return Runs(self.start + by, self.stop + by, self.step)

    def run_of(self, members: Integers) -> Integers:
        """The run that holds each member."""
        return np.searchsorted(self.before, members, side="right") - 1

    def pieces(self, members: Ranges) -> CutPieces:
        """Sets of members, given by their numbers, as sets of positions in one run each."""
        if (whole := self._uncut(members)) is not None:
            return whole
        rows = len(members.first)
        first_run, last_run = self.run_of(members.first), self.run_of(members.last)
        row, run = Intervals.one_each(first_run, last_run + 1, len(self.start)).points()
        first = np.maximum(self.before[run], members.first[row])
        last = np.minimum(self.before[run + 1] - 1, members.last[row])
        if members.step > 1:  # the first and the last of the progression that lie in the run
            begin = members.first[row]
            first = begin - (begin - first) // members.step * members.step
            last = begin + (last - begin) // members.step * members.step
            some = first <= last
            row, run, first, last = row[some], run[some], first[some], last[some]
        step = np.where(first == last, 1, members.step * self.step[run])
        return CutPieces(row, self.places(first), self.places(last), step, members.step > 0 or len(row) == rows)

    def hulls(self, members: Ranges) -> CutPieces:
        """Sets of members as one piece each, of which the first and the last position are known."""
        whole = self._uncut(members)
        if whole is not None:
            return whole
        first, last = self.places(members.first), self.places(members.last)
        uncut = bool((self.run_of(members.first) == self.run_of(members.last)).all())
        step = np.zeros_like(first)
        if uncut:
            step = members.step * self.step[self.run_of(members.first)]
        return CutPieces(np.arange(len(first)), first, last, step, True)

    def _uncut(self, members: Ranges) -> CutPieces | None:
        """Sets of members as progressions of positions, where the runs are such that all of them are."""
        step = self.comb_step(members.step)
        if step is None:
            return None
        first, last = self.places(members.first), self.places(members.last)
        return CutPieces(np.arange(len(first)), first, last, np.full_like(first, step), True)

    def comb_step(self, step: int) -> int | None:
        """How far apart members stand whose numbers are `step` apart, wherever they are; None if it depends."""
        if len(self.start) == 1:
            return step * int(self.step[0])
        if self.comb is None or step % self.comb[0] or step == 0:
            return None
        return step // self.comb[0] * self.comb[1]

    @classmethod
    def read(cls, call: str, name: str, given: object) -> Self:
        """Runs as a user gives them: the text, runs (start, stop) or (start, stop, step), or an array of such rows.

        Raises PatternError for anything else, for runs that do not ascend, and for positions that are negative or too
        large.
        """
        if isinstance(given, cls):
            return given
        rows = _read_text(call, name, given) if isinstance(given, str) else _read_rows(call, name, given)
        start, stop, step = rows[:, 0], rows[:, 1], rows[:, 2]
        kept = start < stop
        start, stop, step = start[kept], stop[kept], step[kept]
        if (start < 0).any() or (step < 1).any() or (stop > GREATEST).any() or (step > GREATEST).any():
            raise PatternError(
                "runs-range", f"{call}: {name} must be runs of positions of at least 0, with steps of at least 1"
            )
        stop = stop - (stop - start - 1) % step
        step = np.where(stop - start == 1, 1, step)
        if (start[1:] < stop[:-1]).any():
            at = int(np.flatnonzero(start[1:] < stop[:-1])[0])
            raise PatternError(
                "runs-order",
                f"{call}: the runs of {name} must ascend without overlap, but {start[at + 1]} follows {stop[at] - 1}",
            )
        # Runs of neighbours that touch become one, so that equal sets of neighbours have equal texts.
        opens = np.ones(len(start), bool)
        opens[1:] = (start[1:] > stop[:-1]) | (step[1:] > 1) | (step[:-1] > 1)
        closes = np.append(opens[1:], True)[: len(start)]
        return cls(start[opens], stop[closes], step[opens])


def _write_run(start: int, stop: int, step: int) -> str:
    if stop - start == 1:
        return str(start)
    return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"


def _read_text(call: str, name: str, text: str) -> Integers:
    rows = []
    for run in text.split(",") if text else ():
        parts = run.split(":")
        if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise PatternError("runs-text", f'{call}: {name} must list runs as "start:stop:step,...", got {shown(run)}')
        start = int(parts[0])
        stop = int(parts[1]) if len(parts) > 1 else start + 1
        step = int(parts[2]) if len(parts) > 2 else 1
        if max(start, stop, step) > GREATEST:
            raise PatternError(
                "runs-too-far", f"{call}: positions of {name} must be at most {GREATEST:,}, got {shown(run)}"
            )
        rows.append((start, stop, step))
    return np.array(rows, np.int64).reshape(-1, 3)


def _read_rows(call: str, name: str, given: object) -> Integers:
    refusal = PatternError(
        "runs-form",
        f"{call}: {name} must be runs (start, stop) or (start, stop, step) of whole numbers, or their text, got"
        f" {' '.join(shown(given).split())}",
    )
    if not isinstance(given, (Sequence, np.ndarray)):
        raise refusal
    if len(given) > _MOST_RUNS:
        raise PatternError("too-many-runs", f"{call}: {name} may have at most {_MOST_RUNS:,} runs, got {len(given):,}")
    if len(given) == 0:
        return np.zeros((0, 3), np.int64)
    if isinstance(given, np.ndarray):
        if given.ndim != 2 or given.shape[1] not in (2, 3) or not np.issubdtype(given.dtype, np.integer):
            raise refusal
        rows = given.astype(np.int64)
        return rows if rows.shape[1] == 3 else np.column_stack([rows, np.ones(len(rows), np.int64)])
    listed = []
    for run in given:
        if not isinstance(run, (Sequence, np.ndarray)) or isinstance(run, str) or len(run) not in (2, 3):
            raise refusal
        if any(isinstance(x, (bool, np.bool_)) or not hasattr(x, "__index__") for x in run):
            raise refusal
        row = [x.__index__() for x in run]
        if any(abs(x) > GREATEST for x in row):
            raise refusal
        listed.append(row if len(row) == 3 else [*row, 1])
    return np.array(listed, np.int64)
