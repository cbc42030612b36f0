"""Let one process of a machine make what all would make of the same data, such as tokens, and let all read it.

Within `shared`, results are stored in a temporary folder, under a lock of the system that ends with its holder. Later
processes wait and read the stored result. If the holder fails, the next one tries. The folder is removed after the
body; mapped files stay as long as they are used. Outside of `shared`, every process makes its own result.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from asterism.errors import CheckpointError, DataError
from asterism.files import replacing
from asterism.system import alone

Thing = TypeVar("Thing")

_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def shared(name: str | None) -> Iterator[None]:
    """Within the body, all processes of this machine with the same name make results once. None means a single process.

    They must leave the body together.
    """
    folder = None if name is None else Path(tempfile.gettempdir()) / f"asterism-{name}"
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def made_once(
    name: str, make: Callable[[], Thing], write: Callable[[Thing, Path], object], read: Callable[[Path], Thing]
) -> Thing:
    """The result of `make`, which `write` stores in a folder and `read` reads from it.

    Raises what `make` raises, and DataError if the disk takes no more.
    """
    folder = _FOLDER.get()
    if folder is None:
        return make()
    place = folder / hashlib.sha256(name.encode()).hexdigest()
    with ExitStack() as locked:
        with _naming(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            locked.enter_context(alone(place.with_suffix(".lock")))
        if not place.exists():
            made = make()
            with _naming(folder), replacing(place) as temporary:
                write(made, temporary)
            del made
        return read(place)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, CheckpointError) as error:
        raise DataError(
            "temporary-folder",
            f"data: files that the processes of a run share are written to {folder}, which failed: {error}; set"
            " TMPDIR to a folder with more room",
        ) from None
