"""Pathfinder (Linsley 2018), as in Long Range Arena: two dots among dashed curves; does a curve join the dots?

Every picture has two long curves, some short ones, and two dots. The dots are the two ends of one long curve (`joined`)
or an end of each long curve (`apart`). Dashes of a curve leave one empty pixel between them, and different curves keep
two, so steps of at most two pixels from the centre of a dot stay on one curve.

Invariants: pixels depend on seed, count and size alone. All pictures of one size have the same number of pixels of
each value. In each picture, dots of the other class would be exactly as far from each other, so distance says nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asterism.reproduce.data.pictures import write_files

JOINED, APART = "joined", "apart"
DASH_VALUE, DOT_VALUE = 128, 255
DASH, STEP = 3, 2
"""Pixels of a dash, and the most pixels from one to the next along a curve, in either axis."""
BEND = 0.35
"""Standard deviation of the turn from dash to dash, in radians."""
_ATTEMPTS = 100
_PURPOSE = 1805_08315

Pixel = tuple[int, int]
Curve = list[Pixel]
"""The pixels of a curve, from one end to the other."""


@dataclass(frozen=True)
class Size:
    """Pixels of a side, dashes of the two long curves, the number of short curves, and the dashes of those."""

    side: int
    dashes: int
    distractors: int
    short: int


class Scene(NamedTuple):
    """The long curves, then the short ones; the two dots, and the label."""

    curves: Sequence[Curve]
    dots: tuple[Pixel, Pixel]
    label: str


def scenes(count: int, size: Size, seed: int) -> Iterator[Scene]:
    """Yield `count` scenes; every second one is joined."""
    draw = _draws(np.random.Generator(np.random.Philox(key=[seed, _PURPOSE]))).__next__
    made = 0
    while made < count:
        taken: set[Pixel] = set()
        pair = _pair(draw, size, taken)
        short = None if pair is None else _curves(draw, (size.short,) * size.distractors, size.side, taken)
        if pair is not None and short is not None:
            near, far, other = pair.ends
            label = (JOINED, APART)[made % 2]
            yield Scene([*pair.curves, *short], (near, far if label == JOINED else other), label)
            made += 1


def drawn(scene: Scene, side: int) -> np.ndarray:
    """The picture of a scene: uint8 [side, side]. Dots cover 3 x 3 pixels."""
    picture = np.zeros((side, side), dtype=np.uint8)
    for curve in scene.curves:
        for row, column in curve:
            picture[row, column] = DASH_VALUE
    for row, column in scene.dots:
        picture[row - 1 : row + 2, column - 1 : column + 2] = DOT_VALUE
    return picture


def write_scenes(path: Path, count: int, size: Size, seed: int) -> None:
    """Write pictures into the folder `path`, as LABEL/NUMBER.bin, with a byte for each pixel."""
    found = list(scenes(count, size, seed))
    pixels = np.stack([drawn(scene, size.side).reshape(-1) for scene in found])
    write_files(path, pixels, [scene.label for scene in found])


def _draws(random: np.random.Generator) -> Iterator[float]:
    """Numbers in [0, 1), drawn many at a time: one call for each would take most of the time."""
    while True:
        yield from random.random(2**14).tolist()


class _Pair(NamedTuple):
    """Two long curves; both ends of one of them, and an end of the other that is exactly as far from the first end."""

    curves: list[Curve]
    ends: tuple[Pixel, Pixel, Pixel]


def _pair(draw: Callable[[], float], size: Size, taken: set[Pixel]) -> _Pair | None:
    """A pair that `taken` then keeps clear; None if no second curve has such an end after a number of attempts."""
    first = _curves(draw, (size.dashes,), size.side, taken)
    if first is None:
        return None
    for _ in range(_ATTEMPTS):
        second = _curve(draw, size.dashes, size.side, taken)
        ends = None if second is None else _ends(first[0], second)
        if second is not None and ends is not None:
            taken.update(around for pixel in second for around in _near(pixel, STEP))
            return _Pair([first[0], second], ends)
    return None


def _ends(one: Curve, another: Curve) -> tuple[Pixel, Pixel, Pixel] | None:
    """Both ends of a curve, and the end of the other that is exactly as far from the first; None if no end is."""
    for curve, rest in ((one, another), (another, one)):
        for near, far in ((curve[0], curve[-1]), (curve[-1], curve[0])):
            for other in (rest[0], rest[-1]):
                if _squared(near, far) == _squared(near, other):
                    return near, far, other
    return None


def _squared(one: Pixel, other: Pixel) -> int:
    """The square of their distance."""
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2


def _curves(draw: Callable[[], float], dashes: Sequence[int], side: int, taken: set[Pixel]) -> list[Curve] | None:
    """Curves of so many dashes each, which `taken` then keeps clear; None if one of them finds no room."""
    curves: list[Curve] = []
    for count in dashes:
        for _ in range(_ATTEMPTS):
            curve = _curve(draw, count, side, taken)
            if curve is not None:
                break
        else:
            return None
        curves.append(curve)
        taken.update(around for pixel in curve for around in _near(pixel, STEP))
    return curves


def _curve(draw: Callable[[], float], dashes: int, side: int, taken: set[Pixel]) -> Curve | None:
    """A curve that keeps clear of `taken`, of the frame and of its earlier dashes; None where it does not."""
    row, column = (1 + draw() * (side - 2) for _ in range(2))
    angle = 2 * math.pi * draw()
    found: Curve = []
    own: set[Pixel] = set()
    for number in range(dashes):
        # The longer axis moves by 1 at each step, so a dash has three pixels at any angle.
        long = max(abs(math.sin(angle)), abs(math.cos(angle)))
        down, right = math.sin(angle) / long, math.cos(angle) / long
        if number:
            row, column = row + STEP * down, column + STEP * right
        dash = [(math.floor(row + at * down), math.floor(column + at * right)) for at in range(DASH)]
        row, column = row + (DASH - 1) * down, column + (DASH - 1) * right
        if any(not 1 <= place < side - 1 for pixel in dash for place in pixel):
            return None
        if any(pixel in taken or pixel in own for pixel in dash):
            return None
        # The dash before is a step away from this one, so only those before it are kept clear of.
        own.update(around for pixel in found[-DASH:] for around in _near(pixel, STEP))
        found += dash
        angle += BEND * _normal(draw)
    return found


def _near(pixel: Pixel, distance: int) -> Iterator[Pixel]:
    """The pixels at most so far in either axis, the pixel itself among them."""
    row, column = pixel
    steps = range(-distance, distance + 1)
    return ((row + down, column + right) for down in steps for right in steps)


def _normal(draw: Callable[[], float]) -> float:
    """A normal number, by Box and Muller."""
    return math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())
