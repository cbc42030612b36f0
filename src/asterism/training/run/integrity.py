"""Check that files are unchanged: a record holds the SHA-256 of files, and its own.

This finds damage and accidental edits. It does not stop anyone who rewrites both on purpose.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from asterism.errors import CheckpointError
from asterism.files import read_json, write_json
from asterism.system import sha256_of

SEAL = "sha256"
"""The field of a record that holds the digest of the others."""


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the digest of its other fields, replacing an earlier one."""
    open_ = {name: value for name, value in record.items() if name != SEAL}
    # The digest is that of one spelling of the values, so that white space and the order of fields do not matter.
    text = json.dumps(open_, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return open_ | {SEAL: hashlib.sha256(text.encode()).hexdigest()}


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with its digest, atomically."""
    write_json(path, seal(record))


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a record that `seal` made. Raises CheckpointError if it is missing, damaged, or was changed."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise CheckpointError(
            "damaged-fields", f"{path} is damaged: it holds {type(record).__name__}, not the fields of a record"
        )
    if SEAL not in record:
        raise CheckpointError(
            "seal-missing",
            f"{path} is damaged, or from a version of asterism without checksums: it has no field {SEAL!r}; restore"
            " it, or use a model folder, which needs no record",
        )
    try:
        same = seal(record)[SEAL] == record[SEAL]
    except ValueError:  # NaN and Infinity, which Python reads and we never write
        same = False
    if not same:
        raise CheckpointError(
            "file-tampered", f"{path} was changed after it was written: its SHA-256 differs; restore the original"
        )
    return record


def read_fields(path: Path, fields: Collection[str], what: str) -> dict[str, Any]:
    """Read a record that `write_sealed` wrote, without its digest.

    Raises CheckpointError as `read_sealed` does, and if one of these fields is missing: then it is no record of `what`.
    """
    record = read_sealed(path)
    if missing := [name for name in fields if name not in record]:
        raise CheckpointError("foreign-record", f"{path} is no record of {what}: it has no {missing[0]!r}")
    return {name: value for name, value in record.items() if name != SEAL}


def sums_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder and below, by its relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path).hex() for path in files}


def check_sums(folder: Path, sums: Any, record: Path) -> None:
    """Raise CheckpointError, which names the file, unless the files of a folder match the sums of the record.

    Files without a sum in the record are allowed.
    """
    if not isinstance(sums, dict) or not sums:
        raise CheckpointError("sums-missing", f"{record} is damaged: it has no sums of the files in {folder.name}")
    for name, known in sums.items():
        path = folder / name
        try:
            found = sha256_of(path).hex()
        except FileNotFoundError:
            raise CheckpointError("missing-file", f"{path} is missing") from None
        except OSError as error:
            raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
        if found != known:
            raise CheckpointError(
                "file-tampered",
                f"{path} is damaged, or was changed after it was written: its SHA-256 is not the one in"
                f" {record.name}; restore the original",
            )
