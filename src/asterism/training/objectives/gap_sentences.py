"""The gap sentences of Pegasus (Zhang 2020, section 3.1): the sentences that say most are left out, and wanted.

    text     Pegasus is mythical. It is pure white. It names the model.
    input    Pegasus is mythical. <mask> It names the model.
    target   It is pure white.

A sentence says as much as ROUGE-1 (F1) finds in common between it and the rest of the text, each judged by itself,
words counted as often as they come ("Ind-Orig", the choice of the paper). 3 of 10 sentences are left out, one at least;
the target has them in the order of the text.
"""

import re
from collections import Counter
from collections.abc import Sequence

GAP_SHARE = 0.3

_WORDS = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text: they end behind ".", "!" or "?" and white space, and with a line. None is empty."""
    return [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence.strip()]


def gaps(sentences: Sequence[str]) -> list[int]:
    """The numbers of the sentences to leave out, ascending. There are 2 sentences or more; of equals the first goes."""
    scores = importance(sentences)
    count = max(1, round(GAP_SHARE * len(sentences)))
    return sorted(sorted(range(len(sentences)), key=lambda number: -scores[number])[:count])


def importance(sentences: Sequence[str]) -> list[float]:
    """ROUGE-1 (F1) of each sentence and all others together, from 0 to 1."""
    counts = [Counter(_WORDS.findall(sentence.lower())) for sentence in sentences]
    whole: Counter[str] = sum(counts, Counter())
    words = whole.total()
    # Twice what both have, by the words of both: of a sentence and the rest, those of the text.
    common = (sum(min(times, whole[word] - times) for word, times in own.items()) for own in counts)
    return [2 * shared / words if words else 0.0 for shared in common]
