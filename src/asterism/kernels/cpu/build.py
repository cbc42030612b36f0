"""The CPU kernel's library: shipped with a wheel, or built at first use and cached.

A wheel brings libraries (shipped.py). Where it does not, or CXX names a compiler, the machine's own C++ compiler builds
for the machine's own instruction set, its translation units on as many cores as there are. It needs no header of
PyTorch or Python. A library is kept in a folder whose name holds what it was made of: the sources, the flags, the
processor and the C library, then the compiler. So a changed one is built anew, machines that share a home do not take
each other's, and one that is there is found without running the compiler, or without having any.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from asterism.errors import KernelError
from asterism.kernels.cpu import cache, shipped
from asterism.kernels.cpu.compiling import OTHERWISE, Killed, compile_and_link
from asterism.kernels.cpu.interface import Choices, Chosen, Problem, Task, require_same_layout
from asterism.kernels.cpu.processor import features, limited_to, processor, processor_class
from asterism.kernels.cpu.sources import FLAGS, contents, digest, options, units
from asterism.system import HAS_LOCKS, lock

_ABANDONED = 3600
"""Seconds after which a build that is still unfinished was killed."""

_SECONDS = "kernel.seconds"
"""The file that says how long the build took."""

_OURS = b"asterism_layout"
"""A name that every library of the kernel holds."""

_PROCESSOR = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features", "isa", "cpu")
"""What Linux says of a processor that its instruction set and its tuning follow from."""

_ORIGINS = {"wheel": "the one that came with asterism", "built": "built on this machine"}

_log = logging.getLogger("asterism")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load the kernel's library, and build it if needed. Raises KernelError with the reason if that fails."""
    if not HAS_LOCKS:
        raise KernelError(
            "unsupported-system", f"implementation 'cpu' needs Linux or macOS, this is {platform.system()}: use 'eager'"
        )
    reasons: list[str] = []
    for way in _ways():
        try:
            found = way()
        except KernelError as error:
            reasons.append(str(error))
            continue
        if reasons:
            _log.warning("the CPU kernel is %s: %s", _ORIGINS[_origin(found)], "; ".join(reasons))
        return found
    raise KernelError("kernel-refused", "; ".join(reasons))


def _ways() -> list[Callable[[], ctypes.CDLL]]:
    """Where the library may come from, best first. Who names a compiler wants what it makes."""
    if not shipped.are_there():
        return [_native]
    return [_native, _shipped] if _named_compiler() else [_shipped, _native]


def _shipped() -> ctypes.CDLL:
    """The best library of the wheel that runs here. Raises KernelError with the reasons if there is none."""
    reasons: list[str] = []
    for file, sha256 in shipped.fitting():
        try:
            shipped.require_whole(file, sha256)
            shipped.require_openmp()
            loaded = _load(file)
        except OSError as error:
            reasons.append(str(error))
            continue
        if reasons:
            _log.warning("the CPU kernel uses fewer instructions than this processor has: %s", "; ".join(reasons))
        return loaded
    raise KernelError(
        "no-usable-library", f"none of the libraries that came with asterism can be used: {'; '.join(reasons)}"
    )


def _native() -> ctypes.CDLL:
    """A library of this machine's compiler, kept or built. Raises KernelError with the reason if there is none."""
    compiler, name = _compiler(), _native_identity()
    reasons, usable = [], []
    for place in cache.places():
        try:
            folder = cache.made(place)
            for kept in _kept(folder, name, compiler):
                return _load_kept(kept)
            usable.append(folder)
        except OSError as error:
            reasons.append(str(error))
    if isinstance(compiler, str):
        unfit = f" Nothing that was built before can be used: {'; '.join(reasons)}." if reasons else ""
        raise KernelError(
            "no-compiler", f"implementation 'cpu' needs a C++17 compiler with OpenMP; {compiler}, {OTHERWISE}.{unfit}"
        )
    for folder in usable:
        try:
            with _alone_in(folder):
                built = folder / f"{name}-{_identity(compiler)}"
                return _load_kept(built if _is_whole(built) else _build([*compiler, *_flags()], built))
        except OSError as error:
            reasons.append(f"{error} ({folder})")
    raise KernelError(
        "kernel-kept-nowhere",
        f"no folder can hold the CPU kernel: {'; '.join(reasons)}. Set ASTERISM_CACHE to a folder that you can write"
        f" to and run programs from, {OTHERWISE}",
    )


