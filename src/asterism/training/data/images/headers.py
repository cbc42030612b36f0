"""Read the header of a PNG, JPEG or WebP file, before anything else reads the file.

The size of a picture decides the memory of decoding, so it must be known before. Following the parts of a file to its
end shows, at no cost, whether it was cut off. Nothing is decoded here.
"""

import struct
from dataclasses import dataclass


class Unreadable(ValueError):
    """The reason why a picture is not read, as the end of a sentence that begins with its place."""


@dataclass(frozen=True)
class Header:
    """Format ("PNG", "JPEG" or "WEBP"), size in pixels, bits of a value, and whether there are several frames."""

    format: str
    width: int
    height: int
    bits: int = 8
    is_animated: bool = False


def read_header(content: bytes) -> Header:
    """The header of a file. Raises Unreadable, with the reason, for what is none of the formats, or not whole."""
    if not content:
        raise Unreadable("is empty")
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(content)
    if content.startswith(b"\xff\xd8\xff"):
        return _jpeg(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp(content)
    raise Unreadable("is no PNG, JPEG or WebP file: its first bytes are " + (content[:8].hex(" ") or "none"))


def _truncated() -> Unreadable:
    return Unreadable("is cut off: its end is missing")


def _png(content: bytes) -> Header:
    at, header, is_animated = 8, None, False
    while True:
        if at + 12 > len(content):
            raise _truncated()
        length, kind = struct.unpack_from(">I4s", content, at)
        if at + 12 + length > len(content):
            raise _truncated()
        if header is None:
            if kind != b"IHDR" or length != 13:
                raise Unreadable("is damaged: a PNG file begins with IHDR")
            header = struct.unpack_from(">IIB", content, at + 8)
        if kind == b"IEND":
            return Header("PNG", header[0], header[1], header[2], is_animated)
        is_animated |= kind == b"acTL"
        at += 12 + length


_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
"""The markers that begin a frame of a JPEG file."""


def _jpeg(content: bytes) -> Header:
    at = 2
    while True:
        if at + 4 > len(content):
            raise _truncated()
        if content[at] != 0xFF:
            raise Unreadable("is damaged: a marker of JPEG is missing")
        marker = content[at + 1]
        if marker == 0xFF:  # fills
            at += 1
            continue
        (length,) = struct.unpack_from(">H", content, at + 2)
        if marker in _FRAMES:
            break
        if length < 2 or marker in (0xD9, 0xDA):
            raise Unreadable("is damaged: a JPEG file has a frame before its data")
        at += 2 + length
    if at + 9 > len(content) or content.rfind(b"\xff\xd9") < at:
        raise _truncated()
    bits, height, width = struct.unpack_from(">BHH", content, at + 4)
    return Header("JPEG", width, height, bits)


def _webp(content: bytes) -> Header:
    (length,) = struct.unpack_from("<I", content, 4)
    if length + 8 > len(content) or len(content) < 30:
        raise _truncated()
    kind = content[12:16]
    if kind == b"VP8X":
        flags = content[20]
        width, height = (1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
        return Header("WEBP", width, height, is_animated=bool(flags & 2))
    if kind == b"VP8L":
        (packed,) = struct.unpack_from("<I", content, 21)
        return Header("WEBP", 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF))
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return Header("WEBP", width & 0x3FFF, height & 0x3FFF)
    raise Unreadable("is damaged: a WebP file begins with VP8, VP8L or VP8X")
