"""Decode one picture, from a file or an array, into the size and the channels that a model reads.

A picture is refused if the model would read it differently from how people see it: 16 bits per value (Pillow would drop
8 of them), CMYK (its colours need a profile), several frames, and transparent pixels without a background. Palettes and
grey become colours, and colours become grey by Pillow's weights (ITU-R 601). The orientation noted by a camera is
applied. Colour profiles are ignored.
"""

import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from asterism.presence import require_package
from asterism.training.data.images.headers import Header, Unreadable, read_header

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 2**26
"""Larger pictures are refused before they are decoded: Pillow takes four bytes a pixel, 256 MiB, and four times as much
while a background is put behind a transparent picture."""

MOST_BYTES = 2**26
"""Larger files are refused before they are read."""

RESIZE = ("crop", "squash", "exact")
BACKGROUNDS = ("white", "black")


@dataclass(frozen=True)
class Fitting:
    """How a picture becomes `height` x `width` pixels of `channels` values.

    resize      "crop": scaled until it covers the size, then cut on both sides alike; "squash": scaled, its proportions
                not kept; "exact": it must have the size. Scaling is Pillow's bicubic, which averages as it shrinks.
    background  what is behind transparent pixels: "white" or "black"; None refuses them
    """

    width: int
    height: int
    channels: int
    resize: str
    background: str | None

    @property
    def values(self) -> int:
        """How many values a picture has."""
        return self.width * self.height * self.channels


def decode(content: bytes, fitting: Fitting) -> np.ndarray:
    """The picture in a file: uint8 [height, width, channels].

    Raises Unreadable, with the reason in one line, for what cannot be decoded or is refused (module docstring).
    """
    header = check_header(content)
    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that is of no use here
            with Image.open(BytesIO(content), formats=[header.format]) as picture:
                if picture.size != (header.width, header.height):
                    raise Unreadable("has two sizes")
                picture.load()
                return fit(_seen(picture, fitting), fitting)
    except Unreadable:
        raise
    except UnidentifiedImageError:  # whose message names our buffer
        raise Unreadable(f"cannot be decoded: what a {header.format} file says of itself is damaged") from None
    except Exception as error:  # Pillow's decoders raise almost any class for a damaged file
        raise Unreadable(f"cannot be decoded: {' '.join(str(error).split())[:200]}") from None


def check_header(content: bytes) -> Header:
    """The header of a readable picture, from its first bytes, without decoding. Raises Unreadable."""
    header = read_header(content)
    if not header.width or not header.height:
        raise Unreadable("has no pixels")
    if header.width * header.height > MOST_PIXELS:
        raise Unreadable(
            f"has {header.width:,} x {header.height:,} pixels; at most {MOST_PIXELS:,} are read: make it smaller"
        )
    if header.bits > 8:
        raise Unreadable(f"has {header.bits} bits a value; values of 8 bits are read: convert it")
    if header.is_animated:
        raise Unreadable("has several frames; save each as a picture of its own")
    return header


def fit_array(array: np.ndarray, fitting: Fitting) -> np.ndarray:
    """The picture in an array, uint8 [h, w, 1 or 3]: uint8 [height, width, channels]. Raises Unreadable."""
    if array.shape == (fitting.height, fitting.width, fitting.channels):
        return array
    require_pillow()
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))
    return fit(picture.convert(_mode(fitting)), fitting)


def fit(picture: "Image", fitting: Fitting) -> np.ndarray:
    """A picture of the right mode in the right size: uint8 [height, width, channels]."""
    from PIL import Image, ImageOps

    size = (fitting.width, fitting.height)
    if picture.size != size:
        if fitting.resize == "exact":
            raise Unreadable(
                f"has {picture.width} x {picture.height} pixels, not {fitting.width} x {fitting.height}; ask for"
                ' resize="crop" or "squash"'
            )
        scaled = Image.Resampling.BICUBIC
        picture = picture.resize(size, scaled) if fitting.resize == "squash" else ImageOps.fit(picture, size, scaled)
    return np.asarray(picture).reshape(fitting.height, fitting.width, fitting.channels)


def require_pillow() -> None:
    """Raises ConfigurationError if Pillow is not there."""
    require_package("Pillow", "PIL", "images", "reading and writing pictures")


def _mode(fitting: Fitting) -> str:
    return "L" if fitting.channels == 1 else "RGB"


_METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
"""Where Pillow keeps what may say how a camera was held."""


def _seen(picture: "Image", fitting: Fitting) -> "Image":
    """A decoded picture as people see it, in the mode that is wanted."""
    from PIL import Image, ImageOps

    if picture.mode not in ("1", "L", "P", "RGB", "LA", "PA", "RGBA"):
        raise Unreadable(f"its colours are {picture.mode}, which are not read: convert it to RGB")
    if any(name in picture.info for name in _METADATA):
        picture = ImageOps.exif_transpose(picture)
    if "transparency" in picture.info or picture.mode in ("LA", "PA", "RGBA"):
        picture = picture.convert("RGBA")
        if fitting.background is not None:
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, fitting.background), picture)
        elif picture.getextrema()[3] != (255, 255):  # type: ignore[misc]  # of four bands
            raise Unreadable('has transparent pixels; say what is behind them: background="white" or "black"')
    return picture if picture.mode == _mode(fitting) else picture.convert(_mode(fitting))
