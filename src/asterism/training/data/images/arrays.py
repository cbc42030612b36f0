"""Pictures in arrays: NumPy's .npy and .npz, and the binary batches of CIFAR-10.

Every file becomes a view of the disk, uint8 [pictures, height, width, channels], which is read on demand. Planes (all
red, all green, all blue) become pixels as they are read. The arrays of an .npz, compressed or not, are unpacked into an
unnamed temporary file each time it is opened. Pickles are never read.
"""

import math
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np

from asterism.errors import DataError

MOST_UNPACKED = 2**32
"""Larger arrays in an .npz are refused before they are unpacked: no file of ImageNet-64 has so many bytes."""

SUFFIXES = (".npy", ".npz", ".bin")
CIFAR_BATCH = re.compile(r"(?:.*/)?(?:data_batch_\d+|test_batch)\.bin")

_CIFAR_RECORD = np.dtype([("label", "u1"), ("planes", "u1", (3, 32, 32))])
_CHUNK = 2**20
_OF_NUMPY = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, TokenError)
"""What reading the header of an array raises, which is a text in Python's grammar."""


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """Pictures uint8 [n, h, w, 1 or 3] of one file, and int64 [n] their classes from 0 on, if it says them."""

    path: Path
    pictures: np.ndarray
    labels: np.ndarray | None


def open_array(path: Path) -> ArrayFile:
    """The pictures of one file. Raises DataError, which names the file and the problem."""
    opened = {".npy": _npy, ".npz": _npz, ".bin": _cifar}[path.suffix.lower()]
    with _naming(path):
        return opened(path)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises DataError, one line with the path, for whatever NumPy, zipfile and we find wrong with a file."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "unreadable-file", f"data: cannot read {path}: {error.strerror or ' '.join(str(error).split())}"
        ) from None
    except (*_OF_NUMPY, KeyError, MemoryError, RuntimeError) as error:
        raise DataError("bad-array", f"data: {path}: {' '.join(str(error).split())[:200]}") from None
    except (zipfile.BadZipFile, NotImplementedError, zipfile.LargeZipFile) as error:
        raise DataError("damaged-array", f"data: {path}: is damaged: {' '.join(str(error).split())[:200]}") from None


def _npy(path: Path) -> ArrayFile:
    with path.open("rb") as file:
        array = _mapped(file, path.stat().st_size)
    return ArrayFile(path, _pictures(array, "the array"), None)


def _npz(path: Path) -> ArrayFile:
    """The layout of the downsampled ImageNet (Chrabaszcz 2017): data uint8 [n, 3 h h], planes; labels [n] from 1 on.

    Data of shape [n, h, w, channels] are taken as they are; so are labels then, from 0 on.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("is no .npz file, which is a zip archive")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if "data.npy" not in names:
            raise ValueError(f"has no array 'data'; it holds {', '.join(names)[:100] or 'nothing'}")
        data = _member(path, archive, "data.npy")
        labels = _member(path, archive, "labels.npy") if "labels.npy" in names else None
    if data.ndim != 2:
        return ArrayFile(path, _pictures(data, "data"), _labels(labels, len(data), 0))
    side = math.isqrt(data.shape[1] // 3)
    if not side or data.shape[1] != 3 * side * side:
        raise ValueError(f"data has rows of {data.shape[1]:,} values, which are no square picture of 3 channels")
    _require_bytes(data, "data")
    pixels = data.reshape(len(data), 3, side, side).transpose(0, 2, 3, 1)
    return ArrayFile(path, _pictures(pixels, "data"), _labels(labels, len(data), 1))


def _cifar(path: Path) -> ArrayFile:
    size = path.stat().st_size
    if not size or size % _CIFAR_RECORD.itemsize:
        raise ValueError(f"has {size:,} bytes, not pictures of CIFAR-10 of {_CIFAR_RECORD.itemsize:,} bytes each")
    records = np.memmap(path, dtype=_CIFAR_RECORD, mode="r")
    labels = np.asarray(records["label"]).astype(np.int64)
    if (wrong := np.flatnonzero(labels > 9)).size:
        raise ValueError(f"picture {wrong[0]} has label {labels[wrong[0]]}; CIFAR-10 has labels 0 to 9")
    return ArrayFile(path, np.asarray(records["planes"]).transpose(0, 2, 3, 1), labels)


def _mapped(file: Any, size: int) -> np.ndarray:
    """The array of .npy data that begin where `file` stands and end at `size`: mapped, not read."""
    shape, fortran_order, dtype = _npy_header(file)
    offset, count = file.tell(), math.prod(shape)
    if count * dtype.itemsize > size - offset:
        raise ValueError(f"is cut off: its array {shape} of {dtype} needs {count * dtype.itemsize:,} bytes")
    if not count:
        raise ValueError("holds an empty array")
    order: Literal["C", "F"] = "F" if fortran_order else "C"
    return np.asarray(np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order))


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type, of arrays that hold no Python objects."""
    if (magic := file.read(8))[:6] != b"\x93NUMPY" or len(magic) < 8:
        raise ValueError("is no .npy array: its first bytes are " + (magic.hex(" ") or "none"))
    file.seek(-8, os.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"is an .npy array of version {version}; 1.0 and 2.0 are read")
    try:
        shape, fortran_order, dtype = read(file)
    except Exception as error:  # of the parser of Python's literals, which NumPy reads the header by
        raise ValueError(f"is damaged: its header cannot be read: {str(error).split(' at 0x')[0]}") from None
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never read: save it as uint8")
    if any(one < 0 for one in shape):
        raise ValueError(f"is damaged: its shape is {shape}")
    return shape, fortran_order, dtype


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array of an .npz, unpacked into a temporary file without a name."""
    info = archive.getinfo(name)
    if info.file_size > MOST_UNPACKED:
        raise ValueError(f"its array {name} has {info.file_size:,} bytes; at most {MOST_UNPACKED:,} are unpacked")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its array {name} is packed by method {info.compress_type}; np.savez stores or deflates")
    with archive.open(info) as packed:
        _npy_header(packed)  # before anything is unpacked
    with archive.open(info) as packed, tempfile.TemporaryFile() as unpacked:
        while chunk := packed.read(_CHUNK):
            unpacked.write(chunk)
        unpacked.flush()
        size = unpacked.tell()  # which may be less than the archive says; to touch what is not there would be fatal
        unpacked.seek(0)
        return _mapped(unpacked, size)  # which outlives the file's descriptor


def _pictures(array: np.ndarray, what: str) -> np.ndarray:
    """[n, h, w, channels] of an array that may have no axis of channels."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise ValueError(f"{what} has shape {array.shape}, not [pictures, height, width] or [..., 1 or 3 channels]")
    _require_bytes(array, what)
    return array


def _require_bytes(array: np.ndarray, what: str) -> None:
    if array.dtype != np.uint8:
        raise ValueError(f"{what} holds {array.dtype}; values of 8 bits are read, uint8: convert it")


def _labels(labels: np.ndarray | None, pictures: int, first: int) -> np.ndarray | None:
    """Classes from 0 on, of labels that count from `first` on."""
    if labels is None:
        return None
    if labels.shape != (pictures,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels has shape {labels.shape} of {labels.dtype}, not one whole number for each picture")
    if (wrong := np.flatnonzero((labels < first) | (labels > 2**31))).size:
        raise ValueError(f"picture {wrong[0]} has label {labels[wrong[0]]}; labels are counted from {first} on")
    return labels.astype(np.int64) - first
