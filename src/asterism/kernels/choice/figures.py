"""Measurements of a machine as data, and the file next to the built kernel that stores them.

One file for each machine, kernel, version of PyTorch and number of threads: figures for one thread say nothing of 16.
It is written whole. One that is damaged, of another version, or holds what no measurement gives says so, is not used,
and gives way to what is measured next.
"""

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from asterism.compiler.cost import Curve, Prices
from asterism.errors import shown
from asterism.kernels.cpu import cache
from asterism.kernels.cpu.build import identity
from asterism.system import lock

Points = Sequence[Sequence[float]]

VERSION = 1
"""Raised when the meaning of a field changes."""

_LARGEST = 2**20
"""Bytes of a file that is read; what is measured takes some thousands."""


@dataclass(frozen=True)
class Figures:
    """What was measured; empty where nothing was. Raises ValueError for what no measurement gives.

    matrix_rates  FLOP/s of matrix products, by dtype
    nanoseconds   by dtype, direction ("forward" or "training") and way: points (pairs, nanoseconds), pairs ascending
    """

    matrix_rates: Mapping[str, float] = field(default_factory=dict)
    nanoseconds: Mapping[str, Mapping[str, Mapping[str, Points]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for dtype, directions in self.nanoseconds.items():
            for direction, ways in directions.items():
                for way, points in ways.items():
                    _require_points(f"{way}, {dtype}, {direction}", points)
        if self.matrix_rates and set(self.matrix_rates) != {"float32", "bfloat16"}:
            raise ValueError(f"matrix_rates holds {', '.join(self.matrix_rates)}")
        for name, rate in self.matrix_rates.items():
            _require_measured(f"the matrix rate of {name}", rate)

    def prices(self, dtype: str, direction: str) -> Prices:
        """What each way costs by these figures; empty if it was not measured."""
        ways = self.nanoseconds.get(dtype, {}).get(direction, {})
        return {way: _curve(points) for way, points in ways.items()}

    def with_prices(self, dtype: str, direction: str, measured: Mapping[str, Points]) -> "Figures":
        """The same with what was measured for a dtype and direction; other ways stay as they were."""
        directions = dict(self.nanoseconds.get(dtype, {}))
        directions[direction] = {**directions.get(direction, {}), **measured}
        return replace(self, nanoseconds={**self.nanoseconds, dtype: directions})


def _curve(points: Points) -> Curve:
    """Beyond the last point pairs cost what they cost on average there: differences of noisy times would be noisier."""
    pairs, nanoseconds = points[-1]
    return Curve(tuple((x, y) for x, y in points), nanoseconds / pairs)


def _require_points(name: str, points: Any) -> None:
    if not isinstance(points, list | tuple) or not points:
        raise ValueError(f"there are no points for {name}")
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError(f"{shown(point)} is no point of {name}")
        for number in point:
            _require_measured(name, number)
    if any(here[0] >= after[0] for here, after in pairwise(points)):
        raise ValueError(f"the pairs of {name} do not ascend")


def _require_measured(name: str, value: object) -> None:
    # Compared, not converted: a whole number of JSON may be too large for any float.
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} is {shown(value)}, not a positive number")


class StoredFigures(NamedTuple):
    """What a file holds; where it cannot be used, the figures are empty and `complaint` says why."""

    figures: Figures
    complaint: str = ""


def stored(threads: int) -> StoredFigures:
    """What is kept for this machine, in the first place that has the file."""
    for folder in _folders([]):
        path = folder / file_name(threads)
        try:
            return StoredFigures(_figures(json.loads(_read(path))))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            return StoredFigures(Figures(), f"{path}: {' '.join(str(error).split())[:200]}")
    return StoredFigures(Figures())


def keep(threads: int, figures: Figures) -> Path:
    """Keep the figures in the first place that can be written. Raises OSError with the reasons if there is none."""
    document = {"version": VERSION, "torch": torch.__version__, "threads": threads, **asdict(figures)}
    reasons: list[str] = []
    for folder in _folders(reasons):
        path = folder / file_name(threads)
        try:
            # Under the name of an unfinished build, so that what a killed process leaves is removed with those.
            with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as unfinished:
                fresh = Path(unfinished, "figures")
                fresh.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
                fresh.replace(path)
        except OSError as error:
            reasons.append(str(error))
        else:
            return path
    raise OSError("; ".join(reasons))


@contextmanager
def alone() -> Iterator[None]:
    """Within the body, no other process measures that keeps its figures in the same place, if that can be locked."""
    with ExitStack() as stack:
        for folder in islice(_folders([]), 1):
            with suppress(OSError):  # some file systems know no locks, and some folders cannot be opened
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                lock(descriptor, wait=True)
        yield


def file_name(threads: int) -> str:
    """The name of the file for a number of threads."""
    made_of = hashlib.sha256(f"{identity()}\0{torch.__version__}".encode()).hexdigest()[:16]
    return f"speed-{made_of}-{threads}.json"


def _folders(reasons: list[str]) -> Iterator[Path]:
    """Folders that may keep the file; why others may not joins the reasons."""
    for place in cache.places():
        try:
            yield cache.made(place)
        except OSError as error:
            reasons.append(str(error))


def _read(path: Path) -> str:
    """What a file holds. Raises OSError for a pipe or device, which may never end, or what is far too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for somebody to write
    with open(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > _LARGEST:
            raise OSError(f"it is no file of figures: remove it (mode {seen.st_mode:o}, {seen.st_size} bytes)")
        return file.read(_LARGEST).decode()


def _figures(document: Any) -> Figures:
    """Raises ValueError or TypeError for what is no such document."""
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        raise ValueError("it is damaged")
    if document["version"] != VERSION:
        raise ValueError(f"it is of version {document['version']}, and this is for version {VERSION}")
    return Figures(**{one.name: document[one.name] for one in fields(Figures) if one.name in document})
