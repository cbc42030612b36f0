"""What the tasks have in common: a task turns examples into features for a model, and its logits into predictions.

    file -> read -> examples -> features -> model -> logits -> predictions -> scores

A feature is one row of a model's input, with what the model's loss needs; one example gives one feature, or several
when it is read through windows. The training loop knows features and tensors only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError

Example = TypeVar("Example")

ENCODED_TOGETHER = 64
"""Documents that go through the tokenizer at once: an encoding takes much more memory than what is kept of it."""


@dataclass(frozen=True, eq=False)
class Feature:
    """One row of a model's input.

    example  the number of the example it was made of
    inputs   the model's arguments, such as input_ids: int32 [N] each
    target   what the loss needs, as the task's `targets` reads it
    tokens   what the task needs to know about each of the N tokens to read logits, or nothing
    """

    example: int
    inputs: dict[str, np.ndarray]
    target: Any
    tokens: np.ndarray | None = None


Logits = tuple[np.ndarray, ...]
"""What a model says about one feature: one float32 array for each of the task's `outputs`, padding cut off."""


class Task(ABC, Generic[Example]):
    """One kind of question about documents. A task is immutable."""

    architecture: ClassVar[str]
    """The Auto class of transformers whose models answer it."""
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """What it reads of a model's output."""
    per_token: ClassVar[bool] = False
    """Whether the outputs have an axis of tokens after that of rows."""
    headline: str
    """The score to judge by."""

    @abstractmethod
    def model_fields(self) -> dict[str, Any]:
        """The fields of a model's configuration that the task decides, such as the labels."""

    @abstractmethod
    def features(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> list[Feature]:
        """The features of all examples, in their order. Raises DataError for an example without a token."""

    def notes(self, examples: Sequence[Example], features: Sequence[Feature]) -> list[str]:
        """What a user should know about the training examples and their features, one line each."""
        return []

    @abstractmethod
    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """What the loss needs for a batch of features whose rows are padded on the right to `length` tokens."""

    @abstractmethod
    def predict(
        self, examples: Sequence[Example], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[dict[str, Any]]:
        """One prediction for each example, as it is written to the file of predictions."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """The scores of the predictions, the headline among them."""


def encode_documents(
    places: Sequence[str],
    documents: Sequence[str] | Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerFast,
    length: int,
) -> Iterator[Encoding]:
    """Documents, whole or in words, as rows of at most `length` tokens; what is beyond is cut off.

    Raises DataError for a document of which the tokenizer leaves nothing.
    """
    in_words = not isinstance(documents[0], str)
    for at in range(0, len(documents), ENCODED_TOGETHER):
        some = list(documents[at : at + ENCODED_TOGETHER])
        rows = tokenizer(some, is_split_into_words=in_words, truncation=True, max_length=length).encodings
        for place, row in zip(places[at:], rows, strict=False):
            if all(row.special_tokens_mask):
                raise DataError(f"{place}: the tokenizer makes no token of the document")
            yield row


def inputs_of(row: Encoding, tokenizer: PreTrainedTokenizerFast) -> dict[str, np.ndarray]:
    """The model's arguments in one row: int32 [N] each. The mask of padding is made when rows are put together."""
    inputs = {"input_ids": row.ids, "token_type_ids": row.type_ids}
    return {name: np.array(inputs[name], dtype=np.int32) for name in inputs if name in tokenizer.model_input_names}


def pad(rows: Sequence[np.ndarray], length: int, filler: int) -> torch.Tensor:
    """Rows of numbers as int64 [B, length], filled up on the right."""
    padded = np.full((len(rows), length), filler, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
