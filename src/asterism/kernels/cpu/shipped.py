"""The libraries of a wheel, one per instruction set; the best one for the processor is used.

A wheel holds them in `libraries/` beside this file, with a list of what they are; a checkout and what is installed from
an sdist have no such folder. A library is taken only if it was built for this machine, from the very sources that lie
beside it, and is whole. Who may write there is not asked, unlike in the cache: whoever can change a library there can
change this file.
"""

import ctypes
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from asterism.errors import KernelError
from asterism.kernels.cpu.processor import features
from asterism.kernels.cpu.sources import INSTRUCTION_SETS, contents, digest

FOLDER = Path(__file__).with_name("libraries")

_ANEW = "reinstall asterism-attention"


def are_there() -> bool:
    """Whether asterism came as a wheel with libraries."""
    return FOLDER.exists()


def identity() -> str:
    """A name for the libraries and the one that fits here best. Raises KernelError if they fit nothing here."""
    return digest(*(f"{file.name} {sha256}" for file, sha256 in fitting()))


def fitting() -> list[tuple[Path, str]]:
    """Libraries that this processor can run, best first, with the SHA-256 of each.

    Raises KernelError if they are for another machine or of other sources.
    """
    listed, has = _listed(), features()
    sets = INSTRUCTION_SETS[listed["machine"]]
    fit = [name for name, takes in sets.items() if name in listed["libraries"] and has.issuperset(takes)]
    return [(FOLDER / f"{name}.so", listed["libraries"][name]) for name in fit]


def require_whole(file: Path, sha256: str) -> None:
    """Raises OSError if the file is not what was built."""
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise OSError(f"{file} is damaged: {_ANEW}")


def require_openmp() -> None:
    """Sees to it that a library finds OpenMP. Raises OSError if there is none.

    The libraries do not name a file to take it from: there must be one team of threads, PyTorch's, whichever it brings.
    Where PyTorch shows it to nobody, the system's serves.
    """
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)


def _listed() -> dict[str, Any]:
    """The list of the libraries, which are for this machine and of these sources. Raises KernelError otherwise."""
    file = FOLDER / "libraries.json"
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        machine, sources, _ = listed["machine"], listed["sources"], listed["libraries"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KernelError(
            "library-unreadable", f"{file} cannot be read ({' '.join(str(error).split())[:200]}): {_ANEW}"
        ) from error
    if machine != platform.machine() or machine not in INSTRUCTION_SETS:
        raise KernelError(
            "wheel-for-other-machine",
            f"asterism was installed from a wheel for {machine}, but this machine is {platform.machine()}: install"
            " the wheel for it, or the sdist",
        )
    if sources != digest(*contents()):
        raise KernelError(
            "libraries-of-other-sources",
            f"the libraries in {FOLDER} were built from other sources than those next to them: {_ANEW}",
        )
    return dict(listed)
