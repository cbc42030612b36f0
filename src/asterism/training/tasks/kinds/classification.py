"""Classification of documents: one label each, or any number of labels.

Files: JSONL or CSV with the fields `text` and either `label` (one per document) or `labels` (JSONL: a list; CSV: names
with ";" between them; may be empty). A label is text or a whole number, which stands for its digits. The labels that
exist are those of the training data.

In training every window carries the labels of its document. All windows count equally, also short ones. Their
probabilities are pooled: the mean for each label, or the maximum (normalised to sum to 1 if a document has one label).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError, nearest
from asterism.training.data.records.formats import split_list
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.readers.text import parse_reader
from asterism.training.tasks.answers import Logits, RankedAnswers, shown
from asterism.training.tasks.encoding import Encoded, encode
from asterism.training.tasks.examples import Examples
from asterism.training.tasks.rows import EncodedRows, Feature, RankedRows, Studied
from asterism.training.tasks.scores.baselines import baselines
from asterism.training.tasks.scores.labels import accuracy, macro_f1, micro_f1
from asterism.training.tasks.task import Kind


@dataclass(frozen=True)
class LabelledDocument:
    """A document and its labels: exactly one unless `several` may apply, or None if unknown.

    `text` is the document, or the path of the file that holds it as values.
    """

    record: Record
    text: str
    labels: tuple[str, ...] | None
    several: bool


@dataclass(frozen=True, kw_only=True)
class DocumentExamples(Examples[LabelledDocument]):
    """Documents with labels. If `several` may apply to a document, the right answer is a list."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv")

    several: bool

    @classmethod
    def like(cls, record: Record) -> Self:
        """Several labels may apply if the record has `labels`."""
        return cls(several="labels" in record.fields)

    @classmethod
    def decided(
        cls, training: Sequence[LabelledDocument], known: Sequence[str], choices: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The labels, in the order of `known` if these are the same labels, else sorted; and whether several may apply.

        Raises DataError if they leave nothing to decide.
        """
        labels = in_order({label for document in training for label in document.labels or ()}, known)
        several = training[0].several
        if len(labels) < 2 - several:
            seen = ", ".join(labels) or "none"
            raise DataError(
                "too-few-labels", f"data: the training documents must have at least {2 - several} labels, got {seen}"
            )
        return {"labels": labels, "several": several}

    def example(self, record: Record, *, labelled: bool) -> LabelledDocument:
        """`text`, and if `labelled` its `label` or `labels`."""
        text = record.text("text")
        return LabelledDocument(record, text, labels_in(record, self.several) if labelled else None, self.several)

    def gold(self, example: LabelledDocument) -> Any:
        """A label, or a list of them."""
        labels = list(example.labels or ())
        return labels if self.several else labels[0]

    def classes(self, example: LabelledDocument) -> Sequence[str]:
        return example.labels or ()


@dataclass(frozen=True, kw_only=True)
class LabelledRows(EncodedRows[LabelledDocument]):
    """Rows that carry the labels of their document.

    labels   the labels that exist, in the order of the model's outputs
    several  whether a document may have any number of them; else it has one
    """

    labels: tuple[str, ...]
    several: bool

    def feature(self, example: LabelledDocument, encoded: Encoded, row: Row) -> Feature:
        """The target is a list with 0 or 1 for each label, or the index of the label."""
        return Feature(encoded.row(row), self._target(example), row=row)

    def _target(self, document: LabelledDocument) -> list[float] | int | None:
        if document.labels is None:
            return None
        for label in document.labels:
            refuse_unknown_label(document.record, "labels" if self.several else "label", label, self.labels)
        mine = [self.labels.index(label) for label in document.labels]
        return [float(one in mine) for one in range(len(self.labels))] if self.several else mine[0]

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B], or float32 [B, labels] when several may apply."""
        return {"labels": torch.tensor([feature.target for feature in features])}


@dataclass(frozen=True, kw_only=True)
class DocumentRows(LabelledRows, RankedRows[LabelledDocument]):
    """Rows of the texts of documents."""

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut", "windows", "selected", "iterated")

    def encoded(self, examples: Sequence[LabelledDocument], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The text of each."""
        return encode([one.text for one in examples], tokenizer, most=self.most)

    def wanted(self, studied: Sequence[Studied]) -> list[Sequence[float] | None]:
        """The preferred windows: the `k` whose words speak most for the labels of their document.

        The weight of a word for a label is its log odds, in nats, between the other documents with the label and those
        without it (naive Bayes, one of each word added).
        """
        totals = [sum(one.words, Counter[str]()) for one in studied]
        every, having = Counter[str](), {label: Counter[str]() for label in self.labels}
        for one, total in zip(studied, totals, strict=True):
            every.update(total)
            for label in one.example.labels or ():
                having[label].update(total)
        rest = {label: every - there for label, there in having.items()}
        found: list[Sequence[float] | None] = []
        for one, own in zip(studied, totals, strict=True):
            odds: dict[str, float] = dict.fromkeys(own, 0.0)
            for label in one.example.labels or ():
                _add_odds(odds, own, having[label], rest[label], len(every))
            said = [sum(count * odds[word] for word, count in words.items()) for words in one.words]
            best = sorted(range(len(said)), key=lambda number: (-said[number], number))[: one.reader.k]
            found.append([float(number in best) for number in range(len(said))] if one.example.labels else None)
        return found


@dataclass(frozen=True, kw_only=True)
class LabelAnswers(RankedAnswers[LabelledDocument]):
    """Answers that are one or several labels of a document.

    labels   the labels that exist, in the order of the model's outputs
    several  whether a document may have any number of them; else it has one
    pooling  which token the model labels a row by, "cls" or "mean"; None leaves it to the model
    reader   the text of the reader, which says how windows are pooled
    """

    architecture: ClassVar[str] = "AutoModelForSequenceClassification"
    pools: ClassVar[tuple[str, ...]] = ("mean", "max")

    labels: tuple[str, ...]
    several: bool
    pooling: str | None = None
    reader: str = "cut()"

    @property
    def metric(self) -> str:
        return "macro_f1" if self.several else "accuracy"

    @property
    def answer(self) -> str:
        return "labels" if self.several else "label"

    def model_fields(self) -> dict[str, Any]:
        """The labels, which loss, and which token they are read from."""
        kind = "multi_label_classification" if self.several else "single_label_classification"
        pooling = {} if self.pooling is None else {"classifier_pooling": self.pooling}
        return {**label_fields(self.labels), "problem_type": kind, **pooling}

    def predict(self, example: LabelledDocument, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`label` is the likeliest one, or `labels` those more likely than not; `probabilities` holds those of all
        labels.
        """
        each = np.stack([self._probabilities(one) for one in said])
        pooled = each.max(0) if parse_reader(self.reader).pools_by == "max" else each.mean(0)
        if not self.several:
            pooled /= pooled.sum()
        by_label = dict(zip(self.labels, pooled.tolist(), strict=True))
        return {
            self.answer: self._chosen(pooled),
            "probabilities": {label: shown(one) for label, one in by_label.items()},
        }

    def _chosen(self, probabilities: np.ndarray) -> str | list[str]:
        """The likeliest label, or those more likely than not."""
        by_label = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.several:
            return [label for label, probability in by_label.items() if probability > 0.5]
        return max(by_label, key=by_label.__getitem__)

    def baselines(
        self, training: Sequence[LabelledDocument], scored: Sequence[LabelledDocument], there: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """The most frequent labels, and a regression on counted words."""
        return baselines(
            [
                (self._words(one), np.array([float(name in (one.labels or ())) for name in self.labels]))
                for one in training
            ],
            [self._words(one) for one in scored],
            lambda found: self.score([self._chosen(row) for row in found], there),
            is_one_each=not self.several,
        )

    def _words(self, example: LabelledDocument) -> str:
        """The texts whose words are counted."""
        return example.text

    def found(self, feature: Feature, said: Logits) -> float:
        """The probability of the likeliest label."""
        return float(self._probabilities(said).max())

    def _probabilities(self, logits: Logits) -> np.ndarray:
        """Of each label, float64."""
        scores = torch.from_numpy(logits[0]).double()
        probabilities: np.ndarray = (scores.sigmoid() if self.several else scores.softmax(0)).numpy()
        return probabilities

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`accuracy` and `macro_f1` of single labels; `micro_f1` and `macro_f1` of several."""
        if self.several:
            return {"micro_f1": micro_f1(predicted, there), "macro_f1": macro_f1(predicted, there)}
        pairs = [(one,) for one in predicted], [(one,) for one in there]
        return {"accuracy": accuracy(predicted, there), "macro_f1": macro_f1(*pairs)}


CLASSIFICATION = Kind("classification", DocumentExamples, DocumentRows, LabelAnswers)


def _add_odds(
    odds: dict[str, float], own: Counter[str], here: Counter[str], elsewhere: Counter[str], kinds: int
) -> None:
    """Add, of each of a document's own words, ln of how much likelier it is here than elsewhere, itself left out.

    Words were counted; there are so many kinds of them.
    """
    shift = math.log(elsewhere.total() + kinds) - math.log(here.total() - own.total() + kinds)
    for word, count in own.items():
        odds[word] += math.log(here[word] - count + 1) - math.log(elsewhere[word] + 1) + shift


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The fields of a model's configuration that name its outputs."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def in_order(labels: Collection[str], known: Sequence[str]) -> tuple[str, ...]:
    """The labels in the order of the model, if it has exactly these; else sorted."""
    return tuple(known if set(known) == set(labels) else sorted(labels))


def refuse_unknown_label(record: Record, field: str, label: str, known: Sequence[str]) -> None:
    """Raise DataError for a label that the training data do not have."""
    if label not in known:
        listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        hint = nearest(label, known)
        raise record.error(field, f"is {label!r}, which is no label of the training data ({listed}).{hint}")


def labels_in(record: Record, several: bool) -> tuple[str, ...]:
    """The `label` of a record, or its `labels`. Raises DataError for what is not as in the module docstring."""
    other, field = ("label", "labels") if several else ("labels", "label")
    if other in record.fields:
        raise record.error(other, f"cannot be mixed with {field!r}: all documents have one label, or all have lists")
    value = record.get(field)
    if several and isinstance(value, str):
        value = split_list(value)
    values = value if several else [value]
    if not isinstance(values, list) or not all(_is_label(one) for one in values):
        raise record.error(field, f"must be {'a list of labels' if several else 'one label'}, got {value!r:.40}")
    labels = tuple(dict.fromkeys(str(one) for one in values))
    for label in labels:
        record.refuse_surrogates(field, label)
    return labels


def _is_label(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, str) and bool(value.strip()))
