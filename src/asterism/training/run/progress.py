"""Progress for people: a bar if stderr is a terminal, and plain lines otherwise.

Invariant: ten seconds never pass without a line, or a bar that moves, however long a step or an evaluation takes.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0

_SOONER = 0.8
"""Seconds by which a status comes earlier, so that with short steps a status appears before the line that work
continues.
"""


@dataclass(frozen=True)
class Status:
    """One moment of a run: `fraction` is the finished share, `loss` in nats.

    `training` and `validation` are the values of `metric`, where they are known; `speed` is in `unit` per second.
    """

    step: int
    fraction: float
    seconds_left: float
    loss: float
    metric: str
    training: float | None
    validation: float | None
    speed: float
    unit: str

    def __str__(self) -> str:
        training = "" if self.training is None else f" {self.training:.3f}"
        validation = "" if self.validation is None else f" (validation {self.validation:.3f})"
        metric = f"{self.metric}{training}{validation}  " if training or validation else ""
        return (
            f"step {self.step:,}  loss {self.loss:.3f}  {metric}"
            f"{rate(self.speed)} {self.unit}/s  {clock(self.seconds_left)} left"
        )


class Moment(Protocol):
    """A moment to show: its text, `str(moment)`, and the finished share, or None if the total is unknown."""

    @property
    def fraction(self) -> float | None: ...


@dataclass(frozen=True)
class Scoring:
    """How far an evaluation is: `done` of `total` batches after so many seconds; `of_run` is the share of a run that
    goes on behind it."""

    done: int
    total: int
    seconds: float
    of_run: float | None = None

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.of_run is None else self.of_run

    def __str__(self) -> str:
        left = f"  {clock(self.seconds * (self.total - self.done) / self.done)} left" if self.done else ""
        return f"evaluating: {self.done:,} of {self.total:,} batches{left}"


Watch = Callable[[int, int], None]
"""A callback with the number of finished batches of an evaluation, and their total."""


def unwatched(done: int, total: int) -> None:
    """A callback that shows nothing."""


class Display(Protocol):
    """Shows the moments of a run."""

    def show(self, status: Moment) -> None:
        """Show where the run is."""
        ...

    def doing(self, text: str) -> None:
        """Name the current work, which is shown if nothing else is for a while."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def watching(display: Display, of_run: float | None = None) -> Watch:
    """Shows an evaluation that begins now."""
    began = time.monotonic()
    display.doing("evaluating")
    return lambda done, total: display.show(Scoring(done, total, time.monotonic() - began, of_run))


def make_display(enabled: bool) -> Display:
    """Make a display that suits stderr, or one that shows nothing if it is not enabled."""
    if not enabled:
        return Silence()
    return Bar() if sys.stderr.isatty() else LogLines()


class Silence:
    """Shows nothing."""

    def show(self, status: Moment) -> None:
        """Nothing."""

    def doing(self, text: str) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class LogLines:
    """Plain lines for logs: at most one status in an interval, and the current work if there is no status."""

    def __init__(self, every: float = SECONDS_BETWEEN_LINES) -> None:
        self.every = every
        self.shown_at = -every
        self.printed_at = time.monotonic()
        self.activity, self.since = "starting", self.printed_at
        self.closed = threading.Event()
        self.heart: threading.Thread | None = None

    def show(self, status: Moment) -> None:
        """Print the status if the last one is some time ago or the run is at its end."""
        if (status.fraction or 0) >= 1 or time.monotonic() - self.shown_at >= _SOONER * self.every:
            self.shown_at = time.monotonic()
            self.say(str(status) if status.fraction is None else f"{status.fraction:6.1%}  {status}")

    def doing(self, text: str) -> None:
        """Print it, and for how long it has been going on, whenever nothing has been printed for some time."""
        self.activity, self.since = text, time.monotonic()
        if self.heart is None:
            self.heart = threading.Thread(target=self._beat, name="progress", daemon=True)
            self.heart.start()

    def _beat(self) -> None:
        while not self.closed.wait(max(0.0, self.printed_at + self.every - time.monotonic())):
            now = time.monotonic()
            if now - self.printed_at >= self.every:
                self.say(f"{self.activity}: {clock(now - self.since)} so far")

    def say(self, text: str) -> None:
        """Print a line."""
        self.printed_at = time.monotonic()
        sys.stderr.write(f"{text}\n")  # at once, as another thread may print
        sys.stderr.flush()

    def close(self) -> None:
        """No more lines."""
        self.closed.set()
        if self.heart is not None:
            self.heart.join()


class Bar:
    """A progress bar that redraws itself twice a second; nothing is left of one that no status was shown on."""

    def __init__(self) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
        self.bar = RichProgress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
        self.task = self.bar.add_task("training", total=None, status="")

    def show(self, status: Moment) -> None:
        """Move the bar."""
        self.bar.live.transient = False
        if status.fraction is None:
            self.bar.update(self.task, total=None, status=str(status))
        else:
            self.bar.update(self.task, total=1.0, completed=min(1.0, status.fraction), status=str(status))
        self.bar.start()

    def doing(self, text: str) -> None:
        """Show it until the first status comes."""
        if self.bar.live.transient:
            self.bar.update(self.task, status=text)
            self.bar.start()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.stop()


def rate(each_second: float) -> str:
    """A speed for people, with two digits below 10, because with long documents it may be far below 1."""
    return f"{each_second:,.0f}" if each_second >= 10 else f"{each_second:.2g}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
