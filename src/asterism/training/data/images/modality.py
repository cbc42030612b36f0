"""Pictures as a modality: `images(width=32, height=32)`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from asterism.calls import is_whole
from asterism.errors import nearest
from asterism.training.data.corpora.modality import Modality, data_uri
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.images.compression import compressed, require_compressors
from asterism.training.data.images.corpus import ImagePieces, ImageSplits, open_images, read_picture
from asterism.training.data.images.decoding import BACKGROUNDS, RESIZE, Fitting, require_pillow
from asterism.training.data.images.sheet import given, in_rows, write_sheet

MOST_VALUES = 2**24
"""Larger pictures are no sequence that a model reads."""

MOST_CLASSES = 100_000


class Images(Modality):
    """Pictures of `height` x `width` pixels with 3 channels of 8 bits, or 1.

    Each is a sequence of height * width * channels values: row by row, pixel by pixel, red, green, blue. The model
    knows these places by position_type="factorised" and position_shape=(height, width, channels).

    resize      what happens to pictures of another size: "crop" scales and cuts them, "squash" scales only, "exact"
                refuses them
    background  "white" or "black" behind transparent pixels, which are refused otherwise
    classes     how many classes the data tell apart, for models that are told which one they are to draw
    """

    name, unit = "images", "values"
    outputs = (".png",)
    samples_at_the_end = True
    most_drawn = 1024

    def __init__(
        self,
        width: int,
        height: int,
        channels: int = 3,
        resize: str = "crop",
        background: str | None = None,
        classes: int | None = None,
    ) -> None:
        for name, number, most in (("width", width, MOST_VALUES), ("height", height, MOST_VALUES)):
            self._require(name, number, is_whole(number, 1, most), "must be a whole number above 0")
        self._require("channels", channels, channels in (1, 3) and is_whole(channels, 1, 3), "must be 1 or 3")
        self._require(
            "width", width, width * height * channels <= MOST_VALUES, f"gives more than {MOST_VALUES:,} values"
        )
        self._require("classes", classes, classes is None or is_whole(classes, 1, MOST_CLASSES), "must be at least 1")
        for name, word, known in (("resize", resize, RESIZE), ("background", background, (None, *BACKGROUNDS))):
            hint = nearest(word, [one for one in known if one]) if isinstance(word, str) else ""
            self._require(name, word, word in known, f"must be one of {', '.join(str(one) for one in known)}.{hint}")
        self.width, self.height, self.channels = width, height, channels
        self.resize, self.background, self.classes = resize, background, classes
        self.fitting = Fitting(width, height, channels, resize, background)
        self.sequence_length, self.axes = self.fitting.values, (height, width, channels)

    def splits(self, path: str | None) -> ImageSplits:
        """As `open_images`. What the report of a run compares with must be there before its first step."""
        require_compressors()
        return open_images(path, self.fitting, self.classes, str(self))

    def baselines(self, splits: Splits, split: Split, first: int, stop: int) -> dict[str, float]:
        """Bits per value of lossless PNG, WebP and JPEG XL (`compression.py`)."""
        pieces, size = cast(ImagePieces, splits.pieces(split)), self.fitting.values
        return compressed(pieces.pictures.read(number, self.fitting) for number in range(first // size, stop // size))

    def read_prompt(self, path: Path) -> np.ndarray:
        """A whole picture, in the size that the model reads."""
        return read_picture(path, self.fitting).reshape(-1)

    def kept(self, values: int, share: float | None) -> int:
        """Whole rows: by default the upper half."""
        row = self.width * self.channels
        return round((0.5 if share is None else share) * values / row) * row

    def write(self, sequences: Sequence[np.ndarray], output: Path) -> list[Path]:
        """A grid of pictures, as one PNG."""
        write_sheet(in_rows([self._picture(one) for one in sequences]), output)
        return [output]

    def write_completions(
        self,
        originals: Sequence[np.ndarray],
        kept: Sequence[int],
        completions: Sequence[Sequence[np.ndarray]],
        output: Path,
    ) -> list[Path]:
        """Write a row for each picture: the given part, its completions, and the original; many pictures share rows in
        pairs.
        """
        rows = [
            [given(self._picture(original), count), *map(self._picture, made), self._picture(original)]
            for original, count, made in zip(originals, kept, completions, strict=True)
        ]
        abreast = 1 if len(rows) < 8 else 2
        write_sheet([sum(rows[at : at + abreast], []) for at in range(0, len(rows), abreast)], output)
        return [output]

    def samples(self, values: np.ndarray, expected: np.ndarray, drawn: np.ndarray) -> list[dict[str, Any]]:
        """One PNG: the picture, what was expected of each value, what was given of it, and what was made of that."""
        if len(values) != self.fitting.values:  # a context that is shorter than a picture
            return []
        kept, one = len(values) - len(drawn), self._picture(values)
        pictures = {"original": one, "each value from those before": self._picture(expected)}
        if len(drawn):
            pictures["given"] = given(one, kept)
            pictures["completed"] = self._picture(np.concatenate([values[:kept], drawn]))
        picture = data_uri("image/png", lambda path: write_sheet([[*pictures.values()]], path), ".png")
        return [{"picture": picture, "shown": [*pictures]}]

    def refuse_output(self, output: Path) -> None:
        require_pillow()
        super().refuse_output(output)

    def _picture(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(self.height, self.width, self.channels)
