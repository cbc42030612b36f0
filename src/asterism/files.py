"""Files and folders that are whole or not there, and reading that names what is damaged.

A file or folder is written under a temporary name, flushed to disk and renamed, so that under its own name it is always
whole. Only data are read and written: JSON and safetensors.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file

from asterism.errors import CheckpointError

DAMAGED = (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError)
"""What transformers raises for a config.json whose fields hold what they cannot; which, depends on its version."""


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises CheckpointError."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def read_json(path: Path) -> Any:
    """A JSON document. Raises CheckpointError."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def write_json(path: Path, document: object) -> None:
    """Write a JSON document, atomically."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old one or the whole new one."""
    temporary = _beside(path)
    temporary.write_text(text)
    _flush(temporary)
    temporary.replace(path)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the name `folder` when the body ends, and is removed if it fails."""
    temporary = _beside(folder)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        _flush(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _beside(path: Path) -> Path:
    """An unused hidden name in the same folder. Python's own temporary files could be read by their owner only."""
    return path.with_name(f".{path.name}-{uuid.uuid4().hex}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
