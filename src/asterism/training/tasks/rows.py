"""Turn examples into rows of a model's input, for training and for prediction.

    example -> document, encoded by the tokenizer -> rows, as a reader divides it -> features -> a batch

A feature is one row with the target that the loss needs. The training loop sees only features and tensors.
`EncodedRows` are cut from an encoded document by a reader. `DrawnRows` are made when a step draws them, all others
before the first step. `RankedRows` can rank the windows of a document, so that the best ones are read first, or again.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.training.readers.learned import Scorer
from asterism.training.readers.reader import Document, Reader, Row, Stretch
from asterism.training.readers.selected import Iterated, Selected
from asterism.training.readers.text import parse_reader
from asterism.training.tasks.encoding import Encoded
from asterism.training.tasks.examples import Example


@dataclass(frozen=True, eq=False)
class Feature:
    """One row of a model's input.

    inputs       the model's arguments, such as input_ids: int32 [N] each
    target       what the loss needs, as `Rows.targets` reads it; None for an example without labels
    tokens       what `Answers` need to know about each of the N tokens to read logits, or nothing
    row          which of the document's tokens it holds
    is_cut       whether nobody reads a part of the document
    cuts_target  whether the target was cut off
    """

    inputs: dict[str, np.ndarray]
    target: Any
    tokens: np.ndarray | None = None
    row: Row = ()
    is_cut: bool = False
    cuts_target: bool = False


@dataclass(frozen=True, kw_only=True)
class ExampleRows(ABC, Generic[Example]):
    """The rows of a kind of task: a frozen dataclass of JSON values, except for the scorer.

    length  how many tokens a row has at most
    reader  the text of the reader that makes rows of documents, the length of its rows left out
    scorer  what a reader that learns has learned; kept beside the weights of the model

    Raises ConfigurationError for a length that no row can have.
    """

    readers: ClassVar[tuple[str, ...]]
    """The names of the readers that suit it."""

    length: int
    reader: str = "cut()"
    scorer: Scorer | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigurationError("at-least-one", f"length must be at least 1 token, got {self.length}")

    @property
    def reading(self) -> Reader:
        """The reader as a value."""
        return parse_reader(self.reader)

    @property
    def longest(self) -> tuple[int, ...]:
        """Tokens of the longest row, and of the longest target, if texts are written."""
        return (self.length,)

    # --- of examples ------------------------------------------------------------------------------------------------

    @abstractmethod
    def features(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        """Yield the features of each example for prediction, in order.

        Raises DataError at the first example that cannot be used, such as one without a token, after all before it.
        """

    @abstractmethod
    def training_features(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """Yield the features of each example for training, in order. Raises as `features` does."""

    def typed(self, text: str, tokenizer: PreTrainedTokenizerFast) -> np.ndarray | None:
        """The tokens that ask for what follows a text, int32 [N]; None if the task continues nothing."""
        return None

    def conversed(self, messages: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerFast) -> np.ndarray | None:
        """The tokens that ask for the next answer of a conversation, int32 [N]; None if the task has none."""
        return None

    def chosen(
        self, examples: Sequence[Example], rows: Sequence[Sequence[Row]], tokenizer: PreTrainedTokenizerFast
    ) -> list[list[list[int]] | None]:
        """The characters of each document from which its answer was made, if the reader chose them; else None.

        `rows` are those that each example was answered by. A stretch is [first, end].
        """
        return [None] * len(examples)

    def measured(self, training: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """The fields of the task that the tokens of its training examples decide. Raises as `features` does."""
        return {}

    def laid_out(self, features: Sequence[Feature]) -> tuple[Sequence[Feature], list[str]]:
        """The training rows, made of the features of all examples, and notes on them; by default each is a row."""
        return features, []

    def answered_features(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[Feature]:
        """Rows of labelled examples whose loss is one of the task's scores; by default there are none."""
        yield from ()

    def notes(self, examples: Sequence[Example], features: Sequence[Sequence[Feature]]) -> list[str]:
        """What a user should know about the training examples and the features of each, one line each.

        Raises DataError for a training example that cannot be learned from, though it could be scored.
        """
        return []

    # --- of a batch -------------------------------------------------------------------------------------------------

    def tokens(self, feature: Feature) -> int:
        """The length of a feature, by which features of similar length share a batch."""
        return len(feature.inputs["input_ids"])

    @abstractmethod
    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """The targets of the loss for a batch of features whose rows are padded on the right to `length` tokens."""


