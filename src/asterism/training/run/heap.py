"""Memory that a step gives back is there for the next one.

The tensors of a step are too large for the C library to keep by itself: it hands them back to the system as soon as
they are free, and the system clears every page anew, ten thousand of them in a step of `bytes-small`, a twentieth of
its time. Only speed changes. Other C libraries than glibc have no such setting and are left as they are.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of settings in glibc's malloc.h."""

_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc takes no larger one, and by itself ends at this one in a process that frees such blocks, with twice as much as
the other threshold."""


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
