"""Signal along genomes: a number for each letter, as bigWig files hold it.

bigWig (Kent 2010, "BigWig and BigBed", supplement): a header, a tree of sequences' names, compressed sections of
values, and a tree of their places, so that a stretch is read without the others. The file is read here and not by a
library, because pybigtools 0.3.0 ends the process on a file whose sizes are wrong; the tests compare with it. Every
size is checked before anything of that size is read. Invariant: what is held is bounded by the limits below, whatever
the file claims.
"""

import os
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from asterism.errors import DataError, nearest, shown
from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.unpacking import compression_of

LONGEST_STRETCH = 1 << 26
"""Values that are read at once."""

LARGEST_SECTION = 1 << 24
"""Bytes of a section of values, packed or not; others write some ten thousand."""

LONGEST_NAME = 1 << 10
"""Bytes of a sequence's name."""

MOST_ENTRIES = 1 << 22
"""Entries of a tree that are looked at for one question."""

MOST_SEQUENCES = 1_000_000
"""Sequences of a file."""

_MAGIC, _NAMES_MAGIC, _PLACES_MAGIC = 0x888FFC26, 0x78CA8C91, 0x2468ACE0
_BIGBED = 0x8789F2EB
_BED_GRAPH, _VARIABLE_STEP, _FIXED_STEP = 1, 2, 3
_ITEM_BYTES = {_BED_GRAPH: 12, _VARIABLE_STEP: 8, _FIXED_STEP: 4}


