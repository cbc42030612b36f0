"""Writes files and folders atomically, and names damaged ones on reading.

A file or folder is written under a temporary name, flushed to disk and renamed, so that under its own name it is always
whole, and nothing whole is removed before its successor is. Who is killed leaves hidden temporary names behind, which
`remove_leftovers` knows again. Only data are read and written: JSON and safetensors. A folder may be a stranger's, so
only regular files are opened, links followed: a pipe would be waited for, a device read without end.
"""

import errno
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from asterism.errors import CheckpointError

if TYPE_CHECKING:
    import torch

DAMAGED = (StrictDataclassError, ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What transformers raises for a config.json whose fields hold what they cannot; which, depends on its version."""

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers reads a folder: nothing is fetched, and code that lies in it is neither run nor asked about."""

LARGEST = 2**27
"""Bytes of a JSON document or of a file of a tokenizer: several times those of a vocabulary of 250,000 tokens."""

_DEEPEST = 100
"""How deep the brackets of a JSON document may be nested: what transformers does with it is recursive."""

_READ_BY_TRANSFORMERS = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}

_TEMPORARY = re.compile(r"\..+-[0-9a-f]{32}")
"""The names that `_beside` gives."""


def why_unread(error: Exception) -> str:
    """Why transformers could not read a folder, in one line."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:  # transformers would tell the user to allow it
        return "it asks for code of its own to be run (auto_map), which is never done here"
    return text[:300]


def read_tensors(path: Path) -> "dict[str, torch.Tensor]":
    """All tensors of a safetensors file by name, on the CPU. Shapes [axis, ...] and dtypes are those of the file.

    Raises CheckpointError.
    """
    from safetensors.torch import load_file  # with torch, which those who only write do not need

    _require_file(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error


def read_notes(path: Path, name: str) -> dict[str, Any]:
    """The JSON object that stands under a name in the metadata of a safetensors file. Raises CheckpointError."""
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {})[name])
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {type(error).__name__}, {error}") from error
    if not isinstance(notes, dict):
        raise CheckpointError("damaged-file", f"{path} is damaged: its notes are no JSON object")
    return notes


def read_bytes(path: Path) -> bytes:
    """The contents of a file of at most `LARGEST` bytes. Raises CheckpointError."""
    _require_file(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)  # some regular files, such as those of /proc, do not tell their size
    except OSError as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
    if len(content) > LARGEST:
        raise CheckpointError("file-too-large", f"{path} is larger than the limit of {LARGEST:,} bytes for such a file")
    return content


def read_json(path: Path) -> Any:
    """A JSON document. Raises CheckpointError."""
    try:
        document = json.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
    level, depth = [document] if isinstance(document, dict | list) else [], 0
    while level := [inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list)]:
        depth += 1
        if depth >= _DEEPEST:
            raise CheckpointError(
                "nested-too-deeply", f"{path} is damaged: its brackets are nested more than {_DEEPEST} deep"
            )
    return document


def check_model_folder(folder: Path) -> None:
    """Look at the files that transformers would read in a stranger's folder, before it does.

    Raises CheckpointError for what is not a file, for JSON that is damaged or too deep, and for complex weights, whose
    imaginary part would be dropped.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix not in _READ_BY_TRANSFORMERS or path.is_dir() or not path.exists():
            continue
        _require_file(path)
        if path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".safetensors":
            _refuse_complex(path)


def _inner(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _require_file(path: Path) -> None:
    """Raises CheckpointError for a path that does not lead to a regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise CheckpointError("missing-file", f"{path} is missing") from None
    except OSError as error:  # such as links that lead to each other
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(
            "not-a-regular-file", f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}; give a regular file"
        )


def _refuse_complex(path: Path) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if file.get_slice(name).get_dtype().startswith("C")]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
    if names:
        raise CheckpointError(
            "complex-weights", f"{path} has complex weights ({names[0]}), which no Asterism model supports"
        )


def write_json(path: Path, document: object) -> None:
    """Write a JSON document, atomically."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, in UTF-8 on every machine: readers see the old one or the whole new one.

    Half of a surrogate pair, which a JSON file can bring with it, becomes the escape that it came from.
    """
    with replacing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """The name of a temporary file that takes the name `path` when the body ends, and is removed if it fails."""
    temporary = _beside(path)
    try:
        with writing(path):
            yield temporary
            flush(temporary)  # else the rename could reach the disk before the contents
            temporary.replace(path)
            flush(path.parent)  # else a power cut could undo the rename after later files were written
    except BaseException:
        with suppress(OSError):  # on a disk that takes nothing more; it is known by its name
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the name `folder` when the body ends, and is removed if it fails.

    A folder cannot be renamed onto one that holds something, so for an instant between two renames neither the old one
    nor the new one has its name. Who must never be without gives every folder a name of its own.
    """
    temporary, aside = _beside(folder), _beside(folder)
    try:
        with writing(folder):
            make_folder(folder.parent)
            temporary.mkdir()
            yield temporary
            _open_to_readers(temporary)
            for path in (*temporary.rglob("*"), temporary):
                flush(path)  # contents and names, before anything can be found under the final name
            if folder.is_dir() and any(folder.iterdir()):
                folder.replace(aside)
            temporary.replace(folder)
            flush(folder.parent)  # the new name is on disk before the old contents go
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line what could not be written, and what to do. Raises CheckpointError for what the disk refuses."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError("unwritable", _refusal(path, error)) from error
    except Exception as error:
        # What the tokenizers library raises for a full disk is of no class of its own; all others have theirs.
        if type(error) is not Exception:
            raise
        raise CheckpointError("unwritable", _refusal(path, error)) from error


def _refusal(path: Path, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in reason
    remedy = "make room" if full else "see to it that it can be written"
    return f"{path} cannot be written: {reason}; {remedy} and go on: what was whole before is still there"


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it, as far as they are missing, and return those that were made, deepest first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush(path.parent)  # what is flushed inside is lost if the folder's own name is
    return missing


def remove_folder(folder: Path) -> None:
    """Remove a folder; whoever is killed meanwhile leaves no half of it under its name."""
    aside = _beside(folder)
    folder.replace(aside)
    shutil.rmtree(aside)


def is_leftover(path: Path) -> bool:
    """Whether a writer that was killed left this behind."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove from a folder what writers that were killed left behind; nobody else may be writing there now.

    With a name, only what was to become that file or folder.
    """
    left = [path for path in folder.iterdir() if is_leftover(path)] if folder.is_dir() else []
    for path in [path for path in left if name in (None, path.name[1 : -len("-") - 32])]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flush(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on disk before anything that follows."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    """An unused hidden name in the same folder. Python's own temporary files could be read by their owner only."""
    return path.with_name(f".{path.name}-{uuid.uuid4().hex}")


def _open_to_readers(folder: Path) -> None:
    """Give the files in a new folder the rights that the umask gave it: safetensors writes for the owner only."""
    allowed = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(allowed)