@dataclass(frozen=True, kw_only=True)
class EncodedRows(ExampleRows[Example]):
    """Rows of examples that have a document, which a reader divides."""

    @property
    def most(self) -> int | None:
        """The most tokens that are read of a document and the tokens around it; None for all."""
        return self.length if self.reading.cuts else None

    # --- of an example ----------------------------------------------------------------------------------------------

    @abstractmethod
    def encoded(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """Encode the document of each example with the tokenizer; at least the part that the reader reads."""

    @abstractmethod
    def feature(self, example: Example, encoded: Encoded, row: Row) -> Feature:
        """One row of an example's document. Raises DataError for labels that cannot be used."""

    def document(self, example: Any, encoded: Encoded) -> Document:
        """The document of an example as the reader sees it. Raises DataError for one that it cannot read."""
        document = replace(encoded.document(self.length), scorer=self.scorer)
        needs, place = self.reading.needs, example.record.place
        if document.room < needs:
            raise DataError(
                "no-room-for-document",
                f"{place}: the text around the document takes {encoded.around:,} tokens, which leaves"
                f" {max(0, document.room):,} of length {self.length:,}, but reader {self.reader} needs {needs:,}:"
                " give a longer length",
            )
        if not document.tokens:
            raise DataError("empty-document", f"{place}: the document is empty after tokenization")
        if reason := self.reading.refusal(document):
            raise DataError("bad-example", f"{place}: {reason}")
        return document

    def features(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            yield self._made(example, encoded, document, self.reading.rows(document))

    def training_features(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            yield self._made(example, encoded, document, self.reading.training_rows(document))

    def _made(self, example: Example, encoded: Encoded, document: Document, rows: Sequence[Row]) -> list[Feature]:
        features = [self.feature(example, encoded, row) for row in rows]
        if self.reading.cuts and (encoded.goes_on or document.tokens > document.room):
            return [replace(feature, is_cut=True) for feature in features]
        return features

    def chosen(
        self, examples: Sequence[Example], rows: Sequence[Sequence[Row]], tokenizer: PreTrainedTokenizerFast
    ) -> list[list[list[int]] | None]:
        if not self.reading.chooses:
            return [None] * len(examples)
        each = zip(self.encoded(examples, tokenizer), rows, strict=True)
        return [[stretch for row in some for stretch in encoded.covered(row)] for encoded, some in each]


@dataclass(frozen=True, kw_only=True)
class DrawnRows(EncodedRows[Example]):
    """Rows of examples that have one row each, made whenever a step draws them.

    Such examples may be read on demand, and need not fit into memory.
    """

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")

    def drawn(self, example: Example, tokenizer: PreTrainedTokenizerFast, random: np.random.Generator) -> Feature:
        """The one feature of an example that a step learns from. Raises as `features` does."""
        ((feature,),) = self.features([example], tokenizer)
        return feature


@dataclass(frozen=True, eq=False)
class Studied:
    """A training document whose windows a scorer learns to rank, and the words of each window, counted."""

    example: Any
    encoded: Encoded
    windows: Sequence[Stretch]
    words: Sequence[Counter[str]]
    reader: Selected


class RankedRows(EncodedRows[Example]):
    """Rows of texts whose windows can be ranked: by words, by a learned scorer, or by the model itself."""

    @abstractmethod
    def wanted(self, studied: Sequence[Studied]) -> list[Sequence[float] | None]:
        """How much each window of training documents is preferred, for the scorer to learn; None if unknown."""

    def again(
        self, example: Example, features: Sequence[Feature], found: Sequence[Any], tokenizer: PreTrainedTokenizerFast
    ) -> list[Feature]:
        """The next rows, given how much the model `found` in each feature; [] if these give the answer."""
        reader = self.reading
        if not isinstance(reader, Iterated) or len(features) == 1:
            return []
        (encoded,) = self.encoded([example], tokenizer)
        return [self.feature(example, encoded, reader.again([feature.row for feature in features], found))]


def pad(rows: Sequence[np.ndarray], length: int, filler: int) -> torch.Tensor:
    """Rows of integers [N] each, N up to `length`, as int64 [B, length], filled up on the right."""
    padded = np.full((len(rows), length), filler, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
