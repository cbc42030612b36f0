"""Arrays of one-hot bases and labels in the layout of DeepSEA (Zhou and Troyanskaya 2015), read on demand.

A file holds a pair of arrays, PREFIXxdata and PREFIXdata (`trainxdata` and `traindata`; `valid`, `test`): 0 and 1 in
[n, 4, length] and [n, columns]. The four channels are A, G, C, T, in this order; a base without a 1 is N. MATLAB 7.3
and HDF5 files (.mat, .h5, .hdf5) have the axes in the opposite order, and are read an example at a time; MATLAB 5 files
(.mat) and .npz are held in memory, and refused if an array is larger than `LARGEST_ARRAY`. An .npz may have the names
of the columns as `columns`. Nothing is unpickled.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asterism.errors import DataError
from asterism.presence import require_package
from asterism.training.data.records.held_out import OnDemand
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import LabelledSequence

SUFFIXES = (".npz", ".mat", ".h5", ".hdf5")
LARGEST_ARRAY = 4 << 30
"""Bytes of an array that is held in memory: DeepSEA's test set has 1.8 GB."""
CHANNELS = np.frombuffer(b"AGCT", dtype=np.uint8)

GROUPS = {"DHS": 125, "TF": 690, "HM": 104}
"""The 919 columns of DeepSEA in order: DNase I sites, transcription factors, marks of histones."""

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ITEM = {"logical": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "single": 4}


@dataclass(frozen=True, eq=False)
class OneHotSequences(OnDemand):
    """The examples of a file, each read on demand.

    bases, labels  arrays, or data sets of HDF5, with the axes as they are in the file
    axes           where the axes of examples, channels and places are in `bases`, and that of examples in `labels`
    """

    path: Path
    columns: tuple[str, ...]
    bases: Any
    labels: Any
    axes: tuple[int, int, int, int]

    def __len__(self) -> int:
        return int(self.bases.shape[self.axes[0]])

    def made(self, number: int) -> LabelledSequence:
        """Raises DataError for values other than 0 and 1, and for a base with two letters."""
        place = f"{self.path}, example {number:,}"
        bits, labels = self._part(self.bases, self.axes[0], number), self._part(self.labels, self.axes[3], number)
        if self.axes[1] > self.axes[2]:
            bits = bits.T
        for name, values in (("bases", bits), ("labels", labels)):
            if not ((values == 0) | (values == 1)).all():
                raise DataError("not-binary", f"{place}: the {name} must be 0 and 1")
        if (bits.sum(0) > 1).any():
            raise DataError(
                "deepsea-two-bases", f"{place}: base {int((bits.sum(0) > 1).argmax()):,} has more than one letter"
            )
        letters = np.where(bits.any(0), CHANNELS[bits.argmax(0)], np.uint8(ord("N")))
        record = Record(place, {"id": number})
        return LabelledSequence(record, letters.tobytes().decode(), True, self.columns, labels.astype(np.uint8))

    def _part(self, array: Any, axis: int, number: int) -> np.ndarray:
        return np.asarray(array[tuple(number if one == axis else slice(None) for one in range(array.ndim))])


def read_deepsea(path: Path) -> OneHotSequences:
    """The examples of a file. Raises DataError for one that is not as the module docstring says, and one too large."""
    with _told(path):
        arrays = _read_npz(path) if path.suffix.lower() == ".npz" else _read_matlab(path)
    prefix = _prefix(path, arrays)
    bases, labels = arrays[f"{prefix}xdata"], arrays[f"{prefix}data"]
    axes = _axes(path, prefix, bases.shape, labels.shape)
    count = int(labels.shape[1 - axes[3]])
    names = [str(one) for one in arrays["columns"]] if "columns" in arrays else usual_columns(count)
    if len(names) != count or len(set(names)) != count:
        raise DataError("deepsea-columns", f"{path}: columns must name the {count:,} columns, each once")
    return OneHotSequences(path, tuple(names), bases, labels, axes)


def usual_columns(count: int) -> list[str]:
    """Names for unnamed columns: group and number for the 919 columns of DeepSEA, else numbers."""
    if count != sum(GROUPS.values()):
        return [str(number) for number in range(count)]
    return [f"{group}-{number}" for group, size in GROUPS.items() for number in range(1, size + 1)]


