"""What files without loss need for pictures: the yardstick that everybody has.

Every picture is a file of its own. Only what is compressed is counted, not what a file says about itself (57 bytes of a
PNG, some 20 of a WebP): of small pictures that would be more than models differ by.
"""

from collections.abc import Iterable
from io import BytesIO

import numpy as np

from asterism.training.data.images.decoding import require_pillow


def compressed(pictures: Iterable[np.ndarray]) -> dict[str, float]:
    """Bits per value of pictures uint8 [h, w, 1 or 3]: PNG (zlib 9, the filters that Pillow finds best), and WebP
    without loss.
    """
    sizes, values = {"png": 0, "webp lossless": 0}, 0
    for picture in pictures:
        sizes["png"] += _png(picture)
        sizes["webp lossless"] += _webp(picture)
        values += picture.size
    return {name: 8 * size / values for name, size in sizes.items()}


def _encoded(picture: np.ndarray, format: str, **settings: object) -> bytes:
    require_pillow()
    from PIL import Image

    out = BytesIO()
    Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture).save(out, format, **settings)
    return out.getvalue()


def _png(picture: np.ndarray) -> int:
    """The bytes of the data of a PNG: of its chunks IDAT."""
    content, at, size = _encoded(picture, "PNG", optimize=True, compress_level=9), 8, 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        size += length if content[at + 4 : at + 8] == b"IDAT" else 0
        at += 12 + length
    return size


def _webp(picture: np.ndarray) -> int:
    """The bytes of the data of a WebP: of its chunk VP8L; the smaller of two methods.

    Methods that look longer gave larger files of pictures of 32 x 32: 2 was best there, 4 is Pillow's own.
    """
    return min(_lossless(_encoded(picture, "WEBP", lossless=True, quality=100, method=method)) for method in (2, 4))


def _lossless(content: bytes) -> int:
    at, size = 12, 0
    while at < len(content):
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        size += length if content[at : at + 4] == b"VP8L" else 0
        at += 8 + length + length % 2
    return size
