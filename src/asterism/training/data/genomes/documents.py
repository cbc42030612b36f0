"""Documents of a genome, as BigBird reads them (Zaheer 2020, appendix F.1).

A pass over a stretch begins at a random base among its first 5,001 (or its first tenth, where that is less) and cuts
what follows into documents of 50 to 100 sentences of 500 to 1,000 bases each, until the stretch ends; what is left at
the end is a shorter document, perhaps with a shorter last sentence. Training takes ten passes, so that the same bases
stand at other places of other sentences. What is scored is passed over once, from its first base, so that every base is
scored and none twice.

A stretch is of one split, as long as its blocks lie next to each other. A document has a sentence in each line.
Invariant: documents are a function of the stretches and the seed, and no letter of a document lies outside them.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.letters import reverse_complement
from asterism.training.data.genomes.sequences import Sequences

PASSES = 10
LATEST_START = 5_000
SENTENCES = (50, 100)
BASES = (500, 1_000)


def joined(regions: Iterable[Interval]) -> list[Interval]:
    """The same places: a region that begins at the end of the one before is part of it."""
    found: list[Interval] = []
    for one in regions:
        if found and (found[-1].sequence, found[-1].end) == (one.sequence, one.start):
            one = Interval(one.sequence, found.pop().start, one.end)
        found.append(one)
    return found


def training_documents(
    letters: Sequences, stretches: Sequence[Interval], seed: int, *, passes: int = PASSES, both_strands: bool = False
) -> Iterator[str]:
    """The documents of so many passes, one pass after the other; with `both_strands` every second one, as chance has
    it, is read from the other strand."""
    for number in range(passes):
        for place, stretch in enumerate(stretches):
            random = _generator(seed, number + 1, place)
            latest = min(LATEST_START, len(stretch) // 10)
            first = stretch.start + int(random.integers(latest, endpoint=True))
            for bounds in _cut(first, stretch.end, random):
                yield _text(letters, stretch.sequence, bounds, turned=both_strands and random.random() < 0.5)


def scored_documents(letters: Sequences, stretches: Sequence[Interval], seed: int) -> Iterator[str]:
    """Documents that hold every base of the stretches once."""
    for place, stretch in enumerate(stretches):
        for bounds in _cut(stretch.start, stretch.end, _generator(seed, 0, place)):
            yield _text(letters, stretch.sequence, bounds, turned=False)


def _generator(seed: int, number: int, place: int) -> np.random.Generator:
    """That of one pass over one stretch."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, number, place))))


def _cut(first: int, stop: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Where the sentences of each document begin, and the last one ends: int64 [sentences + 1]."""
    while first < stop:
        lengths = random.integers(*BASES, int(random.integers(*SENTENCES, endpoint=True)), endpoint=True)
        bounds = np.minimum(first + np.concatenate([[0], lengths.cumsum()]), stop)
        yield np.unique(bounds)
        first = int(bounds[-1])


def _text(letters: Sequences, name: str, bounds: np.ndarray, *, turned: bool) -> str:
    first, last = int(bounds[0]), int(bounds[-1])
    read, cuts = letters.read(name, first, last), bounds - first
    if turned:
        read, cuts = reverse_complement(read), (last - bounds)[::-1]
    text = read.tobytes().decode("ascii")
    return "\n".join(text[begin:end] for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
