"""Of several processes one prints, so that an error that all of them encounter is printed once.

The launcher's store, which every process of a run reaches, records which one was first. The others give process 0 time.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from asterism.system import launched

_LEADERS_TURN = 5.0
"""Seconds for which the others wait for process 0 to print; launchers give them more before they kill."""


def is_follower() -> bool:
    """Whether a launcher started this process, and it is not process 0."""
    rank = os.environ.get("RANK", "")
    return rank.isdecimal() and int(rank) > 0 and launched() > 1


def may_print() -> bool:
    """Whether this process, which ends, prints why: one alone, process 0, or the first where process 0 is silent.

    From then on SIGTERM does not end it.
    """
    if launched() == 1:
        return True
    if threading.current_thread() is threading.main_thread():  # the launcher ends everybody when process 0 has gone
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    claims, until = _Claims(), time.monotonic() + _LEADERS_TURN
    while is_follower() and time.monotonic() < until:
        if claims.taken():
            return False
        time.sleep(0.05)
    return claims.claim()


def print_how_to_resume(verb: str, argv: Sequence[str], output: str | None) -> None:
    """Print the command that resumes an output, if it was begun."""
    from asterism.training.ask.prediction_output import can_go_on  # takes seconds to import

    if output is not None and can_go_on(output):
        words = [word for word in argv if word != "--resume"]
        print(f"resume with: asterism {verb} {shlex.join([*words, '--resume'])}", file=sys.stderr)


class _Claims:
    """Which process has printed; where there is no store, every process may."""

    def __init__(self) -> None:
        import torch.distributed as dist  # takes a second, and is there where processes have joined

        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        self.key = f"asterism/told/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self.store = None
        if host and port.isdecimal() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            try:
                patience = timedelta(seconds=_LEADERS_TURN)
                self.store = dist.TCPStore(host, int(port), None, False, patience, wait_for_workers=False)
            except RuntimeError:  # the launcher has gone
                pass

    def taken(self) -> bool:
        """Whether a process has printed."""
        return self.store is not None and bool(self.store.check([self.key]))

    def claim(self) -> bool:
        """Whether none has before this call."""
        return self.store is None or self.store.add(self.key, 1) == 1
