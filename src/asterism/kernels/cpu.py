"""The fused CPU kernel: cpu.cpp, built at first use and called through ctypes.

The library is built by the machine's own C++ compiler for the machine's own instruction set, in about ten seconds, and
kept in a folder per source, compiler and instruction set, so that a changed one is built anew. It needs no header of
PyTorch or Python. The folder is $ASTERISM_CACHE, by default ~/.cache/asterism (after $XDG_CACHE_HOME).
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Pass, Plan
from asterism.compiler.plan import Booleans
from asterism.errors import KernelError
from asterism.kernels.operator import Attended, Operands, operator

DTYPES = (torch.float32, torch.bfloat16)
"""What the kernel computes."""

LARGEST_HEAD_DIM = 256

_GROUP = 16
"""Queries, or keys, that the kernel skips together in tiles with masks (kGroup in cpu.cpp)."""

_SOURCE = Path(__file__).with_name("cpu.cpp")

_log = logging.getLogger("asterism")


def refusal(q: Tensor, v: Tensor) -> str | None:
    """Why the kernel cannot take these operands and what would work, or None if it can."""
    if q.device.type != "cpu":
        return f"implementation 'cpu' works on CPU tensors, got {q.device}: use 'auto'"
    if q.dtype not in DTYPES:
        return f"implementation 'cpu' takes float32 and bfloat16, got {q.dtype}: use 'eager' or convert"
    if max(q.shape[3], v.shape[3]) > LARGEST_HEAD_DIM:
        widths = f"{q.shape[3]} for q and k and {v.shape[3]} for v"
        return f"implementation 'cpu' takes a head_dim of at most {LARGEST_HEAD_DIM}, got {widths}: use 'eager'"
    return None


# --- building --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The kernel's library, built if need be. Raises KernelError with the reason if that is impossible."""
    compiler, flags = _compiler(), _flags()
    folder = _cache() / f"cpu-{_key(compiler, flags)}"
    if not _is_whole(folder):
        _build([*compiler, *flags], folder)
    loaded = ctypes.CDLL(str(folder / "kernel.so"))
    for function in (loaded.asterism_forward, loaded.asterism_backward):
        function.argtypes, function.restype = [ctypes.POINTER(_Problem)], None
    return loaded


def is_available() -> bool:
    """Whether the kernel can be had; if not, says why, once."""
    return _can_be_had()


# What torch.compiler.assume_constant_result does, without its second of imports: the answer never changes.
is_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def _can_be_had() -> bool:
    try:
        library()
    except KernelError as error:
        _log.warning("attention takes the slower implementation 'eager': %s", error)
        return False
    return True


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    found = next((name for name in ([named] if named else ["c++", "g++", "clang++"]) if _which(name)), None)
    if found is None:
        seen = f"CXX={named} is not a program" if named else "none of c++, g++, clang++ is on the PATH"
        raise KernelError(
            f"implementation 'cpu' needs a C++17 compiler with OpenMP; {seen}. Install one (Debian, Ubuntu: apt install"
            " g++; Fedora: dnf install gcc-c++; conda: conda install cxx-compiler) or use implementation='eager'"
        )
    return shlex.split(found)


def _which(command: str) -> str | None:
    return shutil.which(shlex.split(command)[0])


def _flags() -> list[str]:
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    return ["-std=c++17", "-O3", native, "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared"]


