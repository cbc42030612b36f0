"""BM25: rank several texts by the words of a question.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), section 3.4. With tf the count
of a word in a text, l the words of the text, and avl their mean over the texts, the score of a text is

    sum over the words w of the question, repeated ones repeatedly, of   tf / (tf + k1 (1 - b + b l / avl)) * idf(w)

k1 decides how soon repetitions of a word stop adding to the score: at 0 immediately, and 1.2 to 2 is usual. b is the
penalty of long texts: 0 is none, 1 is full, and 0.5 to 0.8 is usual. idf(w) = ln(1 + (N - n + 1/2) / (n + 1/2)), where
n of the N texts contain w. Because of the 1, a word of all texts counts little, and never against a text. The functions
have no state and no randomness.

It is written here because packages of BM25 index one collection for many questions. Here each document is a collection
that is queried once.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[tuple[str, int]]:
    """The words of a text in lower case, each with the number of its first character."""
    return [(found[0].lower(), found.start()) for found in _WORD.finditer(text)]


def count_words(text: str, begins: ArrayLike, ends: ArrayLike) -> list[Counter[str]]:
    """Count the words of several parts of a text; a word belongs to the parts in which it begins.

    Parts are characters `begins[i]` to `ends[i]`, both in ascending order; they may overlap.
    """
    words = words_of(text)
    places = np.array([place for _, place in words], dtype=np.int64)
    firsts, lasts = np.searchsorted(places, begins), np.searchsorted(places, ends)
    return [Counter(word for word, _ in words[first:last]) for first, last in zip(firsts, lasts, strict=True)]


def bm25(asked: Mapping[str, int], texts: Sequence[Mapping[str, int]], *, k1: float, b: float) -> list[float]:
    """The score of each text for the words of a question; both are word counts. A text with none of the words
    scores 0.
    """
    lengths = [sum(text.values()) for text in texts]
    average = sum(lengths) / len(texts) or 1.0
    scores = [0.0] * len(texts)
    for word in sorted(asked):  # a sum depends on its order, the order of words in a mapping on who made it
        having = sum(word in text for text in texts)
        weight = asked[word] * math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for number, text in enumerate(texts):
            if count := text.get(word, 0):
                scores[number] += weight * count / (count + k1 * (1 - b + b * lengths[number] / average))
    return scores