def origin() -> str:
    """Origin of the library in use: "wheel" if shipped with asterism, "built" if built on this machine.

    Raises KernelError if there is no kernel.
    """
    return _origin(library())


def _origin(loaded: ctypes.CDLL) -> str:
    return "wheel" if Path(loaded._name).parent == shipped.FOLDER else "built"


def seconds_of_build() -> float | None:
    """How long this machine took to build the library in use; None for one of a wheel, or of an older version.

    Raises KernelError if there is no kernel.
    """
    try:
        return float((Path(library()._name).parent / _SECONDS).read_text())
    except (OSError, ValueError):
        return None


def instruction_set() -> str:
    """Instruction set of the kernel's bfloat16 products: amx, avx512_bf16, avx512, avx2, neon or baseline.

    "amx (emulated)" is a build for tests. Raises KernelError if there is no kernel.
    """
    return str(library().asterism_instruction_set().decode())


def is_available() -> bool:
    """Whether the kernel is available; if not, warns once with the reason."""
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


def identity() -> str:
    """A name for the kernel on this machine: the same for the same sources, flags, processor, C library and origin."""
    if shipped.are_there() and not _named_compiler():
        with suppress(KernelError):
            return f"cpu-{digest(shipped.identity(), *_machine())}"
    return _native_identity()


def _native_identity() -> str:
    return f"cpu-{digest(*contents(), *_flags(), *_machine())}"


# --- what a library is made of ---------------------------------------------------------------------------------------


def _compiler() -> list[str] | str:
    """The command of the compiler, or why there is none and how to get one."""
    named = _named_compiler()
    for candidate in [named] if named else ["c++", "g++", "clang++"]:
        try:
            command = shlex.split(candidate)
        except ValueError as error:
            return f"CXX={named} is not a command ({error}): set it to a compiler and its options"
        if shutil.which(command[0]):
            return command
    seen = f"CXX={named} is not a program" if named else "none of c++, g++, clang++ is on the PATH"
    return (
        f"{seen}. Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++;"
        " conda: conda install cxx-compiler)"
    )


def _named_compiler() -> str:
    return os.environ.get("CXX", "").strip()


def _flags() -> list[str]:
    if limited_to():  # what other libraries may not use, ours leaves alone, so that a lesser machine can be tried here
        return [*FLAGS, *options(platform.machine(), processor_class())]
    return [*FLAGS, "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"]


def _machine() -> Iterator[str]:
    """What "native" depends on, and the C library that was linked."""
    yield from (platform.machine(), *platform.libc_ver())
    if first := processor():
        yield from (first.get(field, "") for field in _PROCESSOR)
    else:
        yield from (platform.processor(), platform.node())


def _identity(compiler: list[str]) -> str:
    """A digest of the compiler's file and of what it is told: asking for its version would be a process each time."""
    file = os.path.realpath(shutil.which(compiler[0]) or compiler[0])
    seen = os.stat(file)
    return digest(*compiler, file, str(seen.st_mtime_ns), str(seen.st_size))


# --- keeping and building --------------------------------------------------------------------------------------------


def _kept(folder: Path, name: str, compiler: list[str] | str) -> Iterator[Path]:
    """Whole libraries in the cache: that of the compiler, or, without one, whatever compiler made it."""
    wanted = "*" if isinstance(compiler, str) else _identity(compiler)
    for kept in sorted(folder.glob(f"{name}-{wanted}")):
        if _is_whole(kept):
            yield kept


def _load_kept(folder: Path) -> ctypes.CDLL:
    """Raises OSError if somebody else could have changed the library, or it cannot be loaded here."""
    file = folder / "kernel.so"
    cache.require_private(file)
    return _load(file)


