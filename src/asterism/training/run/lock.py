"""Ensure that only one process at a time writes into a run folder.

The lock belongs to the kernel, on an open file. It ends with the process, however that ends, so it cannot become stale.
"""

import errno
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asterism.errors import CheckpointError
from asterism.files import make_folder, writing
from asterism.system import HAS_LOCKS, after_fork, lock

LOCK = ".lock"
_HOLDER = "process "
"""How the content of the file begins, which names the holder."""
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock within the body; folders made for it are removed again if the body leaves them empty.

    Children forked within the body do not hold it. On a file system without locks, a warning is shown and the body
    runs. Raises CheckpointError, which names the holder, if another process or thread has the lock, and on a system
    without such locks.
    """
    if not HAS_LOCKS:
        raise CheckpointError("no-locks", f"{folder} cannot be locked: runs need Linux or macOS (on Windows: WSL)")
    with writing(folder):
        made = make_folder(folder)
        lock = _Lock(folder / LOCK)
    try:
        yield
    finally:
        if lock.release():
            with suppress(OSError):  # the first that is not empty
                for path in made:
                    path.rmdir()


class _Lock:
    """A lock that is held, as a file that names its holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = self._acquire()
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, f"{_HOLDER}{os.getpid()} on {socket.gethostname()}".encode())
        # A child's copy of the descriptor would keep the lock when this process has ended.
        after_fork(self._forget)

    def release(self) -> bool:
        """Release the lock, and remove the file. Returns False in a forked child, which does not hold it."""
        if self.descriptor is None:
            return False
        with suppress(OSError):  # where nothing can be removed, the next holder takes the file over
            self.path.unlink(missing_ok=True)  # first, while nobody else can hold the lock on a new file of this name
        self._forget()
        return True

    def _forget(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _acquire(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                lock(descriptor)
                content = os.pread(descriptor, 300, 0)
                if content and not content.startswith(_HOLDER.encode()):
                    os.close(descriptor)
                    raise CheckpointError(
                        "foreign-lock", f"{self.path} is not the lock of a run; give another folder, or remove the file"
                    )
                if _is_there(self.path, descriptor):  # else its holder removed it after it was opened here
                    return descriptor
            except BlockingIOError:
                holder = os.read(descriptor, 300).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise CheckpointError(
                    "run-in-use",
                    f"{self.path.parent} is in use by {holder}, which writes there; wait until it ends, or stop it",
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(descriptor)
                    raise
                warnings.warn(
                    f"{self.path.parent}: the file system has no locks; let no two processes write here at a time",
                    stacklevel=5,
                )
                return descriptor
            os.close(descriptor)


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
