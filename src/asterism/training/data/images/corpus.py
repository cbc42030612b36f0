"""Pictures as a corpus: each is a piece, height x width x channels values in raster order, decoded when it is read.

Values follow each other as the paper's data embeddings count them (Child 2019, section 5.3): row by row, pixel by
pixel, channel by channel. Data are a folder of PNG, JPEG and WebP files, in splits and classes as `corpora/folders.py`
has them, or arrays, which are files whose names begin with the name of a split, or lie in a folder called so: train,
validation (or val), test. What is missing of these is taken out of train by a hash of each picture. Invariant: equal
pictures under equal names and settings have the same identity, whatever they are read for.
"""

import bisect
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from asterism.errors import DataError
from asterism.training.data.corpora.folders import NAMES, list_folder, regular, split_folder, split_of
from asterism.training.data.corpora.splits import SPLITS, Pieces, Split, Splits
from asterism.training.data.images.arrays import CIFAR_BATCH, SUFFIXES, ArrayFile, open_array
from asterism.training.data.images.decoding import MOST_BYTES, Fitting, check_header, decode, fit_array
from asterism.training.data.images.headers import Unreadable

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""How the names of picture files end, in any case."""


class Pictures(ABC):
    """Pictures that can be had one by one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int, fitting: Fitting) -> np.ndarray:
        """One of them: uint8 [height, width, channels]. Raises DataError, with its place."""


class PictureFiles(Pictures):
    """Files below a folder, and uint8 [files, 32] the SHA-256 of their contents."""

    def __init__(self, root: Path, names: Sequence[str], digests: np.ndarray) -> None:
        self.root, self.names, self.digests = root, names, digests

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int, fitting: Fitting) -> np.ndarray:
        path = self.root / self.names[number]
        with _naming(path):
            content = _content(path)
            if hashlib.sha256(content).digest() != self.digests[number].tobytes():
                raise Unreadable("has changed since it was first read; start again")
            return decode(content, fitting)


class PictureArrays(Pictures):
    """Some of the pictures of array files: `numbers` count through all of them, one file after the other."""

    def __init__(self, files: Sequence[ArrayFile], numbers: np.ndarray) -> None:
        self.files, self.numbers = files, numbers
        self.firsts = [0, *accumulate(len(file.pictures) for file in files)]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int, fitting: Fitting) -> np.ndarray:
        at = int(self.numbers[number])
        file = bisect.bisect_right(self.firsts, at) - 1
        row = at - self.firsts[file]
        with _naming(f"{self.files[file].path}: picture {row}"):
            return fit_array(self.files[file].pictures[row], fitting)


class ImagePieces(Pieces):
    """One split of pictures; `labels` only for models that tell classes apart."""

    def __init__(self, pictures: Pictures, fitting: Fitting, labels: np.ndarray | None) -> None:
        self.pictures, self.fitting, self.labels = pictures, fitting, labels
        self.bounds = np.arange(len(pictures) + 1, dtype=np.int64) * fitting.values

    def read(self, start: int, stop: int) -> np.ndarray:
        piece, first = divmod(start, self.fitting.values)
        return self.pictures.read(piece, self.fitting).reshape(-1)[first : first + stop - start]


class ImageSplits(Splits):
    """A corpus of pictures; `classes` are the names of its classes, or empty."""

    unit = "values"

    def __init__(
        self, name: str, sha256: str, parts: dict[Split, ImagePieces], classes: tuple[str, ...], notes: tuple[str, ...]
    ) -> None:
        self.name, self.sha256, self.parts, self.classes, self.notes = name, sha256, parts, classes, notes

    def pieces(self, split: Split) -> ImagePieces:
        return self.parts[split]

    def record(self) -> dict[str, Any]:
        """The names of the classes, too, for models that tell them apart."""
        known = {"classes": list(self.classes)} if self.parts["train"].labels is not None else {}
        return {**super().record(), **known}


def open_images(path: str | None, fitting: Fitting, classes: int | None, settings: str) -> ImageSplits:
    """The pictures at a path; `settings` say how they are read, and are part of their identity.

    Every file is read once, for its hash, and what its first bytes say is checked. Nothing is decoded but pictures of
    another size where that is refused: they may have been noted to be turned. Raises DataError for what is missing,
    malformed, beyond the limits, of a size that is refused, or without the classes that are asked for.
    """
    if path is None:
        raise DataError("pictures-need-path", "data: pictures need a folder or a file; give its path")
    place = Path(path)
    if os.path.isdir(place):
        names = list_folder(place)
        arrays = [name for name in names if _is_array(name)]
        pictures = [name for name in names if name.lower().endswith(PICTURES)]
        if arrays and pictures:
            raise DataError(
                "arrays-and-pictures",
                f"data: {place} holds {arrays[0]} and {pictures[0]}: give arrays or files of pictures",
            )
        if not arrays and not pictures:
            raise DataError(
                "no-pictures",
                f"data: {place} holds no PNG, JPEG or WebP files, no .npy or .npz arrays, and no CIFAR-10",
            )
        if pictures:
            return _of_files(place, pictures, _left_out(names, pictures), fitting, classes, settings)
    elif place.suffix.lower() in SUFFIXES:
        place, arrays = regular(place).parent, [place.name]
    else:
        regular(place)
        raise DataError(
            "not-pictures", f"data: {place} is neither a folder of pictures nor an array of them (.npy or .npz)"
        )
    return _of_arrays(path, place, arrays, fitting, classes, settings)


