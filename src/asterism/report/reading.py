"""Files of run folders, read within bounds, whatever they hold."""

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 2**26
"""How much of a file is read: seconds of time."""
MOST_LINE = 2**20
"""How long a line may be."""
MOST_TEXT = 4_000
"""How many characters of a text are kept."""

_LARGEST = 1e100
"""Numbers beyond it are damage; sums and products of those below are finite."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass
class JsonObjects:
    """The JSON objects of a file, one for each line; what cannot be read is counted, and left out.

    most     how many bytes are read
    damaged  lines that are no JSON object, or longer than `MOST_LINE`; a last line that is being written is none
    is_cut   whether the file goes on beyond `most`, where reading stops
    reason   why nothing can be read at all, if so
    """

    path: Path
    most: int = MOST_BYTES
    damaged: int = 0
    is_cut: bool = False
    reason: str | None = None

    def __post_init__(self) -> None:
        self.reason = why_not_read(self.path)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.damaged, self.is_cut = 0, False
        if self.reason is not None:
            return
        try:
            yield from self._objects()
        except OSError as error:
            self.reason = f"{self.path.name} cannot be read: {error.strerror}"

    def _objects(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            is_within = False  # a line that is too long, and not over yet
            while line := file.readline(MOST_LINE):
                if file.tell() > self.most:
                    self.is_cut = True
                    return
                ends = line.endswith(b"\n")
                if is_within or not ends:
                    self.damaged += not is_within and len(line) == MOST_LINE
                    is_within = not ends
                    continue
                found = _json_object(line)
                if found is None:
                    self.damaged += 1
                else:
                    yield found

    @property
    def remark(self) -> str | None:
        """A sentence on what was left out of it; None if nothing was."""
        if self.reason is not None:
            return f"{self.reason}."
        remarks = []
        if self.damaged:
            lines = "1 line is" if self.damaged == 1 else f"{self.damaged:,} lines are"
            remarks.append(f"{lines} damaged and left out.")
        if self.is_cut:
            size = self.path.stat().st_size
            remarks.append(f"Only the first {self.most // 2**20} MiB of {size / 2**20:,.0f} MiB are read.")
        return f"{self.path.name}: {' '.join(remarks)}" if remarks else None


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def why_not_read(path: Path) -> str | None:
    """Why a path cannot be read as a file; None if it can."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        return f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if stat.S_ISREG(mode) else f"{path.name} is not a file"


def number(value: Any) -> float | None:
    """A finite number, as it is; None for everything else, and for numbers that no run has."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _LARGEST else None  # false of NaN, too


def numbers(values: Any) -> dict[str, float]:
    """The finite numbers of an object, by name; {} for what is no object."""
    pairs = values.items() if isinstance(values, dict) else ()
    return {plain(str(name), 100): found for name, value in pairs if (found := number(value)) is not None}


def plain(value: Any, most: int = MOST_TEXT) -> str:
    """A value as text that can stand on a page: no control characters, at most so many characters of it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    rest = len(text) - most
    return _CONTROLS.sub("\ufffd", text[:most]) + (f" … ({rest:,} more characters)" if rest > 0 else "")
