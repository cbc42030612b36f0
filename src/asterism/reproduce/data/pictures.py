"""CIFAR-10 as grey pictures of 32 x 32 pixels: a file of 1,024 bytes for each, in the folder of its class.

The archive has the members train/CLASS/NUMBER.jpg and test/CLASS/NUMBER.jpg. The first of each class are taken, as
many as are required. Invariant: equal archives give equal files.
"""

import io
import lzma
import tarfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from asterism.errors import DataError
from asterism.reproduce.experiment import Package

ARCHIVE = "cifar10-jpeg.tar.gz"
CIFAR_10 = (
    "CIFAR-10 (cs.toronto.edu/~kriz/cifar.html) as 60,000 JPEG files: train/CLASS/NUMBER.jpg and test/CLASS/NUMBER.jpg"
)
READER = Package("Pillow", "PIL", "images")
SIDE = 32


def grey_pictures(archive: Path, split: str, of_each: int) -> tuple[np.ndarray, list[str]]:
    """Pixels, uint8 [pictures, 1024], and the class of each, for the first `of_each` pictures of each class of a split.

    Raises DataError for an archive that is not as the module docstring says or that has too few pictures.
    """
    taken = _first(archive, split, of_each)
    pixels = np.stack([_grey(data, f"{archive}: {name}") for name, data in taken.items()])
    return pixels, [name.split("/")[1] for name in taken]


def unpack_pictures(path: Path, archive: Path, train: int, held_out: int) -> None:
    """Write the first pictures of each class into the folder `path`, as they are: train/, validation/ and test/.

    `train` of each class train, and as many as `held_out` after them validate. Raises DataError, as `grey_pictures`.
    """
    learned = _first(archive, "train", train + held_out)
    homes: Counter[str] = Counter()
    for name, data in (learned | _first(archive, "test", held_out)).items():
        split, label, file = name.split("/")
        homes[f"{split}/{label}"] += 1
        home = "validation" if split == "train" and homes[f"{split}/{label}"] > train else split
        (path / home / label).mkdir(parents=True, exist_ok=True)
        (path / home / label / file).write_bytes(data)


def _first(archive: Path, split: str, of_each: int) -> dict[str, bytes]:
    """The contents of the first members of each class of a split, by name, in the order of names."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                if member.isfile() and _is_of(member.name, split):
                    file = members.extractfile(member)
                    assert file is not None  # which holds for regular files
                    found[member.name] = file.read()
    except (OSError, EOFError, OverflowError, ValueError, lzma.LZMAError, zlib.error, tarfile.TarError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError("pictures-archive", f"cannot read {archive}: {reason}") from error
    taken, counts = [], Counter[str]()
    for name in sorted(found):
        label = name.split("/")[1]
        counts[label] += 1
        if counts[label] <= of_each:
            taken.append(name)
    if not counts or min(counts.values()) < of_each:
        fewest = min(counts, key=lambda label: counts[label], default="any")
        raise DataError(
            "too-few-pictures",
            f"{archive}: {split} must have {of_each:,} pictures of each class, got {counts[fewest]:,} of {fewest}",
        )
    return {name: found[name] for name in taken}


def _is_of(name: str, split: str) -> bool:
    """Whether a member is SPLIT/CLASS/NAME."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == split and not {"", ".", ".."} & set(parts)


def write_pictures(path: Path, archive: Path, split: str, of_each: int) -> None:
    """Write pictures into the folder `path`, as CLASS/NUMBER.bin. Raises DataError, as `grey_pictures` does."""
    write_files(path, *grey_pictures(archive, split, of_each))


def write_files(path: Path, pixels: np.ndarray, labels: list[str]) -> None:
    """Write one file of bytes for each row of `pixels`, uint8 [pictures, values], into the folder of its label."""
    for label in sorted(set(labels)):
        (path / label).mkdir(parents=True)
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        (path / label / f"{number:06}.bin").write_bytes(row.tobytes())


def _grey(data: bytes, name: str) -> np.ndarray:
    from PIL import Image

    try:
        picture = np.asarray(Image.open(io.BytesIO(data), formats=["JPEG"]).convert("L"), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError("picture-format", f"{name} is not a picture in JPEG") from error
    if picture.shape != (SIDE, SIDE):
        raise DataError("picture-size", f"{name} must have {SIDE} x {SIDE} pixels, got {picture.shape}")
    return picture.reshape(-1)
