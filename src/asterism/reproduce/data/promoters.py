"""Human promoters in three splits, each promoter with a negative that is made of it, as the task `promoter` makes them.

A file of promoters is text with one promoter of 300 bases a line. Invariant: equal files and seeds give equal splits,
and a promoter and its negative are in the same one.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from asterism.errors import DataError
from asterism.reproduce.experiment import Source
from asterism.training.data.corpora.splits import SPLITS, Split
from asterism.training.data.records.sequences import bases

SOURCE = Source(
    "promoters-human-tata.txt",
    "2,929 human promoters with a TATA box (EPDnew; hs_pos_TATA.txt of github.com/egochao/DeePromoter) as text, 300"
    " bases a line",
)
BASES, FEWEST = 300, 10
"""Of each promoter; and promoters, so that no split is empty."""
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


class Labelled(NamedTuple):
    """Sequences of bases of one length, and int64 [sequences], 1 for what is a promoter and 0 for what is not."""

    letters: list[str]
    labels: np.ndarray


def promoters(source: Path) -> list[str]:
    """The promoters of a file, each once, in the order of the alphabet.

    Raises DataError for a file that is not as the module docstring says or that has too few promoters.
    """
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError("promoters-file", f"cannot read {source} as lines of bases: {reason}") from error
    found = set()
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            if len(text) != BASES:
                raise DataError(
                    "promoter-length", f"{source}: line {number:,} must have {BASES} bases, got {len(text):,}"
                )
            found.add(bases(text, f"{source}: line {number:,}"))
    if len(found) < FEWEST:
        raise DataError("too-few-promoters", f"{source} must have {FEWEST} promoters or more, got {len(found):,}")
    return sorted(found)


def split_of(source: Path, seed: int, split: Split) -> list[str]:
    """The promoters of a split, which the seed chooses, in the order of the alphabet. Raises as `promoters` does."""
    every = promoters(source)
    ends = (np.cumsum(list(SHARES.values())) * len(every)).round().astype(int)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(every))
    return [every[one] for one in sorted(np.split(order, ends[:-1])[SPLITS.index(split)])]


def write_split(path: Path, source: Path, seed: int, split: Split) -> None:
    """Write the promoters of a split, a line each. Raises DataError, as `promoters` does."""
    path.write_text("".join(f"{one}\n" for one in split_of(source, seed, split)), encoding="utf-8")


def labelled(source: Path, seed: int, split: Split) -> Labelled:
    """The promoters of a split, behind each its negative, which the seed draws. Raises as `promoters` does."""
    from asterism.training.tasks.kinds.promoter import negative

    letters = [text for one in split_of(source, seed, split) for text in (one, negative(one, seed))]
    return Labelled(letters, np.tile([1, 0], len(letters) // 2))
