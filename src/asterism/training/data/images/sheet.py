"""A sheet of pictures as one PNG: a grid, every pixel of a picture a square of pixels, a line of grey between them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asterism.files import replacing_file

LEAST_SIDE = 64
"""Small pictures are shown at least so many pixels high and wide."""

GAP = 2
GREY = 128


def write_sheet(rows: Sequence[Sequence[np.ndarray]], output: Path) -> None:
    """Write rows of pictures, uint8 [height, width, 1 or 3] of one shape each, as one PNG; whole or not at all."""
    from PIL import Image

    first = rows[0][0]
    times = max(1, math.ceil(LEAST_SIDE / max(first.shape[:2])))
    tall, wide = (times * side + GAP for side in first.shape[:2])
    sheet = np.full((tall * len(rows) + GAP, wide * max(map(len, rows)) + GAP, first.shape[2]), GREY, dtype=np.uint8)
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            large = picture.repeat(times, axis=0).repeat(times, axis=1)
            sheet[row * tall + GAP : (row + 1) * tall, column * wide + GAP : (column + 1) * wide] = large
    with replacing_file(output) as unfinished:
        Image.fromarray(sheet[:, :, 0] if first.shape[2] == 1 else sheet).save(unfinished, "PNG", optimize=True)


def in_rows(pictures: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Pictures, uint8 [height, width, 1 or 3] each, in rows, about as many as there are in each."""
    wide = math.ceil(math.sqrt(len(pictures)))
    return [list(pictures[at : at + wide]) for at in range(0, len(pictures), wide)]


def given(picture: np.ndarray, kept: int) -> np.ndarray:
    """A picture of which only the first `kept` values are seen; the rest is grey: uint8 [height, width, 1 or 3]."""
    seen = picture.reshape(-1).copy()
    seen[kept:] = GREY
    return seen.reshape(picture.shape)
