"""The interface of Python and C++: the structures of interface.hpp, and pointers, checked before they are taken.

The structures have their names in C++, by which the two are compared: so `Pass`, `Task` and `Terms` are here, too.
"""

import ctypes
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from asterism.errors import KernelError

GROUP = 16
"""Queries, or keys, that the kernel skips together in tiles with masks (kGroup)."""


_FAILURES = {
    1: "the CPU kernel found no memory to work in: use a smaller batch, shorter sequences or fewer threads",
    2: "the CPU kernel could not start a thread: raise the limit on processes, or call torch.set_num_threads(1)",
}
"""What a status means (Status in kernel.cpp)."""


class Tensor(ctypes.Structure):
    """Numbers [batch, heads, tokens, features] of the dtype that the kernel is called for, with strides in elements."""

    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "token", "feature"))]

    @classmethod
    def of(cls, name: str, x: torch.Tensor, dtype: torch.dtype, *shape: int) -> "Tensor":
        return cls(_checked(name, x, dtype, shape).data_ptr(), *x.stride())


class Pass(ctypes.Structure):
    """One token order of a plan with its tiles."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query_index", "key_index")),
        *((name, ctypes.c_int64) for name in ("n_queries", "n_keys", "n_rows")),
        *((name, ctypes.c_void_p) for name in ("row_offsets", "columns", "kinds", "list_of_head")),
    ]


class Terms(ctypes.Structure):
    """Terms of scores and weights: tables, numbers, and where gradients of the tables go (interface.hpp)."""

    _fields_ = [
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bias_heads", "bias_head", "bias_distance")),
        ("relative", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("n_relative", "relative_distance", "relative_feature")),
        *((name, ctypes.c_int64) for name in ("seed", "dropped_below")),
        *((name, ctypes.c_float) for name in ("softcap", "kept_factor")),
        *((name, ctypes.c_void_p) for name in ("grad_bias", "grad_relative")),
    ]


class Problem(ctypes.Structure):
    """All that one call is given. `holds` and `given_terms` keep alive what pointers point to, as long as it lives."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "kv_heads", "n_queries", "n_keys", "dim", "value_dim", "query_offset")
        ),
        *((name, ctypes.c_int64) for name in ("tile", "n_passes", "words")),
        *((name, ctypes.c_void_p) for name in ("passes", "masks", "live", "has_unread")),
        *((name, ctypes.c_void_p) for name in ("key_mask", "segments", "terms")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("is_bfloat16", "threads", "poison")),
        *((name, Tensor) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("out", "residual", "lse")),
        ("grad_out", Tensor),
        *((name, ctypes.c_void_p) for name in ("grad_lse", "grad_q", "grad_k", "grad_v")),
    ]
    holds: tuple[Any, ...]
    given_terms: Terms | None


class Chosen(ctypes.Structure):
    """Blocks that queries chose, and where the gradients of attention to them go (interface.hpp)."""

    _fields_ = [
        ("indices", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("heads", "shares", "width", "block", "query_block")),
        *((name, ctypes.c_void_p) for name in ("delta", "grad_q", "grad_k", "grad_v")),
    ]


class Mass(ctypes.Structure):
    """Of which pass the mass of tiles is wanted, by runs of how many tokens, and where it goes (interface.hpp)."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("pass", "run", "entries")), ("to", ctypes.c_void_p)]


class Runs(ctypes.Structure):
    """A set of blocks for each query (interface.hpp)."""

    _fields_ = [("offsets", ctypes.c_void_p), ("bounds", ctypes.c_void_p)]


class Choices(ctypes.Structure):
    """Queries against what stands for blocks of keys, and where the choice goes (interface.hpp)."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "n_queries", "n_blocks", "dim", "row", "topk", "width")
        ),
        *((name, ctypes.c_void_p) for name in ("q", "keys", "readable")),
        *((name, Runs) for name in ("may", "must")),
        *((name, ctypes.c_void_p) for name in ("indices", "counts")),
        *((name, ctypes.c_int32) for name in ("threads", "poison")),
    ]