def _cache() -> Path:
    if chosen := os.environ.get("ASTERISM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asterism"


def _key(compiler: list[str], flags: list[str]) -> str:
    """A digest of the source, the flags, and all that the compiler predefines: its version and instruction sets."""
    macros = _run([*compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull])
    return hashlib.sha256("\0".join([_SOURCE.read_text(), *flags, macros]).encode()).hexdigest()[:20]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise KernelError(
            f"the CPU kernel cannot be built: {' '.join(command[:1])} says {complaint!r}."
            " Set CXX to a C++17 compiler with OpenMP (g++ 11 or newer), or use implementation='eager'"
        )
    return done.stdout


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds a library with the digest that it was built with."""
    try:
        return _digest(folder) == (folder / "kernel.sha256").read_text()
    except OSError:
        return False


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "kernel.so").read_bytes()).hexdigest()


def _build(command: list[str], folder: Path) -> None:
    """Builds beside the folder and moves the result there at once: another process never sees half a library."""
    _log.warning("building the CPU kernel, once, in about ten seconds")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
            fresh = Path(name) / "kernel"
            fresh.mkdir()
            _run([*command, "-o", str(fresh / "kernel.so"), str(_SOURCE)])
            (fresh / "kernel.sha256").write_text(_digest(fresh))
            if not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
            try:
                fresh.rename(folder)
            except OSError:
                if not _is_whole(folder):  # else another process was faster
                    raise
    except OSError as error:
        raise KernelError(
            f"the CPU kernel cannot be kept in {folder.parent}: {error}. Set ASTERISM_CACHE to a folder that can be"
            " written, or use implementation='eager'"
        ) from error


# --- the structures of cpu.cpp ---------------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "token", "feature"))]

    @classmethod
    def of(cls, name: str, x: Tensor, dtype: torch.dtype, *shape: int) -> "_Tensor":
        return cls(_pointer(name, x, dtype, *shape, strided=True), *x.stride())


def _pointer(name: str, x: Tensor, dtype: torch.dtype, *shape: int, strided: bool = False) -> int:
    """Where the numbers of a CPU tensor lie. Nothing else takes a pointer: C++ believes whatever it is told of one."""
    fits = x.device.type == "cpu" and x.layout == torch.strided and x.dtype == dtype and tuple(x.shape) == shape
    if not fits or not (strided or x.is_contiguous()) or x.data_ptr() % x.element_size():
        raise KernelError(
            f"the CPU kernel needs {name} as {dtype} {list(shape)} on the CPU{'' if strided else ', contiguous'},"
            f" got {x.dtype} {list(x.shape)} on {x.device} with strides {x.stride()}"
        )
    return x.data_ptr()


class _Pass(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query_index", "key_index")),
        *((name, ctypes.c_int64) for name in ("n_queries", "n_keys", "n_rows")),
        *((name, ctypes.c_void_p) for name in ("row_offsets", "columns", "kinds", "list_of_head")),
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "kv_heads", "n_queries", "n_keys", "dim", "value_dim", "query_offset")
        ),
        *((name, ctypes.c_int64) for name in ("tile", "n_passes", "words")),
        *((name, ctypes.c_void_p) for name in ("passes", "masks", "live", "has_unread", "key_mask", "segments")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("is_bfloat16", "threads", "poison")),
        *((name, _Tensor) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("out", "residual", "lse")),
        ("grad_out", _Tensor),
        *((name, ctypes.c_void_p) for name in ("grad_lse", "grad_q", "grad_k", "grad_v")),
    ]


class _Program:
    """A plan as the structures of cpu.cpp, for a number of heads; holds the arrays that they point to."""

    def __init__(self, plan: Plan, heads: int):
        self.plan = plan
        self.words = -(-plan.tile // 64)
        allowed = plan.tile_masks(np.arange(len(plan.masks) + 1, dtype=np.int32))
        self.masks, self.live = _transposed_masks(allowed[1:], self.words), _live_groups(allowed)
        self.has_unread = _has_unread(allowed)
        self.lists = [_list_of_head(part, plan.heads, heads) for part in plan.passes]
        self.passes = (_Pass * len(plan.passes))(
            *(self._pass(part, lists) for part, lists in zip(plan.passes, self.lists, strict=True))
        )

    @staticmethod
    def _pass(part: Pass, lists: np.ndarray) -> _Pass:
        index = (None if x is None else x.ctypes.data for x in (part.query_index, part.key_index))
        arrays = (part.row_offsets, part.columns, part.kinds, lists)
        n_rows = part.row_offsets.shape[1] - 1
        return _Pass(*index, part.n_queries, part.n_keys, n_rows, *(x.ctypes.data for x in arrays))


def _transposed_masks(allowed: Booleans, words: int) -> np.ndarray:
    """uint64 [masks, key of the tile, words] of allowed [masks, query, key]: bit i says whether query i may read."""
    packed = np.packbits(allowed.transpose(0, 2, 1), axis=-1, bitorder="little")
    padded = np.zeros((*packed.shape[:2], words * 8), np.uint8)
    padded[..., : packed.shape[-1]] = packed
    return padded.view(np.uint64)


def _live_groups(allowed: Booleans) -> np.ndarray:
    """uint8 [kinds, groups of queries, 2]: the first group of keys that one of them may read, and one past the last.

    By 16 queries and 16 keys of allowed [kinds, query, key].
    """
    kinds, groups = len(allowed), allowed.shape[1] // _GROUP
    live = np.logical_or.reduce(allowed.reshape(kinds, groups, _GROUP, groups, _GROUP), axis=(2, 4))
    first, past = np.argmax(live, axis=-1), groups - np.argmax(live[..., ::-1], axis=-1)
    return np.ascontiguousarray(np.stack([first, np.where(live.any(axis=-1), past, first)], axis=-1).astype(np.uint8))


def _has_unread(allowed: Booleans) -> np.ndarray:
    """uint8 [kinds]: whether there are keys that no query of the tile may read."""
    read = np.logical_or.reduce(allowed, axis=1)
    return np.asarray(~np.logical_and.reduce(read, axis=1), np.uint8)


def _list_of_head(part: Pass, plan_heads: int, heads: int) -> np.ndarray:
    """int32 [heads]: which list of tiles a head has in the pass, -1 for none."""
    if plan_heads == 1:
        return np.zeros(heads, np.int32)
    lists = np.full(heads, -1, np.int32)
    lists[list(part.heads)] = 0 if part.lists == 1 else np.arange(part.lists)
    return lists


@lru_cache(maxsize=128)
def _program(plan: Plan, heads: int) -> _Program:
    return _Program(plan, heads)


# --- calling ---------------------------------------------------------------------------------------------------------


def _problem(operands: Operands, key_mask: Tensor | None, segments: Tensor | None) -> _Problem:
    q, k, v, plan = operands.q, operands.k, operands.v, operands.plan
    program = _program(plan, q.shape[1])
    batch, heads, n_queries, dim = q.shape
    kv_heads, n_keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    problem = _Problem(batch, heads, kv_heads, n_queries, n_keys, dim, value_dim, plan.query_offset)
    problem.tile, problem.n_passes, problem.words = plan.tile, len(plan.passes), program.words
    problem.passes, problem.masks = ctypes.addressof(program.passes), program.masks.ctypes.data
    problem.live, problem.has_unread = program.live.ctypes.data, program.has_unread.ctypes.data
    if key_mask is not None:
        problem.key_mask = _pointer("key_mask", key_mask, torch.bool, batch, n_keys)
    if segments is not None:
        problem.segments = _pointer("segments", segments, torch.int64, batch, n_keys)
    problem.scale, problem.is_bfloat16 = operands.scale, q.dtype == torch.bfloat16
    problem.threads, problem.poison = torch.get_num_threads(), bool(os.environ.get("ASTERISM_POISON"))
    problem.q = _Tensor.of("q", q, q.dtype, *q.shape)
    problem.k = _Tensor.of("k", k, q.dtype, batch, kv_heads, n_keys, dim)
    problem.v = _Tensor.of("v", v, q.dtype, batch, kv_heads, n_keys, value_dim)
    return problem


def _set_results(problem: _Problem, operands: Operands, attended: Attended) -> None:
    q, shape = operands.q, (*operands.q.shape[:3], operands.v.shape[3])
    problem.out = _pointer("out", attended.out, q.dtype, *shape)
    problem.lse = _pointer("lse", attended.lse, torch.float32, *shape[:3])
    if q.dtype != torch.float32:
        problem.residual = _pointer("residual", attended.residual, q.dtype, *shape)


def _batch_operands(operands: Operands) -> tuple[Tensor | None, Tensor | None]:
    key_mask, segments = operands.key_mask, operands.segments
    return (
        None if key_mask is None else key_mask.contiguous(),
        None if segments is None else segments.to(torch.int64).contiguous(),
    )


def _forward(operands: Operands) -> Attended:
    q, v = operands.q, operands.v
    shape = (*q.shape[:3], v.shape[3])
    out = q.new_zeros(shape)
    residual = q.new_zeros(0 if q.dtype == torch.float32 else shape)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)
    attended = Attended(out, lse, residual)
    held = _batch_operands(operands)
    problem = _problem(operands, *held)
    _set_results(problem, operands, attended)
    if out.numel():
        library().asterism_forward(problem)
    return attended


def _backward(
    operands: Operands, attended: Attended, grad_out: Tensor, grad_lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = operands.q, operands.k, operands.v
    grad_q, grad_k, grad_v = (x.new_zeros(x.shape) for x in (q, k, v))
    held = _batch_operands(operands)
    problem = _problem(operands, *held)
    _set_results(problem, operands, attended)
    problem.grad_out = _Tensor.of("grad_out", grad_out, q.dtype, *attended.out.shape)
    problem.grad_lse = _pointer("grad_lse", grad_lse, torch.float32, *attended.lse.shape)
    problem.grad_q = _pointer("grad_q", grad_q, q.dtype, *q.shape)
    problem.grad_k = _pointer("grad_k", grad_k, q.dtype, *k.shape)
    problem.grad_v = _pointer("grad_v", grad_v, q.dtype, *v.shape)
    if q.numel() and k.numel():
        library().asterism_backward(problem)
    return grad_q, grad_k, grad_v


cpu = operator("cpu", _forward, _backward)
"""Fused attention over tiles in C++, as an operator (kernels/operator.py)."""
