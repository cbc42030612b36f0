"""Read a file, plain or compressed by gzip (also bgzip) or xz, one block at a time; decompression bombs are refused.

The first bytes of a file decide its compression, not its name. Only one block is held in memory, regardless of the
unpacked size. Python's own classes (gzip.GzipFile, lzma.LZMAFile) also read several members, but there xz could take
any amount of memory. Invariant: a file that is read to the end is whole; one that breaks off is refused.
"""

import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from asterism.errors import DataError

BLOCK = 1 << 20
"""Bytes that are given at most at a time, and of a plain file read."""

PIECE = 1 << 14
"""Bytes of a compressed file that are read at a time: what stands behind the end of a member is copied, so that many
short members would cost their number times what was read."""

LARGEST_UNPACKED = 1 << 36
"""Bytes that a compressed file may unfold to: 64 GiB, twenty times the human genome."""

LARGEST_RATIO = 200
"""How many times as long as its file the unfolded text may be, beyond `FREE_OF_RATIO`. DNA unfolds to four or five
times its file; gzip can claim a thousand times, xz ten thousand."""

FREE_OF_RATIO = 1 << 24
"""Bytes that any compressed file may unfold to: 16 MiB."""

XZ_MEMORY = 1 << 28
"""Bytes that unpacking xz may take: 256 MiB; `xz -9` takes 65 MiB."""

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\0"
_REFUSED = {b"PK\x03\x04": "a zip archive", b"BZh": "compressed by bzip2", b"\x28\xb5\x2f\xfd": "compressed by zstd"}
_SUFFIXES = {".gz": GZIP, ".bgz": GZIP, ".xz": XZ}
_BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends what bgzip wrote (SAM specification, 4.1.2)."""


def compression_of(path: str | Path) -> bytes:
    """The magic number by which a file is compressed: GZIP, XZ, or none, which is b"".

    Raises DataError for what is no file, cannot be read, is empty, or is not what its name promises.
    """
    path = Path(path)
    if "\0" in str(path):
        raise DataError("file-name", f"data: {str(path)!r} cannot be the name of a file")
    try:
        if not path.exists():
            raise DataError("missing-file", f"data: there is no file {path}")
        if not path.is_file():
            raise DataError("not-a-file", f"data: {path} is not a file")
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {path}: {error.strerror}") from None
    if not head:
        raise DataError("empty-file", f"{path} is empty")
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(
                "unsupported-compression", f"{path} is {what}; unpack it, or compress it by gzip, bgzip or xz"
            )
    found = next((magic for magic in (GZIP, XZ) if head.startswith(magic)), b"")
    promised = _SUFFIXES.get(path.suffix.lower(), found)
    if promised != found:
        raise DataError("not-compressed", f"{path} is not compressed as its name says: it begins with {head.hex(' ')}")
    return found


def blocks(path: str | Path) -> Iterator[bytes]:
    """What a file holds, unpacked: blocks of 1 to `BLOCK` bytes.

    Raises DataError for a file that `compression_of` refuses, that breaks off or is damaged, and that unfolds to more
    than `LARGEST_UNPACKED` or, beyond `FREE_OF_RATIO`, to `LARGEST_RATIO` times its size.
    """
    magic = compression_of(path)
    try:
        with Path(path).open("rb") as file:
            if not magic:
                yield from iter(lambda: file.read(BLOCK), b"")
                return
            if magic == GZIP:
                _refuse_cut_bgzip(path, file)
            yield from _bounded(path, _members(path, file, magic), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {path}: {error.strerror}") from None


def lines(path: str | Path, longest: int) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers from 1, without their ends (LF or CRLF).

    Raises DataError for what `blocks` refuses, for a line of more than `longest` bytes, one that is not UTF-8, and one
    with a NUL, as binary files have.
    """
    number, rest = 0, b""
    for block in blocks(path):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            number += 1
            yield number, _text(path, number, line, longest)
        _require_length(path, number + 1, rest, longest)
    if rest:
        yield number + 1, _text(path, number + 1, rest, longest)


def _text(path: str | Path, number: int, line: bytes, longest: int) -> str:
    _require_length(path, number, line, longest)
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    if b"\0" in line:
        raise DataError(
            "nul-character", f"{path}, line {number}: has a NUL byte at {line.index(0) + 1:,}; this is not a text file"
        )
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise DataError(
            "not-utf8", f"{path}, line {number}: is not UTF-8 text: byte {error.start + 1:,} of the line cannot be read"
        ) from None


def _require_length(path: str | Path, number: int, line: bytes, longest: int) -> None:
    if len(line) > longest:
        raise DataError(
            "line-too-long",
            f"{path}, line {number}: has more than {longest:,} bytes, the limit for a line",
        )


def _members(path: str | Path, file: IO[bytes], magic: bytes) -> Iterator[bytes]:
    """What the members of a gzip file, or the streams of an xz file, unfold to, one after another."""
    start = data = file.read(PIECE)
    offset = 0
    while start:
        unpacker = _unpacker(magic)
        while not unpacker.eof:
            try:
                block = unpacker.decompress(data, BLOCK)
            except (zlib.error, lzma.LZMAError) as error:
                raise DataError(
                    "damaged-compression", f"{path} cannot be unpacked near byte {offset:,}: {_one_line(error)}"
                ) from None
            data = getattr(unpacker, "unconsumed_tail", b"")  # lzma keeps what it did not take
            if block:
                yield block
            elif not unpacker.eof and not data:
                offset = file.tell()
                if not (data := file.read(PIECE)):
                    raise DataError(
                        "incomplete-download", f"{path} breaks off at byte {offset:,}; is the download complete?"
                    )
        data = unpacker.unused_data
        while not data.strip(b"\0") and (more := file.read(PIECE)):  # zeros may fill the last block of a tape or disk
            data = more
        start = data = data.lstrip(b"\0")
        if start and len(start) < len(magic):
            start = data = start + file.read(PIECE)
        if start and not start.startswith(magic):
            raise DataError(
                "bytes-behind-end", f"{path} has bytes after its end, {start[:4].hex(' ')}, that are not compressed"
            )


def _unpacker(magic: bytes) -> Any:
    """What unpacks one member: `decompress(data, most)`, `eof`, and `unused_data` behind its end."""
    if magic == GZIP:
        return zlib.decompressobj(wbits=31)
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


def _bounded(path: str | Path, unfolded: Iterator[bytes], size: int) -> Iterator[bytes]:
    total = 0
    for block in unfolded:
        total += len(block)
        if total > LARGEST_UNPACKED:
            raise DataError(
                "unpacks-too-large",
                f"{path} unpacks to more than the limit of {LARGEST_UNPACKED:,} bytes",
            )
        if total > max(FREE_OF_RATIO, LARGEST_RATIO * size):
            raise DataError(
                "compression-ratio",
                f"{path} has {size:,} bytes and unpacks to more than {total - 1:,}; beyond {FREE_OF_RATIO:,} bytes"
                f" the limit is {LARGEST_RATIO} times the size of the file",
            )
        yield block


def _refuse_cut_bgzip(path: str | Path, file: IO[bytes]) -> None:
    """bgzip writes whole members of 64 KiB, so a file that was cut between two of them looks whole but for its end."""
    head = file.read(18)
    if len(head) == 18 and head[3] & 4 and head[12:14] == b"BC":
        file.seek(-min(len(_BGZIP_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
        if file.read() != _BGZIP_END:
            raise DataError(
                "incomplete-download",
                f"{path} was written by bgzip and lacks the block that ends it; is the download complete?",
            )
    file.seek(0)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
