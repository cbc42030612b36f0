"""Divide the letters of a genome into splits: blocks by a hash of their bases, or named regions.

Every sequence is cut into blocks of `GRID` letters, each wholly in one split, so that copies of a block are not on both
sides. A region that is named belongs to its split; what is missing of the splits is taken out of the rest by hash, as
files of a folder are (`folders.py`). Invariant: no letter is in two splits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asterism.errors import DataError, shown
from asterism.training.data.corpora.folders import split_of
from asterism.training.data.corpora.splits import SPLITS, Split
from asterism.training.data.genomes.index import GRID
from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.letters import UNKNOWN
from asterism.training.data.genomes.sequences import Sequences

_REGION = re.compile(r"(.+):([0-9][0-9,]*)-([0-9][0-9,]*)")


def parse_regions(text: str, sequences: Sequences) -> list[Interval]:
    """The regions that a text names, separated by spaces: "chr8 chr9" or "chr7:30,508,751-35,296,850".

    The first letter has number 1 and the last one is within, as samtools counts. Raises DataError for a sequence that
    is not there, and for places that it does not have.
    """
    found = []
    for word in text.split():
        parts = None if word in sequences else _REGION.fullmatch(word)
        if parts is None:
            found.append(Interval(word, 0, sequences.length(word)))
            continue
        name, first, last = parts[1], int(parts[2].replace(",", "")[:18]), int(parts[3].replace(",", "")[:18])
        length = sequences.length(name)
        if not 1 <= first <= last <= length:
            raise DataError("region-outside", f"data: the region {shown(word)} is not within {name}:1-{length:,}")
        found.append(Interval(name, first - 1, last))
    return found


@dataclass(frozen=True)
class Parts:
    """Pieces of one split, none of which crosses a border of the grid.

    owners  int32 [pieces], the number of the sequence of each
    starts  int64 [pieces], where each begins in its sequence
    sizes   int64 [pieces]
    """

    owners: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


def divide(
    sequences: Sequences, named: Mapping[Split, Sequence[Interval]], homes: Mapping[str, Split], most_unknown: float
) -> tuple[dict[Split, Parts], int]:
    """The pieces of each split, and how many letters were left out with blocks of which more than `most_unknown` is N.

    named   the regions of validation and test
    homes   the split of a whole sequence, where folders say so

    Raises DataError for regions that overlap.
    """
    regions = _by_sequence(named)
    missing = [split for split in SPLITS[1:] if not named.get(split) and split not in homes.values()]
    rows: dict[Split, list[tuple[int, int, int]]] = {split: [] for split in SPLITS}
    left_out = owner = 0
    for file in sequences.files:
        first_block = 0
        for name, length in file.lengths.items():
            count = -(-length // GRID)
            known = slice(first_block, first_block + count)
            blocks = zip(file.contents.buckets[known], file.contents.unknown[known], strict=True)
            cuts = regions.get(name, [])
            for number, (bucket, unknown) in enumerate(blocks):
                start, stop = number * GRID, min((number + 1) * GRID, length)
                by_hash = homes.get(name, "train")
                if by_hash == "train":
                    by_hash = split_of(bucket.to_bytes(8, "big"), missing)
                for split, begin, end in _cut(start, stop, cuts, by_hash):
                    if end - begin < stop - start:  # what was counted is of the whole block
                        unknown = int((file.read(name, begin, end) == UNKNOWN).sum())
                    if unknown > most_unknown * (end - begin):
                        left_out += end - begin
                    else:
                        rows[split].append((owner, begin, end - begin))
            first_block += count
            owner += 1
    return {split: _parts(rows[split]) for split in SPLITS}, left_out


def _by_sequence(named: Mapping[Split, Sequence[Interval]]) -> dict[str, list[tuple[int, int, Split]]]:
    found: dict[str, list[tuple[int, int, Split]]] = {}
    for split, regions in named.items():
        for region in regions:
            found.setdefault(region.sequence, []).append((region.start, region.end, split))
    for name, stretches in found.items():
        stretches.sort()
        for (_, stop, _), (start, _, _) in zip(stretches, stretches[1:], strict=False):
            if start < stop:
                raise DataError("regions-overlap", f"data: two of the named regions overlap at {name}:{start + 1:,}")
    return found


def _cut(
    start: int, stop: int, cuts: Iterable[tuple[int, int, Split]], otherwise: Split
) -> list[tuple[Split, int, int]]:
    """The stretches of a block, each with its split, in order."""
    found: list[tuple[Split, int, int]] = []
    for first, last, split in cuts:
        begin, end = max(first, start), min(last, stop)
        if begin < end:
            if start < begin:
                found.append((otherwise, start, begin))
            found.append((split, begin, end))
            start = end
    return [*found, (otherwise, start, stop)] if start < stop else found


def _parts(rows: Sequence[tuple[int, int, int]]) -> Parts:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Parts(table[:, 0].astype(np.int32), table[:, 1], table[:, 2])
