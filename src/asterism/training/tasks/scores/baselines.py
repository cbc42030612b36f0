"""Baselines without a model: always the most frequent labels or answer; of labels also a regression on counted words or
stretches of bases, and of written answers the answer to the nearest training prompt.

They are reported next to a fine-tuned model's scores, on the same examples. Words and pairs of words (of bases: all
stretches of up to six) are weighted by TF-IDF, and labels regressed on them, as scikit-learn's
`TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)` and `LogisticRegression` do with their own settings.
It is written here to do without that package, which tests compare it with.

Limits, so that they take seconds: examples of `MOST_LETTERS` in all to learn from, evenly spread, of each the first
`LONGEST`; the `MOST_TERMS` terms that are in most documents, fewer for many labels (`MOST_WEIGHTS`). Where more letters
would have to be scored, only the frequencies are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array, hstack
from scipy.special import expit, logsumexp

MOST_LETTERS = 2**23
LONGEST = 20_000
MOST_TERMS = 2**15
MOST_WEIGHTS = 2**21
AT_ONCE = 64
"""Prompts that are compared with all training prompts at once."""
LONGEST_STRETCH = 6
"""Bases of the longest stretch that is counted."""


class TextTerms:
    """The terms of some texts, those in most texts first, and other texts as vectors of them by TF-IDF."""

    def __init__(self, counts: Sequence[Counter[str]], most: int) -> None:
        """`counts` are the terms of each text; at most `most` of those that are in several texts are kept."""
        known = Counter(term for one in counts for term in one)
        frequent = sorted((term for term in known if known[term] > 1), key=lambda term: (-known[term], term))
        self.columns = {term: number for number, term in enumerate(frequent[:most])}
        in_texts = np.array([known[term] for term in self.columns], dtype=np.float64)
        self.weights = np.log((1 + len(counts)) / (1 + in_texts)) + 1

    def matrix(self, counts: Sequence[Counter[str]]) -> csr_array:
        """TF-IDF of texts by their counted terms, rows of length 1: float64 [texts, terms]."""
        rows, columns, values = [], [], []
        for number, one in enumerate(counts):
            own = [self.columns[term] for term in one if term in self.columns]
            found = 1 + np.log([count for term, count in one.items() if term in self.columns])
            weighted = found * self.weights[own]
            rows += [number] * len(own)
            columns += own
            values += [*(weighted / (np.linalg.norm(weighted) or 1.0))]
        return csr_array((np.array(values, dtype=np.float64), (rows, columns)), shape=(len(counts), len(self.columns)))


class CountedTerms:
    """Labels regressed on the terms of documents: texts, or sequences of bases where `of_bases`.

    With `is_one_each` exactly one label belongs to each document (softmax), else any number (sigmoid).
    """

    def __init__(self, texts: Sequence[str], labels: np.ndarray, *, of_bases: bool, is_one_each: bool) -> None:
        """`labels` are float64 [texts, labels] of 0 and 1."""
        self.pieces = _pieces_of_bases if of_bases else _words
        self.is_one_each = is_one_each
        counts = self._counts(texts)
        self.terms = TextTerms(counts, min(MOST_TERMS, MOST_WEIGHTS // labels.shape[1]))
        self.weights = self._fitted(self._matrix(counts), labels)

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Of each label, float64 [texts, labels]."""
        return self._said(self._matrix(self._counts(texts)) @ self.weights)

    def _counts(self, texts: Sequence[str]) -> list[Counter[str]]:
        return [Counter(self.pieces(text[:LONGEST])) for text in texts]

    def _matrix(self, counts: Sequence[Counter[str]]) -> csr_array:
        """TF-IDF, and a column of ones: float64 [texts, terms + 1]."""
        return hstack([self.terms.matrix(counts), np.ones((len(counts), 1))], format="csr")

    def _said(self, logits: np.ndarray) -> np.ndarray:
        return np.exp(logits - logsumexp(logits, axis=1, keepdims=True)) if self.is_one_each else expit(logits)

    def _fitted(self, found: csr_array, labels: np.ndarray) -> np.ndarray:
        """The weights that are likeliest, each with a normal prior of variance 1 but for the constant."""
        shape = (found.shape[1], labels.shape[1])
        free = np.ones((shape[0], 1))
        free[-1] = 0

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weights = flat.reshape(shape)
            logits = found @ weights
            if self.is_one_each:
                nats = float((logsumexp(logits, axis=1) - (logits * labels).sum(1)).sum())
            else:
                nats = float((np.logaddexp(0, logits) - logits * labels).sum())
            slope = found.T @ (self._said(logits) - labels) + free * weights
            return nats + float((free * weights**2).sum()) / 2, slope.ravel()

        return np.asarray(minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B").x).reshape(shape)


def baselines(
    training: Sequence[tuple[str, np.ndarray]],
    scored: Sequence[str],
    score: Callable[[np.ndarray], dict[str, float]],
    *,
    of_bases: bool = False,
    is_one_each: bool = False,
) -> dict[str, dict[str, float]]:
    """The scores of both, by name: of texts and their labels, float64 [labels], to those of other texts.

    `score` takes probabilities, float64 [scored, labels].
    """
    labels = np.stack([one for _, one in training])
    found = {"most frequent": score(np.tile(labels.mean(0), (len(scored), 1)))}
    sizes = [sum(min(LONGEST, len(text)) for text in texts) for texts in ((text for text, _ in training), scored)]
    every = max(1, -(-sizes[0] // MOST_LETTERS))
    if not all(sizes) or sizes[1] > MOST_LETTERS or len(training) // every < 2:
        return found
    texts = [text for text, _ in training[::every]]
    with_terms = CountedTerms(texts, labels[::every], of_bases=of_bases, is_one_each=is_one_each)
    return {**found, "counted bases" if of_bases else "counted words": score(with_terms.probabilities(scored))}


def answer_baselines(
    training: Sequence[tuple[str, str]], scored: Sequence[str], score: Callable[[list[str]], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """The scores of answers without a model, by name.

    They are the most frequent training answer, and the answer to the training prompt whose words are most like those of
    the prompt (the cosine of TF-IDF; of equal ones the first).

    `training` are prompts with answers, and `score` takes an answer to each of the prompts `scored`. Where prompts are
    very long or share no words, only the most frequent answer is scored.
    """
    ((answer, _),) = Counter(answer for _, answer in training).most_common(1)
    found = {"most frequent": score([answer] * len(scored))}
    sizes = [sum(min(LONGEST, len(text)) for text in texts) for texts in ((text for text, _ in training), scored)]
    if max(sizes) > MOST_LETTERS:
        return found
    counts = [Counter(_words(text[:LONGEST])) for text, _ in training]
    terms = TextTerms(counts, MOST_TERMS)
    if not terms.columns:
        return found
    known, asked = terms.matrix(counts), terms.matrix([Counter(_words(text[:LONGEST])) for text in scored])
    nearest = [
        number
        for at in range(0, len(scored), AT_ONCE)
        for number in (asked[at : at + AT_ONCE] @ known.T).toarray().argmax(1).tolist()
    ]
    return {**found, "nearest prompt": score([training[number][1] for number in nearest])}


def _words(text: str) -> Iterator[str]:
    words = re.findall(r"\w+", text.lower())
    yield from words
    yield from map(" ".join, pairwise(words))


def _pieces_of_bases(text: str) -> Iterable[str]:
    letters = text.upper()
    for size in range(1, LONGEST_STRETCH + 1):
        for at in range(len(letters) - size + 1):
            yield letters[at : at + size]
