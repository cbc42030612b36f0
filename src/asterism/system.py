"""Files and processes as the system has them: what state a file is in, locks that end with their holder,
forks, and how many processes were launched together.

Windows has neither such locks nor forks.
"""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether `lock` works. What writes run folders needs it; attention does without."""


def lock(file: int | IO[Any], *, wait: bool = False) -> None:
    """Lock an open file against other processes until it is closed, however its holder ends.

    Raises BlockingIOError if another holds it and `wait` is False, OSError where the file system or the system has no
    locks.
    """
    if not HAS_LOCKS:
        raise OSError(errno.ENOLCK, "locks that end with their holder need Linux or macOS (on Windows: WSL)")
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def end_with(parent: int) -> None:
    """From now on end this process at once when its parent has gone, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_module(
    module: str, request: Mapping[str, Any], environment: Mapping[str, str], timeout: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Call `main(request)` of a module in a process of its own, with the modules that this process would import.

    The process has these environment variables, and ends with this one. Raises subprocess.TimeoutExpired.
    """
    given = json.dumps({"path": sys.path, "module": module, "request": request})
    # -P: a file of the working directory is not taken for a module of Python
    command = [sys.executable, "-P", "-c", _CHILD, given]
    return subprocess.run(command, capture_output=True, text=True, env=dict(environment), timeout=timeout)


_CHILD = """
import importlib, json, os, sys
given, parent = json.loads(sys.argv[1]), os.getppid()
sys.path[:] = given["path"]
importlib.import_module("asterism.system").end_with(parent)
importlib.import_module(given["module"]).main(given["request"])
"""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within the body no other process is within one of the same path, a file that is made and left behind.

    The lock ends with its holder, so who is killed stops nobody. A file system without locks lets every process in.
    Raises OSError if the file cannot be made.
    """
    with path.open("ab") as file:
        with suppress(OSError):
            lock(file, wait=True)
        yield


def launched() -> int:
    """How many processes a launcher (torchrun, accelerate launch, SLURM) says there are."""
    count = os.environ.get("WORLD_SIZE", "")
    return int(count) if count.isdecimal() else 1


def after_fork(call: Callable[[], None]) -> None:
    """Have children that are forked from this process begin with `call`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def state_of(file: Path | int) -> tuple[int, int, int]:
    """Inode, size in bytes and time of change of a file, named by its path or descriptor: what changes with it."""
    seen = os.stat(file)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a file's content, of which little is in memory at a time. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
