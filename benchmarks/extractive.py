"""Sentences of a document, chosen without a model.

Each choice takes the sentences of a document, in its order, and gives the numbers of those that it keeps. How many are
kept is to be chosen on documents that are not scored; `oracle` alone reads the summary that is wanted.
"""

from collections import Counter
from collections.abc import Sequence

from asterism.reproduce.data.rfcs import best_count, lead, oracle
from asterism.training.readers.bm25 import bm25, words_of

__all__ = ["best_count", "centroid", "lead", "oracle", "ranked"]


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
