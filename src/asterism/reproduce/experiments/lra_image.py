"""Image of Long Range Arena, in small: grey CIFAR-10, a token for each pixel."""

from functools import partial
from pathlib import Path

import numpy as np

from asterism.reproduce.data.pictures import ARCHIVE, CIFAR_10, READER, SIDE, grey_pictures, write_pictures
from asterism.reproduce.experiment import Figures, Source
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

CLASSES = 10


def data(sizes: Sizes) -> tuple[Data, Data]:
    """The pictures to learn from, and those to test on."""
    train, test = sizes.rows // CLASSES, sizes.tested // CLASSES
    return (
        Data(f"pictures-{train}-of-each", partial(_write, split="train", of_each=train)),
        Data(f"pictures-test-{test}-of-each", partial(_write, split="test", of_each=test)),
    )


def _write(path: Path, split: str, of_each: int) -> None:
    write_pictures(path, path.parent / ARCHIVE, split, of_each)


def weigh_pixels(folder: Path, sizes: Sizes, rows: int) -> Figures:
    """The figures of a regression on the values of all pixels."""
    archive = folder / ARCHIVE
    known, labels = grey_pictures(archive, "train", min(sizes.rows, rows) // CLASSES)
    tested, right = grey_pictures(archive, "test", sizes.tested // CLASSES)
    return simple_figures(regression(known.astype(np.float64), labels, tested.astype(np.float64)), labels, right)


IMAGE = Arena(
    title="Image",
    sizes={
        "laptop": Sizes(length=SIDE**2, rows=20_000, tested=2000, steps=700, batch=16),
        "workstation": Sizes(length=SIDE**2, rows=50_000, tested=10_000, steps=35_000, batch=256, seeds=3),
        "paper": Sizes(length=SIDE**2, rows=50_000, tested=10_000, steps=35_000, batch=256),
    },
    data=data,
    modality="bytes()",
    simple=Counting("weighted pixels", 5000, weigh_pixels),
    published=published_of("image"),
)

LRA_IMAGE = arena(
    "lra-image",
    IMAGE,
    {
        "laptop": "Models of two layers, 64 wide, read 32 x 32 pixels of CIFAR-10 as 1,024 grey values, learn in 700"
        " steps of 16 pictures, and name 2,000 pictures of the test split.",
        "workstation": "Models of two layers, 64 wide, read 32 x 32 pixels of CIFAR-10 as 1,024 grey values, learn in"
        " 35,000 steps of 256 pictures, and name the 10,000 of the test split. Three seeds.",
    },
    sources=(Source(ARCHIVE, CIFAR_10),),
    packages=(READER,),
    tried=(
        "A likely cause: a class depends on the whole picture, of which two layers of a window of 65 see four lines.",
        "Learned positions in place of rotary ones, in bfloat16: a window of 17 has 23.0%, dense attention 21.0%. So"
        " dense attention gains only with rotary positions.",
        "Twice the steps, in bfloat16: a window of 17 has 24.4%, not 23.8%.",
        "FNet with the whole learning rate: 23.6%, and with twice the steps 24.9%, not 22.1%. Dense attention did not"
        " run for longer.",
    ),
    caveats=(
        "Pictures are JPEG files and grey by Pillow's weights; the paper's are not compressed.",
        "A run learns from nine tenths of the pictures, because a folder of files is divided by their content.",
        "A window is of the row of pixels: 65 tokens are two lines of the picture.",
    ),
)
"""The experiment."""
