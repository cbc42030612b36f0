"""IMDb reviews (Maas 2011), cut to a number of bytes, as JSONL that a run reads.

A file of reviews is JSONL, compressed with xz, with the fields `text` and `label` (pos or neg). Invariant: equal files
and seeds give equal lines.
"""

import json
import lzma
from pathlib import Path

import numpy as np

from asterism.errors import DataError

TRAIN, TEST = "imdb-train.jsonl.xz", "imdb-test.jsonl.xz"
_PURPOSE = 2011_1015


def cut_reviews(source: Path, count: int, most: int, seed: int) -> list[tuple[str, str]]:
    """The first `most` bytes of `count` reviews that the seed chooses, each with its label.

    Raises DataError for a file that is not as the module docstring says or that has too few reviews.
    """
    try:
        with lzma.open(source, "rt", encoding="utf-8") as file:
            found = [(str(entry["text"]), str(entry["label"])) for entry in map(json.loads, file)]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise DataError("reviews-file", f"cannot read {source} as reviews with text and label: {error!r}") from error
    if len(found) < count:
        raise DataError("too-few-reviews", f"{source} must have at least {count:,} reviews, got {len(found):,}")
    order = np.random.Generator(np.random.Philox(key=[seed, _PURPOSE])).permutation(len(found))[:count].tolist()
    return [(_cut(text, most), label) for text, label in map(found.__getitem__, order)]


def write_reviews(path: Path, source: Path, count: int, most: int, seed: int) -> None:
    """Write reviews as JSONL with the fields `text` and `label`. Raises DataError, as `cut_reviews` does."""
    with open(path, "w", encoding="utf-8") as file:
        for text, label in cut_reviews(source, count, most, seed):
            file.write(json.dumps({"text": text, "label": label}) + "\n")


def _cut(text: str, most: int) -> str:
    """At most so many bytes; a character that the cut divides is left out."""
    return text.encode()[:most].decode(errors="ignore")
