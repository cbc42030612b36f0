"""Keep the memory that a step frees for the next one.

The tensors of a step are so large that the C library returns them to the system as soon as they are freed. The system
then clears every page again: ten thousand pages in a step of `bytes-small`, a twentieth of its time. Only speed
changes. C libraries other than glibc have no such setting and are left alone.

If rows vary in length, a step rarely fits into the blocks that earlier steps freed. The heap fragments and grows with
every new length. So free memory is returned to the system whenever it is much more than a step needs. If all steps are
alike, that never happens.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of settings in glibc's malloc.h."""

_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc's largest threshold, which it reaches by itself in a process that frees such blocks, with twice as much for the
other threshold."""

_RESIDENT = Path("/proc/self/statm")

_MOST_STEPS = 1.5
"""The bound of kept memory, as a multiple of the need of the longest measured step."""


class Heap:
    """Bounds the free memory that steps leave behind; `tidy` is called between steps."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.can_tidy = hasattr(self.library, "malloc_trim") and _RESIDENT.exists()
        self.before = 0  # resident bytes when nothing was kept; 0 if that was never so
        self.need = 0
        self.is_measuring = False

    def tidy(self) -> None:
        """Return free memory to the system, if it is more than steps need."""
        if not self.can_tidy:
            return
        resident = _resident_bytes()
        if self.is_measuring:
            self.need, self.is_measuring = max(self.need, resident - self.before), False
        elif not self.before or resident - self.before > _MOST_STEPS * self.need:
            self.library.malloc_trim(0)
            self.before, self.is_measuring = _resident_bytes(), True


def _resident_bytes() -> int:
    """Bytes of memory that this process occupies."""
    return int(_RESIDENT.read_text().split()[1]) * mmap.PAGESIZE


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within the body, freed blocks of up to 32 MiB stay with the process. At the end they are returned to the
    system.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_MMAP_THRESHOLD)
        library.malloc_trim(0)