class Signal:
    """The values of one bigWig file.

    lengths  how many letters each sequence has, by name
    """

    def __init__(self, path: str | Path) -> None:
        """Raises DataError for a file that is no bigWig, breaks off, or is damaged where this reads it."""
        self.path = Path(path)
        if compression_of(self.path):
            raise DataError(f"{self.path} is compressed; a bigWig file is read as it is: unpack it")
        try:
            self._file = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"data: cannot read {self.path}: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        self._order = self._byte_order()
        head = struct.unpack(f"{self._order}IHHQQQHHQQIQ", self._bytes(0, 64, "header"))
        names, self._places, self._is_packed = head[3], head[5], head[10] > 0
        self._numbers: dict[str, tuple[int, int]] = dict(self._sequences(names))
        self.lengths: Mapping[str, int] = {name: length for name, (_, length) in self._numbers.items()}

    def values(self, name: str, start: int, stop: int, missing: float = 0.0) -> np.ndarray:
        """The values of the letters start .. stop - 1 of a sequence: float32 [stop - start], `missing` where none is.

        Raises DataError for a sequence that is not there, a stretch that is not within it or longer than
        `LONGEST_STRETCH`, and values that are no finite numbers.
        """
        if name not in self._numbers:
            raise DataError(f"{self.path} has no sequence {shown(name)}.{nearest(name, self._numbers)}")
        number, length = self._numbers[name]
        if not 0 <= start <= stop <= length:
            raise DataError(f"{self.path}: {name}:{start:,}-{stop:,} is not within the sequence's {length:,} letters")
        if stop - start > LONGEST_STRETCH:
            raise DataError(
                f"{self.path}: {stop - start:,} values were asked for, at most {LONGEST_STRETCH:,} are read"
            )
        found = np.full(stop - start, missing, dtype=np.float32)
        for offset, size in self._sections(number, start, stop):
            for begin, end, value in zip(*self._items(offset, size, number, name, length), strict=True):
                if begin < stop and end > start:
                    found[max(begin - start, 0) : max(end - start, 0)] = value
        return found

    def means(self, intervals: Sequence[Interval], missing: float = 0.0) -> np.ndarray:
        """The mean over each interval, letters without a value counted as `missing`: float64 [intervals].

        Raises DataError, naming the line of the interval, for what `values` refuses, and for an empty one.
        """
        means = np.zeros(len(intervals))
        for row, one in enumerate(intervals):
            where = f"{one.place}: " if one.place else ""
            if not len(one):
                raise DataError(f"{where}{one.sequence}:{one.start:,}-{one.end:,} has no letters to take the mean of")
            try:
                means[row] = self.values(one.sequence, one.start, one.end, missing).mean(dtype=np.float64)
            except DataError as error:
                raise DataError(f"{where}{error}") from None
        return means

    def _byte_order(self) -> str:
        magic = self._bytes(0, 4, "header")
        for order in "<>":
            found = struct.unpack(f"{order}I", magic)[0]
            if found == _MAGIC:
                return order
            if found == _BIGBED:
                raise DataError(f"{self.path} is bigBed; signal is read from bigWig")
        raise DataError(f"{self.path} is no bigWig file: it begins with {magic.hex(' ')}")

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > self._size:
            raise DataError(
                f"{self.path} has {self._size:,} bytes, its {what} should end at {offset + size:,}; is the download"
                " complete?"
            )
        data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise DataError(f"{self.path} became shorter while it was read")
        return data

    def _sequences(self, offset: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name, number and length of each sequence, from the tree at an offset."""
        magic, _, key, value, count, _ = struct.unpack(f"{self._order}IIIIQQ", self._bytes(offset, 32, "list of names"))
        if magic != _NAMES_MAGIC or value != 8 or not 0 < key <= LONGEST_NAME or not 0 < count <= MOST_SEQUENCES:
            raise DataError(
                f"{self.path} is damaged: the list of names at byte {offset:,} claims {count:,} names of {key:,} bytes;"
                f" at most {MOST_SEQUENCES:,} of {LONGEST_NAME:,} are read"
            )
        leaves = self._leaves(offset + 32, key + 8, key + 8, "list of names")
        found = 0
        for item in leaves:
            name = item[:key].rstrip(b"\0").decode("ascii", errors="replace")
            number, length = struct.unpack(f"{self._order}II", item[key:])
            if not name or not name.isprintable():
                raise DataError(f"{self.path} is damaged: it has a sequence called {shown(name)}")
            found += 1
            yield name, (number, length)
        if found != count:
            raise DataError(f"{self.path} is damaged: it claims {count:,} sequences and names {found:,}")

    def _sections(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Offset and size of each section that may hold values of a stretch."""
        magic, *_ = struct.unpack(f"{self._order}I", self._bytes(self._places, 4, "index"))
        if magic != _PLACES_MAGIC:
            raise DataError(f"{self.path} is damaged: there is no index at byte {self._places:,}")

        def may_hold(item: bytes) -> bool:
            first, begin, last, end = struct.unpack(f"{self._order}IIII", item[:16])
            return (first, begin) < (number, stop) and (last, end) > (number, start)

        for item in self._leaves(self._places + 48, 32, 24, "index", may_hold):
            offset, size = struct.unpack(f"{self._order}QQ", item[16:])
            if not 0 < size <= LARGEST_SECTION:
                raise DataError(
                    f"{self.path} is damaged: a section at byte {offset:,} claims {size:,} bytes, at most"
                    f" {LARGEST_SECTION:,} are read"
                )
            yield offset, size

    def _leaves(
        self, offset: int, leaf: int, branch: int, what: str, wanted: Callable[[bytes], bool] = lambda item: True
    ) -> Iterator[bytes]:
        """The wanted items of a tree's leaves, `leaf` bytes each; those of its branches end with where they lead."""
        waiting, visited = [offset], 0
        while waiting:
            at = waiting.pop()
            is_leaf, _, count = struct.unpack(f"{self._order}BBH", self._bytes(at, 4, what))
            visited += 1 + count
            if visited > MOST_ENTRIES:
                raise DataError(f"{self.path} is damaged: its {what} leads through more than {MOST_ENTRIES:,} entries")
            size = leaf if is_leaf else branch
            data = self._bytes(at + 4, count * size, what)
            items = [item for row in range(count) if wanted(item := data[row * size : (row + 1) * size])]
            if is_leaf:
                yield from items
            else:
                waiting += [struct.unpack(f"{self._order}Q", item[-8:])[0] for item in reversed(items)]

    def _items(
        self, offset: int, size: int, number: int, name: str, length: int
    ) -> tuple[list[int], list[int], list[float]]:
        """Starts, ends and values of a section; none if it is of another sequence."""
        data = self._unpacked(offset, self._bytes(offset, size, "section of values"))
        place = f"{self.path}, section at byte {offset:,}"
        if len(data) < 24:
            raise DataError(f"{place}: is damaged: it has {len(data)} bytes")
        owner, first, _, step, span, kind, _, count = struct.unpack(f"{self._order}IIIIIBBH", data[:24])
        if kind not in _ITEM_BYTES or len(data) < 24 + count * _ITEM_BYTES[kind]:
            raise DataError(f"{place}: is damaged: {count:,} values of kind {kind} do not fit into {len(data):,} bytes")
        if owner != number:
            return [], [], []
        words = np.frombuffer(data, f"{self._order}u4", count * _ITEM_BYTES[kind] // 4, 24).reshape(count, -1)
        values = words[:, -1].copy().view(f"{self._order}f4").astype(np.float32)
        if kind == _BED_GRAPH:
            starts, ends = (words[:, column].astype(np.int64) for column in (0, 1))
        else:
            steps = first + step * np.arange(count, dtype=np.int64)
            starts = steps if kind == _FIXED_STEP else words[:, 0].astype(np.int64)
            ends = starts + span
        wrong = np.flatnonzero((starts >= ends) | (ends > length) | ~np.isfinite(values))
        if len(wrong):
            begin, end, value = (column[wrong[0]].item() for column in (starts, ends, values))
            raise DataError(
                f"{place}: the value {value} at {name}:{begin:,}-{end:,} is refused: a value is a finite number, and"
                f" lies within the {length:,} letters"
            )
        return starts.tolist(), ends.tolist(), values.tolist()

    def _unpacked(self, offset: int, data: bytes) -> bytes:
        if not self._is_packed:
            return data
        unpacker = zlib.decompressobj()
        try:
            unpacked = unpacker.decompress(data, LARGEST_SECTION)
        except zlib.error as error:
            raise DataError(f"{self.path}, section at byte {offset:,}: is damaged: {error}") from None
        if not unpacker.eof:
            raise DataError(
                f"{self.path}, section at byte {offset:,}: breaks off, or has more than {LARGEST_SECTION:,} bytes"
            )
        return unpacked
