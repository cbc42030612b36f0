"""Check, before anything is decoded, that a file is a whole WAV, FLAC or Ogg file, by its first and last bytes.

Decoders would read a WAV or Ogg file that was cut off as a shorter sound. Its header or its last page shows the cut.
(In a FLAC file, reading the last sample shows it.)
"""

import struct
from pathlib import Path
from typing import BinaryIO

_MOST_CHUNKS = 4096
"""A WAV file has a handful; one of millions of empty ones would take long to walk through."""

_LAST_PAGE = 65_536
"""Where in an Ogg file the last page is: a page has at most 65,307 bytes."""


def check_whole(path: Path) -> None:
    """Raises ValueError, with the reason, for a file that is none of the formats, or not whole."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError("is empty")
    with path.open("rb") as file:
        magic = file.read(12)
        if magic[:4] in (b"RIFF", b"RF64") and magic[8:12] == b"WAVE":
            _check_wav(file, size)
        elif magic[:4] == b"OggS":
            _check_ogg(file, size)
        elif magic[:4] != b"fLaC":
            raise ValueError(f"is no WAV, FLAC or Ogg file: its first bytes are {magic[:8].hex(' ')}")


def _check_wav(file: BinaryIO, size: int) -> None:
    at, long_data = 12, None
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            raise ValueError("is cut off: it has no samples")
        name, length = struct.unpack("<4sI", head)
        if name == b"ds64":
            sizes = file.read(16)
            if len(sizes) < 16:
                raise ValueError("is cut off: it has no samples")
            long_data = struct.unpack("<QQ", sizes)[1]
        if name == b"data":
            if length == 0xFFFFFFFF and long_data is not None:
                length = long_data
            if at + 8 + length > size:
                raise ValueError(
                    f"is cut off: its header promises {length:,} bytes of samples, {size - at - 8:,} are there"
                )
            return
        at += 8 + length + length % 2
    raise ValueError(f"is damaged: it has no samples in its first {_MOST_CHUNKS:,} chunks")


def _check_ogg(file: BinaryIO, size: int) -> None:
    """The last page must be there to its end, and say that it is the last."""
    begin = max(0, size - _LAST_PAGE)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(b"OggS")
    if at < 0 or at + 27 > len(tail):
        raise ValueError("is cut off: it does not end with a whole page")
    lacing = tail[at + 27 : at + 27 + tail[at + 26]]
    if at + 27 + tail[at + 26] + sum(lacing) > len(tail) or not tail[at + 5] & 4:
        raise ValueError("is cut off: its last page is missing")
