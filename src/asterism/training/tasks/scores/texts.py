"""Scores of generated texts: ROUGE of summaries, BLEU and chrF of translations, exact match and token accuracy.

ROUGE is computed by `rouge-score`, BLEU and chrF by `sacrebleu`, the packages whose figures are compared in papers;
neither fetches anything. All scores are from 0 to 1, so a BLEU of 27.3 is 0.273 here.
"""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def exact_match(predicted: Sequence[str], there: Sequence[str]) -> float:
    """The share of texts that equal the target, except for white space."""
    return fmean(one.split() == other.split() for one, other in zip(predicted, there, strict=True))


def token_accuracy(predicted: Sequence[str], there: Sequence[str]) -> float:
    """The share of tokens, separated by white space, that are right at their position; tokens beyond the target are
    wrong.

    Counted over all texts together. Each has as many positions as the longer of text and target has tokens.
    """
    right = places = 0
    for one, other in zip(predicted, there, strict=True):
        tokens, wanted = one.split(), other.split()
        right += sum(token == want for token, want in zip(tokens, wanted, strict=False))
        places += max(len(tokens), len(wanted))
    return right / places if places else 1.0


def exactness(predicted: Sequence[str], there: Sequence[str]) -> dict[str, float]:
    """`exact_match` and `token_accuracy`."""
    return {"exact_match": exact_match(predicted, there), "token_accuracy": token_accuracy(predicted, there)}


def rouge(predicted: Sequence[str], there: Sequence[str]) -> dict[str, float]:
    """The means over texts of the F1 of `ROUGE` (Lin 2004): words stemmed as in the figures of papers.

    rougeLsum compares sentence by sentence. Each line is a sentence; a text of one line is split after ".", "!" and
    "?". Words consist of a-z and 0-9; other letters are ignored.
    """
    from rouge_score.rouge_scorer import RougeScorer  # an extra

    scorer: Any = RougeScorer(list(ROUGE), use_stemmer=True)
    each = [scorer.score(sentences(other), sentences(one)) for one, other in zip(predicted, there, strict=True)]
    return {name: fmean(scores[name].fmeasure for scores in each) for name in ROUGE}


def sentences(text: str) -> str:
    """The sentences of a text, in a line each."""
    text = text.strip()
    return text if "\n" in text else _SENTENCE_END.sub("\n", text)


def bleu_and_chrf(predicted: Sequence[str], there: Sequence[str]) -> dict[str, float]:
    """`bleu` (Papineni 2002) and `chrf` (Popović 2015, chrF2) of all texts together, by the defaults of `sacrebleu`.

    For BLEU these are: words split as by mteval-v13a, case-sensitive, with counts of 0 smoothed exponentially.
    """
    import sacrebleu  # an extra

    said, wanted = ([" ".join(text.split()) for text in texts] for texts in (predicted, there))
    return {
        "bleu": sacrebleu.corpus_bleu(said, [wanted]).score / 100,
        "chrf": sacrebleu.corpus_chrf(said, [wanted]).score / 100,
    }
