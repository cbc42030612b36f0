"""Scores of labels: accuracy and F1 of classes, and F1 of labelled spans.

Plain functions of plain values, so that each can be checked by hand. A precision, recall or F1 with denominator 0 is 0,
except that it is 1 if nothing was predicted and nothing was to be found. The functions are written here because of that
rule, and because they are few lines, while scikit-learn and seqeval are large packages; tests compare with both.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Counts:
    """The numbers of predicted items, of true items, and of items that are both."""

    predicted: int
    there: int
    right: int

    @property
    def precision(self) -> float:
        """The share of predicted items that are right."""
        return self.right / self.predicted if self.predicted else float(not self.there)

    @property
    def recall(self) -> float:
        """The share of true items that were predicted."""
        return self.right / self.there if self.there else float(not self.predicted)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.predicted + self.there
        return 2 * self.right / both if both else 1.0


def count(predicted: Sequence[Iterable[Hashable]], there: Sequence[Iterable[Hashable]]) -> Counts:
    """Counts over documents, each a collection of distinct items."""
    pairs = [(set(one), set(other)) for one, other in zip(predicted, there, strict=True)]
    return Counts(
        predicted=sum(len(one) for one, _ in pairs),
        there=sum(len(other) for _, other in pairs),
        right=sum(len(one & other) for one, other in pairs),
    )


def accuracy(predicted: Sequence[Hashable], there: Sequence[Hashable]) -> float:
    """The share of predictions that are right."""
    return fmean(one == other for one, other in zip(predicted, there, strict=True))


def micro_f1(predicted: Sequence[Iterable[Hashable]], there: Sequence[Iterable[Hashable]]) -> float:
    """F1 of all labels of all documents counted together."""
    return count(predicted, there).f1


def macro_f1(predicted: Sequence[Iterable[Hashable]], there: Sequence[Iterable[Hashable]]) -> float:
    """The mean of the F1 of each label, over the labels that occur among the predictions or in the documents."""
    pairs = [(set(one), set(other)) for one, other in zip(predicted, there, strict=True)]
    labels: set[Hashable] = set().union(*(one | other for one, other in pairs))
    each = [count([one & {label} for one, _ in pairs], [one & {label} for _, one in pairs]).f1 for label in labels]
    return fmean(each) if each else 1.0


# --- labelled spans ---------------------------------------------------------------------------------------------------

_BIO = re.compile(r"O|[BI]-.+")


def are_bio(tags: Iterable[str]) -> bool:
    """Whether all tags are "O", "B-..." or "I-...", so that they mark spans."""
    return all(_BIO.fullmatch(tag) for tag in tags)


def bio_spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """The spans (kind, first token, token after the last) that BIO tags mark, as conlleval reads them.

    A span begins with B, and also with an I that follows no token of its kind.
    """
    spans, kind, first = set(), "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if prefix != "I" or name != kind:
            if kind:
                spans.add((kind, first, place))
            kind, first = name, place
    return spans
