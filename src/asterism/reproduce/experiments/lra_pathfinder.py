"""Pathfinder of Long Range Arena, in small: does one dashed curve join the two dots?"""

from functools import partial
from pathlib import Path

import numpy as np

from asterism.reproduce.data.pathfinder import Size, drawn, scenes, write_scenes
from asterism.reproduce.experiment import Figures
from asterism.reproduce.experiments.arena import (
    Arena,
    Counting,
    Data,
    Sizes,
    arena,
    published_of,
    regression,
    simple_figures,
)

PICTURES = {256: Size(16, 3, 1, 2), 1024: Size(32, 6, 3, 3)}
"""What is drawn, by the number of pixels."""


def data(sizes: Sizes) -> tuple[Data, Data]:
    """Pictures to learn from, and others."""
    size = PICTURES[sizes.length]
    shape = f"{size.side}-{size.dashes}-{size.distractors}-{size.short}"
    return (
        Data(f"pathfinder-{sizes.rows}-{shape}", partial(write_scenes, count=sizes.rows, size=size, seed=0)),
        Data(f"pathfinder-test-{sizes.tested}-{shape}", partial(write_scenes, count=sizes.tested, size=size, seed=1)),
    )


def weigh_pixels(folder: Path, sizes: Sizes, rows: int) -> Figures:
    """The figures of a regression on the values of all pixels."""
    known, labels = _pictures(sizes, min(sizes.rows, rows), seed=0)
    tested, right = _pictures(sizes, sizes.tested, seed=1)
    return simple_figures(regression(known, labels, tested), labels, right)


def _pictures(sizes: Sizes, count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Pixels, float64 [pictures, pixels], and labels."""
    size = PICTURES[sizes.length]
    found = list(scenes(count, size, seed))
    pixels = np.stack([drawn(scene, size.side).reshape(-1) for scene in found])
    return pixels.astype(np.float64), [scene.label for scene in found]


PATHFINDER = Arena(
    title="Pathfinder",
    sizes={
        "laptop": Sizes(length=256, rows=20_000, tested=2000, steps=1200, batch=32),
        "workstation": Sizes(length=1024, rows=160_000, tested=20_000, steps=62_400, batch=256, seeds=3),
        "paper": Sizes(length=1024, rows=160_000, tested=20_000, steps=62_400, batch=256),
    },
    data=data,
    modality="bytes()",
    simple=Counting("weighted pixels", 4000, weigh_pixels),
    published=published_of("pathfinder"),
)

LRA_PATHFINDER = arena(
    "lra-pathfinder",
    PATHFINDER,
    {
        "laptop": "Models of two layers, 64 wide, read 16 x 16 pixels as 256 grey values, learn in 1,200 steps of 32"
        " pictures, and answer for 2,000 new ones.",
        "workstation": "Models of two layers, 64 wide, read 32 x 32 pixels as 1,024 grey values, learn in 62,400 steps"
        " of 256 pictures, and answer for 20,000 new ones. Three seeds.",
    },
    caveats=(
        "Pictures are made here, and the dots are brighter than the dashes. At 32 x 32 pixels, as in the paper, two"
        " curves have six dashes and three have three. At scale laptop pictures have 16 x 16 pixels: two curves of"
        " three dashes and one of two.",
        "A run learns from nine tenths of the pictures, because a folder of files is divided by their content.",
        "A window is of the row of pixels: 65 tokens are two lines of 32 pixels, four of 16.",
    ),
)
"""The experiment."""
