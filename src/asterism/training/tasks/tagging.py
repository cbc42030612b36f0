"""Tagging: one tag for each token (word) of a document, such as the kinds of names in BIO form.

Files: JSONL with the fields `tokens` and `tags`, two lists of texts of one length; or CoNLL (.conll, .bio, .txt): a
line per token, its tag in the last column, a blank line between documents. The tags that exist are those of the
training data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.records import Record, read_conll, read_json_lines, suffix
from asterism.training.tasks.classification import in_order, label_fields, refuse_unknown_label
from asterism.training.tasks.scores import accuracy, are_bio, bio_spans, count, macro_f1
from asterism.training.tasks.task import Feature, Logits, Task, encode_documents, inputs_of, pad

IGNORED = -100
"""The target of a token that has none: the losses of transformers leave it out."""


@dataclass(frozen=True)
class TaggedDocument:
    """Tokens and their tags, as many of one as of the other."""

    record: Record
    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(path: Path) -> list[TaggedDocument]:
    """All documents of a JSONL or CoNLL file. Raises DataError for anything that is not as in the module docstring."""
    is_json = suffix(path, (".jsonl", ".conll", ".bio", ".txt")) == ".jsonl"
    documents = [_tagged(record) for record in (read_json_lines(path) if is_json else read_conll(path))]
    if not documents:
        raise DataError(f"data: {path} holds no document")
    return documents


class Tagging(Task[TaggedDocument]):
    """Which tag each token has.

    A token's tag is read at its first piece. A token that is beyond `length`, or of which the tokenizer leaves nothing,
    is predicted to have the tag "O", or else the most frequent one.
    """

    architecture: ClassVar[str] = "AutoModelForTokenClassification"
    per_token: ClassVar[bool] = True

    def __init__(self, documents: Sequence[TaggedDocument], *, length: int, known: Sequence[str] = ()) -> None:
        """With the tags of the training documents, in the order of `known` if those are the same, else sorted.

        Raises DataError if they leave nothing to decide.
        """
        every = [tag for document in documents for tag in document.tags]
        self.labels = in_order(set(every), known)
        self.length = length
        self.unread = "O" if "O" in self.labels else max(self.labels, key=every.count)
        self.marks_spans = are_bio(self.labels)
        self.headline = "entity_f1" if self.marks_spans else "token_accuracy"
        if len(self.labels) < 2:
            raise DataError(f"data: the training documents must have 2 tags or more, seen: {self.labels[0]}")

    def model_fields(self) -> dict[str, Any]:
        """The tags."""
        return label_fields(self.labels)

    def features(self, examples: Sequence[TaggedDocument], tokenizer: PreTrainedTokenizerFast) -> list[Feature]:
        """One feature per document. Target and `tokens`: for each piece the number of its tag, and of its token."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for document in examples:
            for tag in document.tags:
                refuse_unknown_label(document.record, "tags", tag, self.labels)
        places = [document.record.place for document in examples]
        rows = encode_documents(places, [list(document.tokens) for document in examples], tokenizer, self.length)
        features = []
        for number, (document, row) in enumerate(zip(examples, rows, strict=True)):
            firsts = _first_pieces(row.word_ids)
            target = [IGNORED if token < 0 else numbers[document.tags[token]] for token in firsts.tolist()]
            features.append(Feature(number, inputs_of(row, tokenizer), np.array(target), firsts))
        return features

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B, length]; IGNORED where no tag is read."""
        return {"labels": pad([feature.target for feature in features], length, IGNORED)}

    def predict(
        self, examples: Sequence[TaggedDocument], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[dict[str, Any]]:
        """`tags`: one for each token."""
        predictions = []
        for document, feature, (rows,) in zip(examples, features, logits, strict=True):
            tags = [self.unread] * len(document.tokens)
            read = feature.tokens >= 0
            for token, best in zip(feature.tokens[read].tolist(), rows[read].argmax(1).tolist(), strict=True):
                tags[token] = self.labels[best]
            predictions.append({"tags": tags})
        return predictions

    def score(self, examples: Sequence[TaggedDocument], predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Over tokens: `token_accuracy` and, if tags mark no spans, `token_macro_f1`.

        If they do (BIO), over whole spans of the right kind, as conlleval: `entity_precision`, `entity_recall`,
        `entity_f1`.
        """
        tags = [prediction["tags"] for prediction in predictions]
        there = [document.tags for document in examples]
        predicted_tokens, tokens = list(chain.from_iterable(tags)), list(chain.from_iterable(there))
        scores = {"token_accuracy": accuracy(predicted_tokens, tokens)}
        if self.marks_spans:
            counts = count([bio_spans(one) for one in tags], [bio_spans(one) for one in there])
            spans = {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1}
            return scores | {f"entity_{name}": value for name, value in spans.items()}
        return scores | {"token_macro_f1": macro_f1([(tag,) for tag in predicted_tokens], [(tag,) for tag in tokens])}


def _first_pieces(words: Sequence[int | None]) -> np.ndarray:
    """For each piece the number of the token that it begins, int32 [N]; -1 for all others."""
    pairs = zip([None, *words], words, strict=False)
    return np.array([-1 if word in (None, before) else word for before, word in pairs], dtype=np.int32)


def _tagged(record: Record) -> TaggedDocument:
    tokens, tags = record.texts("tokens"), record.texts("tags")
    if len(tokens) != len(tags):
        raise record.error("tags", f"has {len(tags):,} entries for {len(tokens):,} tokens")
    if not tokens:
        raise record.error("tokens", "is empty")
    return TaggedDocument(record, tuple(tokens), tuple(tags))
