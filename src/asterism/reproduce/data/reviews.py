"""IMDb reviews (Maas 2011), cut to a number of bytes, as JSONL that a run reads.

A file of reviews is JSONL, compressed with xz, with the fields `text` and `label` (pos or neg). Invariant: equal files
and seeds give equal lines.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from asterism.errors import DataError, shown
from asterism.reproduce.experiment import Source

TRAIN, TEST = "imdb-train.jsonl.xz", "imdb-test.jsonl.xz"
SOURCES = (
    Source(
        TRAIN,
        "25,000 IMDb reviews (ai.stanford.edu/~amaas/data/sentiment) as JSONL with `text` and `label`, pos or neg",
    ),
    Source(TEST, "the 25,000 reviews of the test split, written likewise"),
)
LABELS = ("pos", "neg")
_PURPOSE = 2011_1015


def cut_reviews(
    source: Path, count: int, most: int | None, seed: int, words: range | None = None
) -> list[tuple[str, str]]:
    """The first `most` bytes (None: all) of `count` reviews that the seed chooses, each with its label.

    `words` are the numbers of words that a review may have, None for any.

    Raises DataError for a file that is not as the module docstring says or that has too few reviews.
    """
    try:
        with lzma.open(source, "rt", encoding="utf-8-sig") as file:
            every = [_review(json.loads(line)) for line in file if not line.isspace()]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError("reviews-file", f"cannot read {source} as reviews with text and label: {reason}") from error
    found = [one for one in every if words is None or len(one[0].split()) in words]
    if len(found) < count:
        raise DataError("too-few-reviews", f"{source} must have at least {count:,} reviews, got {len(found):,}")
    order = np.random.Generator(np.random.Philox(key=[seed, _PURPOSE])).permutation(len(found))[:count].tolist()
    return [(_cut(text, most), label) for text, label in map(found.__getitem__, order)]


def _review(entry: Any) -> tuple[str, str]:
    """Text and label. Raises ValueError and others for what is none."""
    text, label = entry["text"], entry["label"]
    if not isinstance(text, str) or label not in LABELS:
        raise ValueError(f"a review must have a text, got {shown(text)}, and the label pos or neg, got {shown(label)}")
    text.encode()  # which half of a surrogate pair has no bytes for
    return text, label


def write_reviews(
    path: Path, source: Path, count: int, most: int | None, seed: int, words: range | None = None
) -> None:
    """Write reviews as JSONL with the fields `text` and `label`. Raises DataError, as `cut_reviews` does."""
    with open(path, "w", encoding="utf-8") as file:
        for text, label in cut_reviews(source, count, most, seed, words):
            file.write(json.dumps({"text": text, "label": label}) + "\n")


def _cut(text: str, most: int | None) -> str:
    """At most so many bytes; a character that the cut divides is left out."""
    return text if most is None else text.encode()[:most].decode(errors="ignore")
