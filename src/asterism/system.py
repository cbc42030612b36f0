"""What Linux and macOS give and Windows does not: locks that end with their holder, and forks."""

import errno
import os
from collections.abc import Callable
from typing import Protocol

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether `lock` works. What writes run folders needs it; attention does without."""


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def lock(file: int | HasDescriptor, *, wait: bool = False) -> None:
    """Lock an open file against other processes until it is closed, however its holder ends.

    Raises BlockingIOError if another holds it and `wait` is False, OSError where the file system or the system has no
    locks.
    """
    if not HAS_LOCKS:
        raise OSError(errno.ENOLCK, "locks that end with their holder need Linux or macOS (on Windows: WSL)")
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def after_fork(call: Callable[[], None]) -> None:
    """Have children that are forked from this process begin with `call`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
