"""Memory that a step gives back is there for the next one.

The tensors of a step are too large for the C library to keep by itself: it hands them back to the system as soon as
they are free, and the system clears every page anew, ten thousand of them in a step of `bytes-small`, a twentieth of
its time. Only speed changes. Other C libraries than glibc have no such setting and are left as they are.

Where rows vary in length, a step rarely fits into the blocks that earlier ones gave back: these are cut up, with what
lives on between them, and the heap grows as long as there are new lengths. So what is free is given back to the system
whenever it has become much more than a step needs; where all steps are alike, that is never.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of settings in glibc's malloc.h."""

_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc takes no larger one, and by itself ends at this one in a process that frees such blocks, with twice as much as
the other threshold."""

_RESIDENT = Path("/proc/self/statm")

_MOST_STEPS = 1.5
"""How much may be kept, in units of what the longest step needed that was measured."""


class Heap:
    """What steps leave behind, kept within a bound; `tidy` is called between them."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.can_tidy = hasattr(self.library, "malloc_trim") and _RESIDENT.exists()
        self.before = 0  # resident bytes when nothing was kept; 0 if that was never so
        self.need = 0
        self.is_measuring = False

    def tidy(self) -> None:
        """Give back what is free, if it is more than steps need."""
        if not self.can_tidy:
            return
        resident = _resident_bytes()
        if self.is_measuring:
            self.need, self.is_measuring = max(self.need, resident - self.before), False
        elif not self.before or resident - self.before > _MOST_STEPS * self.need:
            self.library.malloc_trim(0)
            self.before, self.is_measuring = _resident_bytes(), True


def _resident_bytes() -> int:
    """How much memory this process has."""
    return int(_RESIDENT.read_text().split()[1]) * mmap.PAGESIZE


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within the body, blocks of up to 32 MiB that are freed stay with the process; at the end they are given back."""
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
