"""What can be said of a document without a model: sentences of it, chosen in one way or another.

Each choice takes the sentences of a document, in its order, and gives the numbers of those that it keeps. How many are
kept is to be chosen on documents that are not scored; `oracle` alone reads the summary that is wanted.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from asterism.training.readers.bm25 import bm25, words_of

MOST_SENTENCES = 10
"""That a summary may have which is chosen of the text."""


def lead(sentences: Sequence[str], count: int) -> list[int]:
    """The first."""
    return list(range(min(count, len(sentences))))


def centroid(sentences: Sequence[str], count: int) -> list[int]:
    """Those that BM25 ranks best for all of them together."""
    return ranked(sentences, " ".join(sentences), count)


def ranked(sentences: Sequence[str], question: str, count: int) -> list[int]:
    """Those that BM25 ranks best for a question; of equals the first."""
    if not sentences:
        return []
    words = [Counter(word for word, _ in words_of(sentence)) for sentence in sentences]
    scores = bm25(Counter(word for word, _ in words_of(question)), words, k1=1.2, b=0.75)
    return sorted(sorted(range(len(sentences)), key=lambda one: (-scores[one], one))[:count])


def oracle(sentences: Sequence[str], wanted: str) -> list[int]:
    """Taken one by one, each time the one that raises ROUGE-1 + ROUGE-2 (F1) most.

    An upper bound, nearly, of what can be said in sentences of the document: it reads the summary.
    """
    there = [_grams(wanted, size) for size in (1, 2)]
    grams = [[_grams(sentence, size) for size in (1, 2)] for sentence in sentences]
    have: list[Counter[tuple[str, ...]]] = [Counter(), Counter()]
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < MOST_SENTENCES:
        scored = [
            (sum(_f1(mine + own, want) for mine, own, want in zip(have, grams[number], there, strict=True)), -number)
            for number in range(len(sentences))
            if number not in chosen
        ]
        score, number = max(scored, default=(0.0, 0))
        if score <= best:
            break
        best = score
        chosen.append(-number)
        have = [mine + own for mine, own in zip(have, grams[-number], strict=True)]
    return sorted(chosen)


def best_count(score: Callable[[int], float]) -> int:
    """How many sentences score best, the fewest of equals."""
    return max(range(1, MOST_SENTENCES + 1), key=score)


def _f1(said: Mapping[tuple[str, ...], int], wanted: Mapping[tuple[str, ...], int]) -> float:
    both = sum(min(count, said.get(gram, 0)) for gram, count in wanted.items())
    return 2 * both / (sum(said.values()) + sum(wanted.values())) if both else 0.0


def _grams(text: str, size: int) -> Counter[tuple[str, ...]]:
    """Sequences of so many words, as rouge-score sees and stems them."""
    words = [_stem(word) for word in re.findall(r"[a-z0-9]+", text.lower())]
    return Counter(zip(*(words[at:] for at in range(size)), strict=False))


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer  # comes with rouge-score

    return PorterStemmer()


@cache
def _stem(word: str) -> str:
    stem: str = _stemmer().stem(word) if len(word) > 3 else word
    return stem