class Slots(ctypes.Structure):
    """A few queries against the slots of a cache (interface.hpp)."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "kv_heads", "n_queries", "n_slots", "dim", "value_dim")
        ),
        *((name, Tensor) for name in ("q", "k", "v", "allowed", "before", "bias")),
        *((name, ctypes.c_void_p) for name in ("sinks", "out", "lse")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        *((name, ctypes.c_int32) for name in ("is_bfloat16", "threads", "poison")),
    ]


class Task(ctypes.Structure):
    """What a thread does in one go (interface.hpp)."""

    _fields_ = [(name, ctypes.c_int64) for name in ("phase", "tiles", "cut", "rows", "floats")]


def pointer(name: str, x: torch.Tensor, dtype: torch.dtype, *shape: int) -> int:
    """Where the numbers of a contiguous CPU tensor x [*shape] of that dtype lie.

    Raises KernelError if it is not what C++ will take it for.
    """
    if not x.is_contiguous():
        raise KernelError(
            "not-contiguous", f"the CPU kernel needs {name} contiguous, got strides {x.stride()} for {list(x.shape)}"
        )
    return _checked(name, x, dtype, shape).data_ptr()


def strided_pointer(name: str, x: torch.Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The same for a tensor x [*shape] of that dtype that C++ reads by its strides."""
    return _checked(name, x, dtype, shape).data_ptr()


def address(x: np.ndarray, dtype: type[np.generic]) -> int:
    """Where the numbers of a contiguous array x [n, ...] of that dtype lie; the array must outlive the use."""
    if x.dtype != dtype or not x.flags.c_contiguous or not x.flags.aligned:
        raise KernelError(
            "plan-array", f"the CPU kernel needs a plan's array contiguous, of {dtype.__name__}, got {x.dtype}"
        )
    return int(x.ctypes.data)


def call(function: Callable[[Problem], int], problem: Problem) -> None:
    """Calls into the library. Raises KernelError if it reports that it could not finish."""
    check(function(problem))


def check(status: int) -> None:
    """Raises KernelError for a call into the library that could not finish."""
    if status:
        raise KernelError(
            "kernel-failed", _FAILURES.get(status, f"the CPU kernel ended with status {status} (a bug in Asterism)")
        )


def _checked(name: str, x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    is_strided = x.device.type == "cpu" and x.layout == torch.strided
    if not is_strided or x.dtype != dtype or tuple(x.shape) != shape or x.data_ptr() % x.element_size():
        raise KernelError(
            "not-cpu-operand",
            f"the CPU kernel needs {name} as {dtype} {list(shape)} in aligned memory of the CPU,"
            f" got {x.dtype} {list(x.shape)} on {x.device}",
        )
    return x


# --- the handshake ---------------------------------------------------------------------------------------------------


def layout() -> str:
    """Where each field lies, in words that asterism_layout() of interface.hpp uses too."""
    lines = [f"group {GROUP}"]
    for structure in (Tensor, Pass, Terms, Problem, Chosen, Mass, Runs, Choices, Slots, Task):
        lines.append(f"{structure.__name__} {ctypes.sizeof(structure)}")
        for field in structure._fields_:
            seen = getattr(structure, field[0])
            lines.append(f"{structure.__name__}.{field[0]} at {seen.offset}, {seen.size} bytes")
    return "\n".join(lines)


def require_same_layout(library: ctypes.CDLL) -> None:
    """Raises KernelError if the library was compiled for other structures than these: it would read at wrong places."""
    library.asterism_layout.restype = ctypes.c_char_p
    ours, theirs = layout().splitlines(), library.asterism_layout().decode().splitlines()
    if ours != theirs:
        pairs = zip_longest(ours, theirs, fillvalue="nothing")
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        raise KernelError(
            "structures-disagree",
            f"the CPU kernel and interface.py disagree: {one!r} in Python is {other!r} in C++. Reinstall asterism, or"
            " use implementation='eager'",
        )
