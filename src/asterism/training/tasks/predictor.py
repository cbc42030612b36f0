"""Asking a fine-tuned model: examples in, predictions out, in order and in bounded memory.

A reader that reads again is asked for the next rows of a buffer's examples once the model has answered the first.

Rows of one length make the fewest padded tokens, so examples are collected in buffers of as many batches as the task's
answers gather, and sorted by length within each. Which rows share a batch, and with it the last bits of every number,
therefore depends on the number of an example and on nothing else: who begins again at a multiple of `buffered` gets the
same predictions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.readers.selected import Iterated
from asterism.training.run.allocator import Heap
from asterism.training.run.arithmetic import arithmetic
from asterism.training.settings.configuration import Dtype
from asterism.training.tasks.answers import RankedAnswers, shown_score
from asterism.training.tasks.rows import Feature, RankedRows, pad
from asterism.training.tasks.task import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """A model that can be asked, and all that decides its predictions: examples are asked `batch_size` at a time."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    task: Task[Any]
    dtype: Dtype
    batch_size: int
    heap: Heap = field(init=False, default_factory=Heap)

    @property
    def buffered(self) -> int:
        """How many examples are collected; one alone if they are asked one by one, as nothing is gained by waiting."""
        return 1 if self.batch_size == 1 else self.task.answers.gathers * self.batch_size

    def predict(self, examples: Sequence[Any], features: Sequence[Sequence[Feature]]) -> Iterator[dict[str, Any]]:
        """A prediction for each example, given the features of each."""
        for prediction, _ in self.answered(examples, features):
            yield prediction

    def answered(
        self, examples: Sequence[Any], features: Sequence[Sequence[Feature]]
    ) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        """The same, each with the rows that it was made of: the last that were read, by a reader that reads again."""
        for at in range(0, len(examples), self.buffered):
            yield from self._buffer(examples[at : at + self.buffered], features[at : at + self.buffered])

    def ask(self, records: Iterable[Record], *, labelled: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The example of each record, with its prediction; with its labels if it is `labelled`.

        Records are read as they are needed. Raises DataError at the first record that cannot be read or used, after
        the predictions for those before it.
        """
        records = iter(records)
        while True:
            examples, trouble = self._examples(records, labelled=labelled)
            features: list[list[Feature]] = []
            try:
                features.extend(self.task.rows.features(examples, self.tokenizer))
            except DataError as error:  # of an example before the one that could not be read
                trouble = error
            del examples[len(features) :]
            for example, (prediction, _) in zip(examples, self._buffer(examples, features), strict=True):
                yield example, prediction
            if trouble is not None:
                raise trouble
            if len(examples) < self.buffered:
                return

    def _examples(self, records: Iterator[Record], *, labelled: bool) -> tuple[list[Any], DataError | None]:
        """The next examples, as many as are collected, and what made them fewer."""
        examples: list[Any] = []
        try:
            for record in records:
                examples.append(self.task.examples.example(record, labelled=labelled))
                if len(examples) == self.buffered:
                    break
        except DataError as error:
            return examples, error
        return examples, None

    def _buffer(
        self, examples: Sequence[Any], features: Sequence[Sequence[Feature]]
    ) -> list[tuple[dict[str, Any], list[Row]]]:
        read = list(features)
        said = self._said(read)
        while any(again := [self._again(*one) for one in zip(examples, read, said, strict=True)]):
            for number, some in enumerate(self._said(again)):
                if some:
                    read[number], said[number] = again[number], some
        predictions = [self.task.answers.predict(*one) for one in zip(examples, read, said, strict=True)]
        return list(zip(predictions, ([feature.row for feature in some] for some in read), strict=True))

    def _again(self, example: Any, features: Sequence[Feature], said: Sequence[Any]) -> list[Feature]:
        """What is to be read next of an example, after what the model said; [] if that is the answer."""
        rows, answers = self.task.rows, self.task.answers
        if not isinstance(rows, RankedRows) or not isinstance(rows.reading, Iterated):
            return []
        if isinstance(answers, RankedAnswers):  # else texts, which are read next
            said = [shown_score(answers.found(feature, one)) for feature, one in zip(features, said, strict=True)]
        return rows.again(example, features, said, self.tokenizer)

    def _said(self, features: Sequence[Sequence[Feature]]) -> list[list[Any]]:
        """What the model says about each feature of each example."""
        said = iter(self._ask([feature for some in features for feature in some]))
        return [[next(said) for _ in some] for some in features]

    @torch.no_grad()
    def _ask(self, features: Sequence[Feature]) -> list[Any]:
        """What the model says about each feature; it is left in evaluation mode."""
        self.model.train(False)
        said: list[Any] = [None] * len(features)
        by_length = sorted(range(len(features)), key=lambda number: len(features[number].inputs["input_ids"]))
        for at in range(0, len(features), self.batch_size):
            numbers = by_length[at : at + self.batch_size]
            batch = model_inputs([features[number] for number in numbers], self.tokenizer)
            batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
            with arithmetic(self.dtype, self.model.device):
                answers = self.task.answers.ask(self.model, batch, self.tokenizer)
            self.heap.tidy()
            for number, answer in zip(numbers, answers, strict=True):
                said[number] = answer
        return said


def model_inputs(features: Sequence[Feature], tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """The rows of features padded on the right to one length, with a mask that says where: int64 [B, length] each."""
    length = max(len(feature.inputs["input_ids"]) for feature in features)
    fillers = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": 0}
    rows = {name: [feature.inputs[name] for feature in features] for name in features[0].inputs}
    masks = [np.ones(len(row), dtype=np.int32) for row in rows["input_ids"]]
    inputs = {name: pad(values, length, fillers[name]) for name, values in rows.items()}
    return {**inputs, "attention_mask": pad(masks, length, 0)}


def as_fields(prediction: dict[str, Any]) -> dict[str, Any]:
    """A prediction under the names that it is written by: with "predicted_" in front.

    So it can stand next to the labels that data bring with them under the same names.
    """
    return {f"predicted_{name}": value for name, value in prediction.items()}