def read_picture(path: Path, fitting: Fitting) -> np.ndarray:
    """The picture in a file: uint8 [height, width, channels]. Raises DataError with its path."""
    with _naming(path):
        return decode(_content(path), fitting)


@contextmanager
def _naming(place: Path | str) -> Iterator[None]:
    """Raises DataError with the place of a picture for one that is Unreadable."""
    try:
        yield
    except Unreadable as error:
        raise DataError("bad-picture", f"data: {place} {error}") from None


def _content(path: Path) -> bytes:
    regular(path)
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise Unreadable(f"has {size:,} bytes; pictures of at most {MOST_BYTES:,} are read: make it smaller")
        return path.read_bytes()
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {path}: {error.strerror}") from None


def _is_array(name: str) -> bool:
    return name.lower().endswith((".npy", ".npz")) or CIFAR_BATCH.fullmatch(name) is not None


def _left_out(names: Sequence[str], read: Sequence[str]) -> tuple[str, ...]:
    known = set(read)
    others = [name for name in names if name not in known]
    if not others:
        return ()
    return (f"{len(others):,} of {len(names):,} files are no PNG, JPEG or WebP and are left out, such as {others[0]}",)


# --- files of pictures -----------------------------------------------------------------------------------------------


def _of_files(
    root: Path, names: list[str], notes: tuple[str, ...], fitting: Fitting, classes: int | None, settings: str
) -> ImageSplits:
    def digest(path: Path) -> bytes:
        with _naming(path):
            content = _content(path)
            header = check_header(content)
            if fitting.resize == "exact" and (header.width, header.height) != (fitting.width, fitting.height):
                decode(content, fitting)
        return hashlib.sha256(content).digest()

    found = split_folder(root, names, digest)
    if classes is not None and len(found.classes) != classes:
        raise DataError(
            "classes-differ",
            f"data: {root} has pictures in {len(found.classes)} folders of classes; the model has {classes} classes",
        )
    parts = {
        split: ImagePieces(
            PictureFiles(root, files.names, files.digests), fitting, None if classes is None else files.labels
        )
        for split, files in found.splits.items()
    }
    return ImageSplits(str(root), found.identity(settings), parts, found.classes, notes)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _of_arrays(
    name: str, root: Path, names: list[str], fitting: Fitting, classes: int | None, settings: str
) -> ImageSplits:
    homes = [_home(one) for one in names]
    if None in homes and set(homes) != {None}:
        stray = names[homes.index(None)]
        raise DataError(
            "split-unsaid",
            f"data: {root / stray}: its name must begin with its split, as others do: train, validation, test",
        )
    if None not in homes and "train" not in homes:
        raise DataError("no-train-arrays", f"data: {root} has arrays of the {homes[0]} split, but none for train")
    files = [open_array(regular(root / one)) for one in names]
    for file in files:
        if fitting.resize == "exact" and len(file.pictures):
            PictureArrays([file], np.arange(1)).read(0, fitting)  # all of a file have one size
    missing = {split for split in SPLITS[1:] if split not in homes}
    numbers: dict[Split, list[int]] = {split: [] for split in SPLITS}
    identity = hashlib.sha256(settings.encode())
    first = 0
    for file, home in zip(files, homes, strict=True):
        for number, picture in enumerate(file.pictures):
            digest = hashlib.sha256(picture.tobytes()).digest()
            identity.update(digest)
            split = split_of(digest, missing) if home in (None, "train") else home
            numbers[split].append(first + number)
        first += len(file.pictures)
        identity.update(f"\n{home} {file.pictures.shape}\n".encode())
    labels = _labels_of(files, classes)
    if labels is not None:
        identity.update(labels.astype("<i8").tobytes())
    parts = {}
    for split, chosen in numbers.items():
        places = np.array(chosen, dtype=np.int64)
        parts[split] = ImagePieces(PictureArrays(files, places), fitting, None if labels is None else labels[places])
    return ImageSplits(name, identity.hexdigest(), parts, (), ())


def _home(name: str) -> Split | None:
    """The split that the name of an array file says, or its folder does."""
    if CIFAR_BATCH.fullmatch(name):
        return "test" if "test_batch" in name else "train"
    folder, _, file = name.rpartition("/")
    words = (folder.split("/")[0], re.split(r"[^a-zA-Z]", file, maxsplit=1)[0])
    return next((NAMES[word.lower()] for word in words if word.lower() in NAMES), None)


def _labels_of(files: Sequence[ArrayFile], classes: int | None) -> np.ndarray | None:
    """The classes of all pictures of all files, for models that tell so many apart."""
    if classes is None:
        return None
    for file in files:
        if file.labels is None:
            raise DataError("no-labels", f"data: {file.path} has no labels; the model has {classes} classes")
        if (wrong := np.flatnonzero(file.labels >= classes)).size:
            raise DataError(
                "label-range",
                f"data: {file.path}: picture {wrong[0]} is of class {file.labels[wrong[0]]}, counted from 0; the"
                f" model has {classes} classes",
            )
    return np.concatenate([file.labels for file in files if file.labels is not None])