def _load(file: Path) -> ctypes.CDLL:
    """Raises OSError if the library cannot be loaded here."""
    loaded = ctypes.CDLL(str(file))
    try:
        return _declared(loaded)
    except AttributeError as error:
        raise OSError(f"{file} is not the kernel's library ({error})") from error


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions. Raises AttributeError if it lacks one."""
    require_same_layout(loaded)
    for function in (loaded.asterism_forward, loaded.asterism_backward):
        function.argtypes, function.restype = [ctypes.POINTER(Problem)], ctypes.c_int32
    for function in (loaded.asterism_forward_chosen, loaded.asterism_backward_chosen):
        function.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Chosen)]
        function.restype = ctypes.c_int32
    loaded.asterism_choose.argtypes, loaded.asterism_choose.restype = [ctypes.POINTER(Choices)], ctypes.c_int32
    loaded.asterism_decode.argtypes, loaded.asterism_decode.restype = [ctypes.c_char_p], ctypes.c_int32
    loaded.asterism_instruction_set.restype = ctypes.c_char_p
    if reason := _unused_amx(loaded):
        _log.warning("attention in bfloat16 does without AMX: %s", reason)
    list_, room, count = ctypes.POINTER(Task), ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    loaded.asterism_schedule.argtypes = [ctypes.POINTER(Problem), ctypes.c_int32, list_, room, count]
    loaded.asterism_schedule.restype = ctypes.c_int32
    return loaded


def _unused_amx(loaded: ctypes.CDLL) -> str | None:
    """Why AMX is not used though the processor has it or the kernel was built for it."""
    if loaded.asterism_instruction_set().startswith(b"amx"):
        return None
    if loaded.asterism_knows_amx():
        return (
            "the system does not let this process use it (arch_prctl refuses ARCH_REQ_XCOMP_PERM)."
            " It takes Linux 5.16 or newer, and no thread with a small alternate signal stack"
        )
    if _has_amx():
        return "this processor has it, the compiler does not know it. Install g++ 11 or newer, or set CXX to one"
    return None


def _has_amx() -> bool:
    return {"amx_tile", "amx_bf16"} <= features()


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds a library of ours with the digest that it was built with."""
    try:
        if not all(stat.S_ISREG((folder / name).lstat().st_mode) for name in ("kernel.so", "kernel.sha256")):
            return False  # a pipe or a device would be read without end
        library, sealed = (folder / "kernel.so").read_bytes(), (folder / "kernel.sha256").read_bytes()
    except OSError:
        return False
    return _OURS in library and hashlib.sha256(library).hexdigest().encode() == sealed


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Within the body, no other process builds in this cache: those that a launcher starts at once would all compile.

    The lock is the system's, on an open file, so it ends with its holder, however that ends. Where the file system
    knows no locks several may build, as one that is done moves a whole library into place.
    """
    descriptor = os.open(folder / "building.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            lock(descriptor, wait=True)
        except OSError as error:
            _log.warning("%s: the file system has no locks (%s), so other processes may build as well", folder, error)
        yield
    finally:
        os.close(descriptor)


def _build(command: list[str], folder: Path) -> Path:
    """Builds beside the folder and moves the result there at once: another process never sees half a library."""
    _remove_abandoned(folder.parent)
    cores, begin = _cores(), time.monotonic()
    _log.warning("building the CPU kernel, once: about half a minute of processor time, shared by %d cores", cores)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        fresh = Path(name) / "kernel"
        fresh.mkdir(mode=0o700)
        library = fresh / "kernel.so"
        try:
            compile_and_link(command, units(), library, cores)
        except Killed:
            raise
        except KernelError:
            if not _has_amx():
                raise
            without = [*command, "-mno-amx-tile", "-mno-amx-bf16"]  # its assembler may be older than AMX
            compile_and_link(without, units(), library, cores)
        library.chmod(0o700)  # the linker asks the umask, which may let others write
        made = library.read_bytes()
        if _OURS not in made:
            raise KernelError(
                "kernel-build-failed",
                f"the CPU kernel cannot be built: the output of {command[0]} is not the kernel. Set CXX to a C++17"
                f" compiler with OpenMP (g++ 11 or newer), {OTHERWISE}",
            )
        (fresh / "kernel.sha256").write_text(hashlib.sha256(made).hexdigest())
        (fresh / _SECONDS).write_text(f"{time.monotonic() - begin:.1f}")
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            fresh.rename(folder)
        except OSError:
            if not _is_whole(folder):  # else another process was faster
                raise
    _log.warning("the CPU kernel is built, in %.0f s", time.monotonic() - begin)
    return folder


def _cores() -> int:
    """How many translation units are compiled at a time: one for each core that this process may use."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(known, len(units()))


def _remove_abandoned(folder: Path) -> None:
    for left in folder.glob("building-*"):
        if time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
