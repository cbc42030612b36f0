"""Classification of documents: one label each, or any number of labels.

Files: JSONL or CSV with the fields `text` and either `label` (one per document) or `labels` (JSONL: a list; CSV: names
with ";" between them; may be empty). A label is text or a whole number, which stands for its digits. The labels that
exist are those of the training data.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError, nearest
from asterism.training.data.records import Record, read_csv, read_json_lines, suffix
from asterism.training.tasks.scores import accuracy, macro_f1, micro_f1
from asterism.training.tasks.task import Feature, Logits, Task, encode_documents, inputs_of


@dataclass(frozen=True)
class Document:
    """A document and its labels; exactly one of them unless `several` may apply."""

    record: Record
    text: str
    labels: tuple[str, ...]
    several: bool


def read_documents(path: Path) -> list[Document]:
    """All documents of a JSONL or CSV file. Raises DataError for anything that is not as in the module docstring."""
    is_csv = suffix(path, (".jsonl", ".csv")) == ".csv"
    records = list(read_csv(path) if is_csv else read_json_lines(path))
    if not records:
        raise DataError(f"data: {path} holds no document")
    several = "labels" in records[0].fields
    return [_document(record, several) for record in records]


class Classification(Task[Document]):
    """Which label a document has, or which labels.

    labels   the labels that exist, in the order of the model's outputs
    several  whether a document may have any number of them; else it has one
    length   how many tokens of a document are read
    pooling  which token the model labels a document by, "cls" or "mean"; None leaves it to the model
    """

    architecture: ClassVar[str] = "AutoModelForSequenceClassification"

    def __init__(
        self, documents: Sequence[Document], *, length: int, pooling: str | None = None, known: Sequence[str] = ()
    ) -> None:
        """With the labels of the training documents, in the order of `known` if those are the same, else sorted.

        Raises DataError if they leave nothing to decide.
        """
        self.labels = in_order({label for document in documents for label in document.labels}, known)
        self.several = documents[0].several
        self.length = length
        self.pooling = pooling
        self.headline = "macro_f1" if self.several else "accuracy"
        if len(self.labels) < 2 - self.several:
            seen = ", ".join(self.labels) or "none"
            raise DataError(f"data: the training documents must have {2 - self.several} labels or more, seen: {seen}")

    def model_fields(self) -> dict[str, Any]:
        """The labels, which loss, and which token they are read from."""
        kind = "multi_label_classification" if self.several else "single_label_classification"
        pooling = {} if self.pooling is None else {"classifier_pooling": self.pooling}
        return {**label_fields(self.labels), "problem_type": kind, **pooling}

    def features(self, examples: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> list[Feature]:
        """One feature per document. The target is a list of 0 and 1 per label, or the number of the label."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for document in examples:
            for label in document.labels:
                refuse_unknown_label(document.record, "labels" if self.several else "label", label, self.labels)
        places = [document.record.place for document in examples]
        rows = encode_documents(places, [document.text for document in examples], tokenizer, self.length)
        features = []
        for number, (document, row) in enumerate(zip(examples, rows, strict=True)):
            mine = [numbers[label] for label in document.labels]
            target = [float(one in mine) for one in range(len(self.labels))] if self.several else mine[0]
            features.append(Feature(number, inputs_of(row, tokenizer), target))
        return features

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B], or float32 [B, labels] when several may apply."""
        return {"labels": torch.tensor([feature.target for feature in features])}

    def predict(
        self, examples: Sequence[Document], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[dict[str, Any]]:
        """`label`, the likeliest, or `labels`, those more likely than not; `probabilities` of all."""
        predictions = []
        for (row,) in logits:
            scores = torch.from_numpy(row).double()
            probabilities = (scores.sigmoid() if self.several else scores.softmax(0)).tolist()
            by_label = dict(zip(self.labels, probabilities, strict=True))
            if self.several:
                chosen = {"labels": [label for label, probability in by_label.items() if probability > 0.5]}
            else:
                chosen = {"label": max(by_label, key=by_label.__getitem__)}
            predictions.append({**chosen, "probabilities": by_label})
        return predictions

    def score(self, examples: Sequence[Document], predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`accuracy` and `macro_f1` of single labels; `micro_f1` and `macro_f1` of several."""
        there = [document.labels for document in examples]
        if self.several:
            predicted = [prediction["labels"] for prediction in predictions]
            return {"micro_f1": micro_f1(predicted, there), "macro_f1": macro_f1(predicted, there)}
        predicted = [(prediction["label"],) for prediction in predictions]
        return {"accuracy": accuracy(predicted, there), "macro_f1": macro_f1(predicted, there)}


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The fields of a model's configuration that name its outputs."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def in_order(labels: Collection[str], known: Sequence[str]) -> list[str]:
    """The labels in the order in which a model already knows them, if it knows just these; else sorted."""
    return list(known) if set(known) == set(labels) else sorted(labels)


def refuse_unknown_label(record: Record, field: str, label: str, known: Sequence[str]) -> None:
    """Raises DataError for a label that the training data do not have."""
    if label not in known:
        listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        hint = nearest(label, known)
        raise record.error(field, f"is {label!r}, which is no label of the training data ({listed}).{hint}")


def _document(record: Record, several: bool) -> Document:
    other, field = ("label", "labels") if several else ("labels", "label")
    if other in record.fields:
        raise record.error(other, f"cannot be mixed with {field!r}, which the first record has")
    value = record.get(field)
    if several and isinstance(value, str):
        value = [label for label in map(str.strip, value.split(";")) if label]
    values = value if several else [value]
    if not isinstance(values, list) or not all(_is_label(one) for one in values):
        raise record.error(field, f"must be {'a list of labels' if several else 'one label'}, got {value!r:.40}")
    labels = tuple(dict.fromkeys(str(one) for one in values))
    return Document(record, record.text("text"), labels, several)


def _is_label(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, str) and bool(value.strip()))
