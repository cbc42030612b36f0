"""Hold back SIGINT and SIGTERM until it is safe to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The signal that arrived at this process, if any, and the one at any process of the run, as agreed by all."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.agreed: int | None = None


@contextmanager
def held_back() -> Iterator[Interrupts]:
    """Within the body, the first SIGINT or SIGTERM is only noted; the second acts at once.

    When the body ends without an error, the noted signal is raised again for the handler that was there before, and
    should that return, KeyboardInterrupt is raised. Ignored signals stay ignored. Outside the main thread, where Python
    delivers no signals, nothing is held back.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    held = [number for number in SIGNALS if previous[number] not in (signal.SIG_IGN, None)]

    def restore() -> None:
        for number in held:
            signal.signal(number, previous[number])

    def note(number: int, frame: FrameType | None) -> None:
        if interrupts.received is not None:
            restore()
            signal.raise_signal(number)
        interrupts.received = number

    for number in held:
        signal.signal(number, note)
    try:
        yield interrupts
    finally:
        restore()
    if interrupts.received is not None:
        signal.raise_signal(interrupts.received)
        raise KeyboardInterrupt