def _prefix(path: Path, arrays: Mapping[str, Any]) -> str:
    found = [name[: -len("xdata")] for name in arrays if name.endswith("xdata")]
    whole = [prefix for prefix in found if f"{prefix}data" in arrays]
    if len(whole) != 1:
        listed = ", ".join(sorted(arrays)[:8]) or "none"
        raise DataError(
            "deepsea-arrays", f"{path}: must hold one pair such as trainxdata and traindata; its arrays are: {listed}"
        )
    return whole[0]


def _axes(path: Path, prefix: str, bases: tuple[int, ...], labels: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Where examples, channels and places are in `bases`, and examples in `labels`: first in all, or last in all."""
    if len(bases) == 3 and len(labels) == 2 and min(*bases, *labels) > 0:
        for examples, channels, places, of_labels in ((0, 1, 2, 0), (2, 1, 0, 1), (0, 2, 1, 0)):
            if bases[channels] == len(CHANNELS) and bases[examples] == labels[of_labels]:
                return examples, channels, places, of_labels
    raise DataError(
        "deepsea-shapes",
        f"{path}: {prefix}xdata {list(bases)} and {prefix}data {list(labels)} must be [n, 4, length] and [n, columns],"
        " or the other way round",
    )


def _read_matlab(path: Path) -> dict[str, Any]:
    """The arrays of a MATLAB file, or of HDF5, where they stay in the file."""
    with path.open("rb") as file:
        head = file.read(520)
    if head.startswith(_HDF5) or head[512:].startswith(_HDF5):
        require_package("h5py", "h5py", "genomics", "reading HDF5")
        import h5py

        opened = h5py.File(path, "r")
        found = {name: _linked(path, opened, name) for name in opened}
        return {name: one for name, one in found.items() if isinstance(one, h5py.Dataset)}
    if not head.startswith(b"MATLAB 5.0"):
        raise DataError(
            "deepsea-format", f"{path}: is neither MATLAB 5 nor HDF5 (MATLAB 7.3): it begins with {head[:10]!r}"
        )
    import scipy.io

    names = []
    for name, shape, kind in scipy.io.whosmat(path):
        if name.endswith("data"):
            _refuse_large(path, name, shape, _ITEM.get(kind, 8))
            names.append(name)
    loaded = scipy.io.loadmat(path, variable_names=names)
    return {name: loaded[name] for name in names if isinstance(loaded.get(name), np.ndarray)}


def _linked(path: Path, opened: Any, name: str) -> Any:
    """What a name stands for, which may be a link. Raises DataError for one that leads nowhere, or in a circle."""
    try:
        return opened[name]
    except (KeyError, OSError, RuntimeError) as error:
        raise DataError("unreadable-array", f"{path}: {name} cannot be read: {' '.join(str(error).split())}") from error


def _read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file, after their headers have been looked at."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in header:
                    raise DataError(
                        "npy-version",
                        f"{path}: {member.filename} is of version {version} of .npy, which is not supported",
                    )
                shape, _, dtype = header[version](file)
            if dtype.hasobject:
                raise DataError(
                    "pickled-array", f"{path}: {member.filename} holds Python objects, which are never unpickled"
                )
            _refuse_large(path, member.filename, shape, dtype.itemsize)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name.endswith("data") or name == "columns"}


def _refuse_large(path: Path, name: str, shape: tuple[int, ...], item: int) -> None:
    size = item
    for one in shape:
        size *= int(one)
    if size > LARGEST_ARRAY:
        raise DataError(
            "deepsea-too-large",
            f"{path}: {name} has {size / 2**30:,.1f} GiB, but the limit in memory is {LARGEST_ARRAY / 2**30:g} GiB;"
            " save it as HDF5 (MATLAB 7.3), which is read one example at a time",
        )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever a library raises for a file that it cannot read, as a DataError of one line."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("missing-file", f"data: there is no file {path}") from None
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError("unreadable-file", f"data: {path} cannot be read: {reason}") from None
