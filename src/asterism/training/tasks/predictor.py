"""Predict with a fine-tuned model: examples in, predictions out, in order and in bounded memory.

A reader that reads again gets the model's results for the first rows of a buffer, and then chooses the next rows.

Examples are collected in buffers of several batches (`Answers.gathers`) and sorted by length within each, because rows
of equal length need the least padding. Which rows share a batch decides the last bits of every number. It depends only
on the index of an example, so a call that starts again at a multiple of `buffered` gets the same predictions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.readers.selected import Iterated
from asterism.training.run.allocator import Heap
from asterism.training.run.arithmetic import arithmetic, loss_of
from asterism.training.settings.configuration import Dtype
from asterism.training.tasks.answers import RankedAnswers, shown_score
from asterism.training.tasks.rows import Feature, RankedRows, pad
from asterism.training.tasks.task import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """A model and everything that decides its predictions; `batch_size` examples are computed at a time."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    task: Task[Any]
    dtype: Dtype
    batch_size: int
    heap: Heap = field(init=False, default_factory=Heap)

    @property
    def buffered(self) -> int:
        """The number of examples that are collected; 1 if `batch_size` is 1, because waiting gains nothing."""
        return 1 if self.batch_size == 1 else self.task.answers.gathers * self.batch_size

    def predict(self, examples: Sequence[Any], features: Sequence[Sequence[Feature]]) -> Iterator[dict[str, Any]]:
        """A prediction for each example, given the features of each."""
        for prediction, _ in self.answered(examples, features):
            yield prediction

    def answered(
        self, examples: Sequence[Any], features: Sequence[Sequence[Feature]]
    ) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        """The same, each with the rows that the answer was made from; for a reader that reads again, the last ones."""
        for at in range(0, len(examples), self.buffered):
            yield from self._buffer(examples[at : at + self.buffered], features[at : at + self.buffered])

    def ask(self, records: Iterable[Record], *, labelled: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the example of each record with its prediction, and with its labels if `labelled`.

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

    @torch.no_grad()
    def losses(self, examples: Sequence[Any]) -> dict[str, float]:
        """`answer_loss` of labelled examples, in nats per token of their answers; {} if the task has no such loss."""
        self.model.train(False)
        features = iter(self.task.rows.answered_features(examples, self.tokenizer))
        total = tokens = 0.0
        while some := list(islice(features, self.batch_size)):
            inputs = model_inputs(some, self.tokenizer)
            batch = {**inputs, **self.task.rows.targets(some, inputs["input_ids"].shape[1])}
            batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
            known = int((batch["labels"] >= 0).sum())
            mean = loss_of(self.model, batch, self.dtype, None, arguments=self.task.answers.arguments)
            total, tokens = total + known * float(mean), tokens + known
            self.heap.tidy()
        return {"answer_loss": total / tokens} if tokens else {}

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
        """The next rows of an example, given the model's results; [] if these give the answer."""
        rows, answers = self.task.rows, self.task.answers
        if not isinstance(rows, RankedRows) or not isinstance(rows.reading, Iterated):
            return []
        if isinstance(answers, RankedAnswers):  # else texts, which are read next
            said = [shown_score(answers.found(feature, one)) for feature, one in zip(features, said, strict=True)]
        return rows.again(example, features, said, self.tokenizer)

    def _said(self, features: Sequence[Sequence[Feature]]) -> list[list[Any]]:
        """The model's results for each feature of each example."""
        said = iter(self._ask([feature for some in features for feature in some]))
        return [[next(said) for _ in some] for some in features]

    @torch.no_grad()
    def _ask(self, features: Sequence[Feature]) -> list[Any]:
        """The model's results for each feature; the model is left in evaluation mode."""
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
    """The rows of features padded on the right to one length: int64 [B, length] each.

    A mask says where, unless the features hold several documents. Then padding is one more document of its row.
    """
    length = max(len(feature.inputs["input_ids"]) for feature in features)
    fillers = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": 0}
    rows = {name: [feature.inputs[name] for feature in features] for name in features[0].inputs}
    masks = [np.ones(len(row), dtype=np.int32) for row in rows["input_ids"]]
    positions = rows.pop("position_ids", None)
    inputs = {name: pad(values, length, fillers[name]) for name, values in rows.items()}
    if positions is not None:
        each = [np.append(one, np.arange(length - len(one), dtype=one.dtype)) for one in positions]
        return {**inputs, "position_ids": pad(each, length, 0)}
    return {**inputs, "attention_mask": pad(masks, length, 0)}


def as_fields(prediction: dict[str, Any]) -> dict[str, Any]:
    """A prediction under the names that it is written by: with "predicted_" in front.

    So it can stand next to the labels that data bring with them under the same names.
    """
    return {f"predicted_{name}": value for name, value in prediction.items()}
