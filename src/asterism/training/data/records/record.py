"""Records: the fields of one row of a file of examples, with the place it came from; and lines of text files.

Every error about a record names the file, the line (or the place in the document) and the field. `Record` makes that
message, so the readers of the tasks only describe the problem. `formats.py` reads and writes the files, one line at a
time.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asterism.errors import DataError, nearest
from asterism.presence import pair_of

STDIN = "-"
"""The path that stands for standard input."""


@dataclass(frozen=True)
class Record:
    """The fields of one record, and where it stands, such as "train.jsonl, line 3".

    raw     the text it was read from, with its end of line; empty if it was not read from a text of its own
    head    what stands above the first record of its file, such as the names of the columns
    folder  where paths in its fields begin
    """

    place: str
    fields: dict[str, Any]
    raw: str = ""
    head: str = ""
    folder: str = ""

    def error(self, field: str, message: str) -> DataError:
        """A DataError about one field, ready to be raised."""
        return DataError("bad-field", f"{self.place}: field {field!r} {message}")

    def get(self, field: str) -> Any:
        """The value of a field. Raises DataError if it is missing, and names the nearest existing one."""
        if field in self.fields and self.fields[field] is None:
            raise self.error(field, "is null")
        if field not in self.fields:
            there = ", ".join(map(str, self.fields)) or "none"
            hint = nearest(field, map(str, self.fields))
            raise DataError("missing-field", f"{self.place}: field {field!r} is missing; there are: {there}.{hint}")
        return self.fields[field]

    def text(self, field: str) -> str:
        """A field that holds text with at least one visible character. Raises DataError."""
        value = self.get(field)
        if not isinstance(value, str):
            raise self.error(field, f"must be text, got {_shortened(value)}")
        if not value.strip():
            raise self.error(field, "is empty")
        self.refuse_surrogates(field, value)
        return value

    def texts(self, field: str) -> list[str]:
        """A field that holds a list of texts. Raises DataError."""
        value = self.get(field)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(field, f"must be a list of texts, got {_shortened(value)}")
        for item in value:
            self.refuse_surrogates(field, item)
        return value

    def refuse_surrogates(self, field: str, text: str) -> None:
        """Raises DataError for half of a surrogate pair: JSON can write it, UTF-8 and tokenizers have no such thing."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise self.error(
                field, f"has {half} at character {error.start:,}, half of a surrogate pair without the other"
            ) from None


class Source:
    """A text file or standard input, read a line at a time; never more of it is held than a line.

    name      what messages call it
    size      how many bytes it has, None if nobody knows
    position  how many of them have been read

    With `whole_lines`, a last line without an end is left out, because its writer was stopped.
    """

    def __init__(self, path: str | Path, *, whole_lines: bool = False) -> None:
        self.path = path
        self.whole_lines = whole_lines
        self.name = "stdin" if path == STDIN else str(path)
        self.position = 0

    @property
    def folder(self) -> str:
        """Where it stands: "" for standard input."""
        return "" if self.path == STDIN else os.path.dirname(self.path)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The lines that belong together: of one file each alone. Raises what `lines` raises."""
        yield from zip(self.lines(), strict=True)

    @property
    def size(self) -> int | None:
        if self.path == STDIN or not Path(self.path).is_file():
            return None
        return Path(self.path).stat().st_size

    def lines(self) -> Iterator[str]:
        """The lines, each with its end, a mark of the byte order left out.

        Raises DataError if there is no such file, if it cannot be read, or at a line that is not UTF-8.
        """
        number = 0
        if "\0" in self.name:
            raise DataError("file-name", f"data: {self.name!r} cannot be the name of a file")
        try:
            with nullcontext(sys.stdin.buffer) if self.path == STDIN else Path(self.path).open("rb") as file:
                for number, line in enumerate(file, start=1):
                    self.position += len(line)
                    if self.whole_lines and not line.endswith(b"\n"):
                        return
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except FileNotFoundError:
            raise DataError("missing-file", f"data: there is no file {self.name}") from None
        except UnicodeDecodeError as error:
            raise DataError(
                "not-utf8",
                f"{self.name}, line {number}: is not UTF-8 text: byte {error.start:,} of the line cannot be read",
            ) from None
        except OSError as error:
            raise DataError("unreadable-file", f"data: cannot read {self.name}: {error.strerror}") from None


class PairedSource(Source):
    """Two text files whose lines belong together, read in step. Raises DataError for standard input twice."""

    def __init__(self, first: str, second: str) -> None:
        if first == second == STDIN:
            raise DataError(
                "stdin-twice", "data: stdin cannot be both sources and targets; give a file for one of them"
            )
        super().__init__(f"{first},{second}")
        self.files = Source(first), Source(second)
        self.name = " and ".join(one.name for one in self.files)

    @property
    def size(self) -> int | None:
        sizes = [one.size for one in self.files]
        return None if None in sizes else sum(filter(None, sizes))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The lines of one number. Raises DataError also for files of which one has more of them."""
        pairs = zip_longest(*(one.lines() for one in self.files))
        for number, row in enumerate(pairs):
            if None in row:
                counts = [number, number + 1 + sum(1 for _ in pairs)]
                first, second = counts if row[0] is None else reversed(counts)
                raise DataError(
                    "lines-differ",
                    f"data: {self.files[0].name} has {first:,} lines, {self.files[1].name} has {second:,}: each line"
                    " of one must belong to the line of the same number in the other",
                )
            self.position = sum(one.position for one in self.files)
            yield row


def source_of(path: str | Path) -> Source:
    """What is read at a path, or at a pair of them."""
    pair = pair_of(path)
    return Source(path) if pair is None else PairedSource(*pair)


def json_object(place: str, text: str) -> dict[str, Any]:
    """The JSON object that a text is. Raises DataError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError("not-json", f"{place}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError("not-a-json-object", f"{place}: must be a JSON object, got {text.strip()[:40]}")
    return value


def _shortened(value: Any) -> str:
    """A value as JSON would write it, or as Python does if it comes from Python; its first 40 characters."""
    return json.dumps(value, default=repr)[:40]
