"""What a person sees while a run goes on: a bar when stderr is a terminal, now and then a line when it is not."""

import sys
import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0


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
    """What can be shown: `str` of it, and the finished share, None if nobody knows what the whole is."""

    @property
    def fraction(self) -> float | None: ...


class Display(Protocol):
    """Shows the moments of a run."""

    def show(self, status: Moment) -> None:
        """Show where the run is."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def make_display(enabled: bool) -> Display:
    """A display on stderr that suits what stderr is; one that shows nothing when not enabled."""
    if not enabled:
        return Silence()
    return Bar() if sys.stderr.isatty() else Lines()


class Silence:
    """Shows nothing."""

    def show(self, status: Moment) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """Plain lines, at most one in SECONDS_BETWEEN_LINES, for logs."""

    def __init__(self) -> None:
        self.shown_at = -SECONDS_BETWEEN_LINES

    def show(self, status: Moment) -> None:
        """Print the status if the last one is some time ago or the run is at its end."""
        if (status.fraction or 0) >= 1 or time.monotonic() - self.shown_at >= SECONDS_BETWEEN_LINES:
            self.shown_at = time.monotonic()
            self.say(str(status) if status.fraction is None else f"{status.fraction:6.1%}  {status}")

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is left to do."""


class Bar:
    """A progress bar that redraws itself twice a second."""

    def __init__(self) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[status]}"))
        self.bar = RichProgress(*columns, console=Console(stderr=True), refresh_per_second=2)
        self.task = self.bar.add_task("training", total=1.0, status="")
        self.bar.start()

    def show(self, status: Moment) -> None:
        """Move the bar."""
        if status.fraction is None:
            self.bar.update(self.task, total=None, status=str(status))
        else:
            self.bar.update(self.task, completed=min(1.0, status.fraction), status=str(status))

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.stop()


def rate(each_second: float) -> str:
    """A speed for people: two digits below 10, as long documents take seconds each and 0 would say nothing."""
    return f"{each_second:,.0f}" if each_second >= 10 else f"{each_second:.2g}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
