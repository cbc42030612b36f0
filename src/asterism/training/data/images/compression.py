"""The size of pictures under lossless compression, the common baseline.

Every picture is a separate file. Only the compressed data count, not the metadata (57 bytes of a PNG, some 20 of a
WebP), which for small pictures exceed the differences between models. JPEG XL counts completely, because its bare
codestream has no separate chunks. Only some 15 bytes at its beginning describe size and colours.
"""

from collections.abc import Iterable
from io import BytesIO

import numpy as np

from asterism.presence import require_package
from asterism.training.data.images.decoding import require_pillow


def compressed(pictures: Iterable[np.ndarray]) -> dict[str, float]:
    """Bits per value of pictures, uint8 [h, w, 1 or 3] each, under lossless PNG, WebP and JPEG XL.

    Raises ConfigurationError without Pillow or imagecodecs.
    """
    require_compressors()
    sizes, values = {"png": 0, "webp lossless": 0, "jpeg xl lossless": 0}, 0
    for picture in pictures:
        sizes["png"] += _png(picture)
        sizes["webp lossless"] += _webp(picture)
        sizes["jpeg xl lossless"] += _jpeg_xl(picture)
        values += picture.size
    return {name: 8 * size / values for name, size in sizes.items()}


def require_compressors() -> None:
    """Raises ConfigurationError if Pillow or imagecodecs, which has JPEG XL, is not there."""
    require_pillow()
    require_package("imagecodecs", "imagecodecs", "images", "comparing a model of pictures with JPEG XL")


def _encoded(picture: np.ndarray, format: str, **settings: object) -> bytes:
    from PIL import Image

    out = BytesIO()
    Image.fromarray(_plane(picture)).save(out, format, **settings)
    return out.getvalue()


def _plane(picture: np.ndarray) -> np.ndarray:
    """A picture without the axis of its only channel, which encoders do not know."""
    return picture[:, :, 0] if picture.shape[2] == 1 else picture


def _png(picture: np.ndarray) -> int:
    """The bytes of the data of a PNG (zlib 9, the filters that Pillow finds best): of its chunks IDAT."""
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


def _jpeg_xl(picture: np.ndarray) -> int:
    """The bytes of a bare codestream of JPEG XL, at the effort that its library takes by itself."""
    import imagecodecs

    return len(imagecodecs.jpegxl_encode(np.ascontiguousarray(_plane(picture)), lossless=True))
