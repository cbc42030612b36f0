"""Scores of answers to questions: exact match and F1 of words, as in the evaluation of SQuAD (Rajpurkar 2016, 2018).

Written here because that evaluation is a script and no package. Plain functions of plain values.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from asterism.training.tasks.scores.labels import Counts

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalise_answer(text: str) -> str:
    """As the evaluation of SQuAD: lower case, without ASCII punctuation and the articles, single spaces."""
    without_punctuation = "".join(glyph for glyph in text.lower() if glyph not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(predicted: str, golds: Sequence[str]) -> float:
    """1 if the prediction is one of the gold answers, both normalised, else 0. No gold answer means the answer ""."""
    return max(float(normalise_answer(predicted) == normalise_answer(gold)) for gold in _golds(golds))


def answer_f1(predicted: str, golds: Sequence[str]) -> float:
    """F1 of the words, counted with repetitions, against the gold answer that suits best; "" matches only ""."""
    return max(_word_f1(normalise_answer(predicted).split(), normalise_answer(gold).split()) for gold in _golds(golds))


def _golds(golds: Sequence[str]) -> Sequence[str]:
    """The gold answers that are not empty when normalised; [""] if none is left, as in the evaluation of SQuAD 2.0."""
    return [gold for gold in golds if normalise_answer(gold)] or [""]


def _word_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    right = (Counter(predicted) & Counter(gold)).total()
    return Counts(len(predicted), len(gold), right).f1
