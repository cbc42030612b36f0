"""Signs of life while nothing else is printed: a line on stderr, where that is a terminal, which leaves no trace."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from asterism.cli.help import terminal_width
from asterism.cli.processes import is_follower

_SECONDS_BETWEEN = 0.5

_SPINNER = "|/-\\"


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show on a terminal what is being done, and for how many seconds, until the body ends.

    The first line comes at once: what follows may be an import, during which no other thread runs. The body prints by
    `output.say`, or not at all.
    """
    if not sys.stderr.isatty() or is_follower():
        yield
        return
    line, outer = _Line(text), _Line.current
    if outer is not None:
        outer.stop()
    _Line.current = line
    line.start()
    try:
        yield
    finally:
        if _Line.current is not None:
            _Line.current.stop()
        _Line.current = None if outer is None else outer.again()


def print_above(text: str) -> None:
    """Print a line on stderr that stays, above the line of `waiting` if there is one."""
    line = _Line.current
    if line is None:
        print(text, file=sys.stderr, flush=True)
        return
    with line.lock:
        line.erase()
        print(text, file=sys.stderr, flush=True)
        line.draw()


class _Line:
    """The last line of a terminal, drawn by a thread of its own."""

    current: "_Line | None" = None

    def __init__(self, text: str) -> None:
        self.text, self.began = text, time.monotonic()
        self.lock, self.over = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._run, name="waiting", daemon=True)

    def start(self) -> None:
        self.draw()
        self.thread.start()

    def again(self) -> "_Line":
        """The same line, shown once more, whose seconds go on."""
        line = _Line(self.text)
        line.began = self.began
        line.start()
        return line

    def stop(self) -> None:
        self.over.set()
        self.thread.join()
        self.erase()

    def _run(self) -> None:
        while not self.over.wait(_SECONDS_BETWEEN):
            with self.lock:
                self.draw()

    def draw(self) -> None:
        seconds = time.monotonic() - self.began
        spinner = _SPINNER[int(seconds / _SECONDS_BETWEEN) % len(_SPINNER)]
        told = f"{spinner} {self.text}" + (f" ({seconds:.0f} s)" if seconds >= 1 else "")
        self._write(f"\r\x1b[K{told[: terminal_width() - 1]}")

    def erase(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads stderr any more
            self.over.set()
