"""The files of a folder in three splits; the folder of a file is its class.

The folders train, validation (or val) and test, directly below, are the splits. A missing split is taken out of train
by a hash of each file's content: 90/5/5, or 95/5 if one is missing. So whole files are held out, and copies of a file
are in the same split. Without such folders, all files are treated as train. The class of a file is the folder that
holds it. Invariant: equal files under equal names give equal splits, in equal order, on every machine.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asterism.errors import DataError
from asterism.training.data.corpora.splits import SPLITS, Split

NAMES: dict[str, Split] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
"""The folders that are splits, in any case."""


@dataclass(frozen=True, eq=False)
class Files:
    """The files of one split.

    names    paths below the folder, in order
    digests  uint8 [files, 32], the SHA-256 of their contents
    labels   int64 [files], the number of the class of each; None where files have none
    """

    names: list[str]
    digests: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True, eq=False)
class SplitFolder:
    """A folder whose files are in splits; `classes` are the names of the classes, sorted, or empty."""

    root: Path
    splits: dict[Split, Files]
    classes: tuple[str, ...]

    def identity(self, settings: str) -> str:
        """The SHA-256 of the settings by which files are read, and of the contents and classes of all files."""
        digest = hashlib.sha256(settings.encode())
        for split in SPLITS:
            files = self.splits[split]
            digest.update(f"\n{split} {len(files.names)}\n".encode())
            digest.update(files.digests.tobytes())
            if files.labels is not None:
                digest.update(files.labels.astype("<i8").tobytes())
        digest.update("\n".join(self.classes).encode())
        return digest.hexdigest()


def list_folder(folder: Path, *, any_name: bool = False) -> list[str]:
    """All files below a folder, by their paths below it, sorted; names that begin with a dot are skipped.

    Links to folders are followed. Raises DataError if the folder does not exist or cannot be read, if links lead to a
    folder twice and, unless `any_name` is true, for names that are not UTF-8.
    """
    if not os.path.isdir(folder):
        raise DataError("missing-folder", f"data: there is no folder {folder}")
    found: list[str] = []
    met: dict[tuple[int, int], str] = {}
    for place, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        seen = os.stat(place)
        if (first := met.setdefault((seen.st_dev, seen.st_ino), place)) != place:
            raise DataError(
                "linked-folder", f"data: {place} is the same folder as {first}, by a link; remove one of them"
            )
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = [name for name in files if not name.startswith(".")]
        for name in () if any_name else (*folders, *files):
            _require_utf8(place, name)
        below = os.path.relpath(place, folder)
        found += [name if below == "." else f"{below}/{name}" for name in files]
    return sorted(found)


def _require_utf8(place: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(
            "not-utf8", f"data: {place} holds the name {os.fsencode(name)!r}, which is not UTF-8: rename it"
        ) from None


def split_folder(folder: Path, names: Sequence[str], digest: Callable[[Path], bytes]) -> SplitFolder:
    """The files `names` of a folder (paths below it, sorted) in splits; `digest` gives the SHA-256 of a file's content.

    `digest` may refuse a file. Also raises DataError if splits contradict each other.
    """
    homes = split_homes(folder, names)
    missing = {split for split in SPLITS[1:] if split not in homes.values()}
    parts: dict[Split, list[tuple[str, bytes]]] = {split: [] for split in SPLITS}
    for name in names:
        content = digest(regular(folder / name))
        home = homes.get(name.split("/", 1)[0], "train")
        parts[split_of(content, missing) if home == "train" else home].append((name, content))
    holders = {split: [_class_of(name, homes) for name, _ in part] for split, part in parts.items()}
    classes = _classes(holders.values())
    numbers = {name: number for number, name in enumerate(classes)}
    return SplitFolder(
        root=folder,
        splits={
            split: Files(
                [name for name, _ in part],
                np.frombuffer(b"".join(content for _, content in part), dtype=np.uint8).reshape(-1, 32),
                np.array([numbers[one] for one in holders[split]], dtype=np.int64) if classes else None,
            )
            for split, part in parts.items()
        },
        classes=classes,
    )


def split_of(digest: bytes, missing: Iterable[Split]) -> Split:
    """The split of what would be in train, by its SHA-256: 5 of 100 values of the hash for each split that is missing.

    Where both are, these are the splits that text is cut into.
    """
    bucket = int.from_bytes(digest[:8], "big") % 100
    absent = [split for split in SPLITS[1:] if split in missing]
    first = 100 - 5 * len(absent)
    return "train" if bucket < first else absent[(bucket - first) // 5]


def regular(path: Path, *, what: str = "data") -> Path:
    """The path of a regular file. Raises DataError, about `what`, for others: reading a pipe or a device may never
    end.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError("unreadable-file", f"{what}: cannot read {path}: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise DataError("file-name", f"{what}: {str(path)!r} cannot be the name of a file") from None
    if not stat.S_ISREG(mode):
        seen = "a folder; name a file" if stat.S_ISDIR(mode) else "neither a file nor a folder; move it elsewhere"
        raise DataError("bad-entry", f"{what}: {path} is {seen}")
    return path


def _refuse(error: OSError) -> None:
    raise DataError("unreadable-file", f"data: cannot read {error.filename}: {error.strerror}")


def split_homes(folder: Path, names: Sequence[str]) -> dict[str, Split]:
    """The folders directly below that are splits."""
    tops = sorted({name.split("/", 1)[0] for name in names if "/" in name})
    homes = {top: NAMES[top.lower()] for top in tops if top.lower() in NAMES}
    if not homes:
        return {}
    for split in SPLITS:
        same = [top for top in homes if homes[top] == split]
        if len(same) > 1:
            raise DataError(
                "split-twice",
                f"data: {folder}: the folders {same[0]} and {same[1]} are both the {split} split; keep one",
            )
    if "train" not in homes.values():
        raise DataError("no-train-folder", f"data: {folder} has a folder {next(iter(homes))}, but no folder train")
    for name in names:
        if name.split("/", 1)[0] not in homes:
            raise DataError(
                "loose-file",
                f"data: {folder / name} is next to the folders {', '.join(homes)}: move it into one of them, or"
                " elsewhere",
            )
    return homes


def _class_of(name: str, homes: dict[str, Split]) -> str:
    """The folder that holds a file, below its split; "" for none."""
    parts = name.split("/")
    return "/".join(parts[1:-1] if parts[0] in homes and len(parts) > 1 else parts[:-1])


def _classes(holders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The names of all classes; none if a file lies in no folder, or all in one."""
    names = {name for part in holders for name in part}
    return () if "" in names or len(names) < 2 else tuple(sorted(names))
