"""Tagging: one tag for each token (word) of a document, such as the kinds of names in BIO form.

Files: JSONL with the fields `tokens` and `tags`, two lists of texts of one length; or CoNLL (.conll, .bio, .txt): a
line per token, its tag in the last column, a blank line between documents. The tags that exist are those of the
training data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.labels import IGNORED
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.tasks.answers import Logits, ReadAnswers, shown
from asterism.training.tasks.encoding import Encoded, encode
from asterism.training.tasks.examples import Examples
from asterism.training.tasks.kinds.classification import in_order, label_fields, refuse_unknown_label
from asterism.training.tasks.rows import EncodedRows, Feature, pad
from asterism.training.tasks.scores.labels import accuracy, are_bio, bio_spans, count, macro_f1
from asterism.training.tasks.task import Kind


@dataclass(frozen=True)
class TaggedDocument:
    """Tokens and their tags, equal in number; the tags are None if unknown."""

    record: Record
    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class TaggedDocuments(Examples[TaggedDocument]):
    """Documents whose tokens have tags."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "conll")

    @classmethod
    def decided(
        cls, training: Sequence[TaggedDocument], known: Sequence[str], choices: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The tags, in the order of `known` if these are the same tags, else sorted; and the tag of tokens beyond a
        row.

        That one is "O", or else the most frequent one. Raises DataError if the tags leave nothing to decide.
        """
        every = [tag for document in training for tag in document.tags or ()]
        labels = in_order(set(every), known)
        if len(labels) < 2:
            raise DataError(
                "too-few-labels", f"data: the training documents must have at least 2 tags, got {labels[0]}"
            )
        return {"labels": labels, "unread": "O" if "O" in labels else max(labels, key=every.count)}

    def example(self, record: Record, *, labelled: bool) -> TaggedDocument:
        """`tokens`, and if `labelled` their `tags`."""
        tokens = record.texts("tokens")
        if not tokens:
            raise record.error("tokens", "is empty")
        if not labelled:
            return TaggedDocument(record, tuple(tokens), None)
        tags = record.texts("tags")
        if len(tokens) != len(tags):
            raise record.error("tags", f"has {len(tags):,} entries for {len(tokens):,} tokens")
        return TaggedDocument(record, tuple(tokens), tuple(tags))

    def gold(self, example: TaggedDocument) -> Any:
        """The tags."""
        return list(example.tags or ())

    def classes(self, example: TaggedDocument) -> Sequence[str]:
        return example.tags or ()


@dataclass(frozen=True, kw_only=True)
class TokenRows(EncodedRows[TaggedDocument]):
    """Rows of documents in words. A token's tag is read at its first piece.

    labels  the tags that exist, in the order of the model's outputs
    """

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")

    labels: tuple[str, ...]

    def encoded(self, examples: Sequence[TaggedDocument], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The words of each."""
        return encode([one.tokens for one in examples], tokenizer, most=self.most)

    def feature(self, example: TaggedDocument, encoded: Encoded, row: Row) -> Feature:
        """Target and `tokens`: for each piece the number of its tag, and of its token."""
        firsts = encoded.along(row, _first_pieces(encoded.words), -1)
        return Feature(encoded.row(row), self._target(example, firsts), firsts, row)

    def _target(self, document: TaggedDocument, firsts: np.ndarray) -> np.ndarray | None:
        if document.tags is None:
            return None
        for tag in document.tags:
            refuse_unknown_label(document.record, "tags", tag, self.labels)
        numbers = [self.labels.index(tag) for tag in document.tags]
        return np.array([IGNORED if token < 0 else numbers[token] for token in firsts.tolist()])

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B, length]; IGNORED where no tag is read."""
        return {"labels": pad([feature.target for feature in features], length, IGNORED)}


@dataclass(frozen=True, kw_only=True)
class TagAnswers(ReadAnswers[TaggedDocument]):
    """Answers that are one tag for each token.

    labels  the tags that exist, in the order of the model's outputs
    unread  the tag that a token is said to have if it is beyond a row, or if the tokenizer leaves nothing of it
    """

    architecture: ClassVar[str] = "AutoModelForTokenClassification"
    per_token: ClassVar[bool] = True
    answer: ClassVar[str] = "tags"

    labels: tuple[str, ...]
    unread: str

    @property
    def marks_spans(self) -> bool:
        """Whether the tags are BIO, so that whole spans are scored."""
        return are_bio(self.labels)

    @property
    def metric(self) -> str:
        return "entity_f1" if self.marks_spans else "token_accuracy"

    def model_fields(self) -> dict[str, Any]:
        """The tags."""
        return label_fields(self.labels)

    def predict(self, example: TaggedDocument, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`tags`, one for each token, and the `probabilities` of those; null for a token that was not read."""
        firsts = features[0].tokens
        assert firsts is not None
        read = firsts >= 0
        likely = torch.from_numpy(said[0][0][read]).double().softmax(1).max(1)
        tags = [self.unread] * len(example.tokens)
        probabilities: list[float | None] = [None] * len(tags)
        for token, best, probability in zip(firsts[read].tolist(), likely.indices, likely.values, strict=True):
            tags[token], probabilities[token] = self.labels[int(best)], shown(float(probability))
        return {"tags": tags, "probabilities": probabilities}

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """Over tokens: `token_accuracy` and, if tags mark no spans, `token_macro_f1`.

        If they do (BIO), also over whole spans of the right kind, as conlleval does: `entity_precision`,
        `entity_recall`, `entity_f1`.
        """
        tokens_predicted, tokens = list(chain.from_iterable(predicted)), list(chain.from_iterable(there))
        scores = {"token_accuracy": accuracy(tokens_predicted, tokens)}
        if self.marks_spans:
            counts = count([bio_spans(one) for one in predicted], [bio_spans(one) for one in there])
            spans = {"precision": counts.precision, "recall": counts.recall, "f1": counts.f1}
            return scores | {f"entity_{name}": value for name, value in spans.items()}
        return scores | {"token_macro_f1": macro_f1([(tag,) for tag in tokens_predicted], [(tag,) for tag in tokens])}


TAGGING = Kind("tagging", TaggedDocuments, TokenRows, TagAnswers)


def _first_pieces(words: np.ndarray) -> np.ndarray:
    """For each piece, the index of the token that it begins, int32 [N]; -1 for all other pieces."""
    return np.where(words != np.concatenate([[-1], words[:-1]]), words, -1).astype(np.int32)
