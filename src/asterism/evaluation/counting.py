"""Aggregation: which words does a long list have most often?

Hsieh 2024 (RULER, arXiv 2404.06654), section 3, "Aggregation": common words, whose number is fixed while the list
grows, and frequent words, whose numbers follow a Zeta distribution.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.special import zeta

from asterism.evaluation.sample import Sample
from asterism.evaluation.words import codes

COMMON = 10
FREQUENT = 3
_ALPHA = 2.0
_LEAST = 27
"""Words of a coded text in which the fourth of all is there once, and the fifth not at all."""


@dataclass(frozen=True)
class Common:
    """A maker of samples: a numbered list in which ten words stand more often than all others.

    often   how often each of the ten stands in the list
    seldom  how often each of the others does; `words` counts all of them
    """

    often: int
    seldom: int

    def __call__(self, random: np.random.Generator, words: int) -> Sample:
        """A sample with so many entries besides the common ones; the last word may stand there less often."""
        drawn = codes(random)
        common = list(islice(drawn, COMMON))
        others = list(islice(drawn, -(-words // self.seldom)))
        entries = common * self.often + (others * self.seldom)[:words]
        listed = [entries[place] for place in random.permutation(len(entries)).tolist()]
        text = " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))
        return Sample(
            f"Some words of the numbered list below stand there more often than all others. Remember those.\n{text}\n"
            f"The {COMMON} words that stand most often in the list are:",
            tuple(common),
            tuple(listed),
        )


def frequent(random: np.random.Generator, words: int) -> Sample:
    """A sample with so many words more than the fewest: the most frequent one is "...", the answers are the next three.

    The word of rank k is there n k^-2 / zeta(2) times, rounded down. Those behind the fourth are there at least once
    less than the fourth, so that there is one right answer; "..." fills up.
    """
    length = _LEAST + words
    counts: list[int] = []
    for rank in range(2, length):
        count = int(length * rank**-_ALPHA / zeta(_ALPHA))
        count = min(count, counts[FREQUENT - 1] - 1) if rank > FREQUENT + 1 else count
        if not count:
            break
        counts.append(count)
    drawn = list(islice(codes(random), len(counts)))
    coded = [word for word, count in zip(drawn, counts, strict=True) for _ in range(count)]
    text = coded + ["..."] * (length - len(coded))
    mixed = [text[place] for place in random.permutation(length).tolist()]
    return Sample(
        f'Track how often each coded word stands in the text below. Disregard the dots "...".\n{" ".join(mixed)}\n'
        f"The {FREQUENT} words that stand most often in the coded text are:",
        tuple(drawn[:FREQUENT]),
        tuple(word for word in mixed if word != "..."),
    )
