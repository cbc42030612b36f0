"""Files that verbs write: refused before any work starts if they cannot be written, and then written whole."""

import argparse
import importlib.util
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asterism.cli.parser import Parser
from asterism.cli.waiting import print_above

PICTURES = (".png", ".svg")


def say(text: str) -> None:
    """Report progress on stderr, above the line of `waiting` if one is shown."""
    print_above(text)


def add_plot(parser: Parser, shows: str) -> None:
    """Add `--plot PATH`, the one flag for pictures. `shows` ends the sentence "also draw ..."."""
    parser.add_argument(
        "--plot", type=_picture, metavar="PATH", help=f"also draw {shows}, as .png or .svg; replaces PATH"
    )


def add_record(parser: Parser, when: str) -> None:
    """Add `--record FILE.json`. `when` ends the sentence "also write the record, ..."."""
    meaning = f"also write the record, {when}; replaces FILE.json"
    parser.add_argument("--record", type=output_file(".json"), metavar="FILE.json", help=meaning)
    former = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS, "dest": "record"}
    parser.add_argument("--output", type=output_file(".json"), **former)  # the name of --record in older commands


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name next to `path` to write to; it takes the name `path` when the body ends, and is removed if it fails.

    The suffix stays the last part of the name, because matplotlib reads the format off it. Unlike the files of a run
    (`files.py`), a picture or a record can be made again: it is not flushed to the disk, and torch is not needed.
    """
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    with written_whole(path) as unfinished:
        unfinished.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """An argument type: a file with one of the suffixes, in a folder that exists."""

    def convert(text: str) -> Path:
        path = Path(text)
        if "\0" in text or path.suffix.lower() not in suffixes:
            raise ArgumentTypeError(f"the file name must end in {' or '.join(suffixes)}, got {text!r}")
        if not path.parent.is_dir():
            raise ArgumentTypeError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
        if path.is_dir():
            raise ArgumentTypeError(f"{text!r} is a folder; name a file")
        return path

    return convert


def _picture(text: str) -> Path:
    """An argument type: a picture that matplotlib can write. Said at once, not after minutes of work."""
    path = output_file(*PICTURES)(text)
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentTypeError("pictures need matplotlib: pip install '.[plot]' in a checkout")
    return path
