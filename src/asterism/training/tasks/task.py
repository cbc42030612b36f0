"""What the tasks have in common: a task turns examples into features for a model, and what it says into predictions.

    record -> example -> features -> model -> what it says -> (features to read again ->) prediction -> scores

A feature is one row of a model's input, with what the model's loss needs; the task's reader says which rows are made of
an example. The training loop knows features and tensors only. A task is made of its training examples, or of the record
that a fine-tuned run keeps of it: what it asks of a model does not need the examples.

The answers of a `Labelling` task are read from logits; those of a `Writing` task (`writing.py`) the model generates.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Self, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import AsterismError, ConfigurationError, DataError
from asterism.training.data.records.formats import Format, format_of
from asterism.training.data.records.held_out import held_out
from asterism.training.data.records.record import Record
from asterism.training.readers.learned import Scorer
from asterism.training.readers.reader import Document, Reader, Row, Stretch
from asterism.training.readers.selected import Selected
from asterism.training.readers.text import parse_reader
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.encoding import Encoded

Example = TypeVar("Example")


@dataclass(frozen=True, eq=False)
class Feature:
    """One row of a model's input.

    inputs   the model's arguments, such as input_ids: int32 [N] each
    target   what the loss needs, as the task's `targets` reads it; None for an example without labels
    tokens   what the task needs to know about each of the N tokens to read logits, or nothing
    row      which of the document's tokens it holds
    is_cut   whether nobody reads the end of the document
    """

    inputs: dict[str, np.ndarray]
    target: Any
    tokens: np.ndarray | None = None
    row: Row = ()
    is_cut: bool = False


@dataclass(frozen=True, eq=False)
class Studied:
    """A training document whose windows a scorer learns to rank, and the words of each window, counted."""

    example: Any
    encoded: Encoded
    windows: Sequence[Stretch]
    words: Sequence[Counter[str]]
    reader: Selected


Logits = tuple[np.ndarray, ...]
"""What a model says about a feature of a `Labelling`: one float32 array for each of its `outputs`, padding cut off."""


class NoScoreError(DataError):
    """The metric cannot be computed of these examples."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[Example]):
    """One kind of question about documents. A task is immutable, and a dataclass of what JSON can hold.

    length  how many tokens a row of the model's input has at most
    reader  the text of the reader that makes rows of documents, its length left out
    scorer  what a reader that learns has learned, kept beside the weights

    Raises ConfigurationError for a reader that the task cannot use.
    """

    architecture: ClassVar[str]
    """The Auto class of transformers whose models answer it."""
    whole: ClassVar[bool] = False
    """Whether a model must have all of its weights already; else what the task puts on top may be new."""
    formats: ClassVar[tuple[str, ...]]
    """The formats that its examples come in, names of `data.formats.FORMATS`."""
    readers: ClassVar[tuple[str, ...]]
    """The names of the readers that suit it."""
    gathers: ClassVar[int] = 16
    """Batches of examples that are collected before the model is asked; more saves little padding."""
    unrecorded: ClassVar[frozenset[str]] = frozenset({"scorer"})
    """The fields that JSON cannot hold."""
    on_demand: ClassVar[bool] = False
    """Whether an example is one row to learn from, made by `drawn` whenever a step draws it. Such examples may be read
    as they are needed, and need not fit into memory."""
    pools: ClassVar[tuple[str, ...]] = ()
    """How it can make one answer of several windows, the usual way first."""

    length: int
    reader: str = "cut()"
    scorer: Scorer | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigurationError(f"length: rows have at least one token, got {self.length}")
        reading = parse_reader(self.reader)
        if reading.name not in self.readers:
            kind = type(self).__name__.lower()
            raise ConfigurationError(f"reader: {reading} is none for {kind}; it reads by {', '.join(self.readers)}")
        object.__setattr__(self, "reader", str(reading.settled(self.pools)))

    @property
    def reading(self) -> Reader:
        """The reader as a value."""
        return parse_reader(self.reader)

    @classmethod
    def for_config(cls, config: FineTuneConfig) -> "type[Task[Any]]":
        """The task that asks what the settings of a run say: this one, or a kind of it."""
        return cls

    @classmethod
    def format(cls, path: str | Path, asked: str | None = None) -> Format:
        """The format of a file, as `format_of` finds it among those of the task."""
        return format_of(path, cls.formats, asked)

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> Sequence[Any]:
        """The labelled examples of a file. Raises DataError for anything in it that is not one."""

    @classmethod
    def read_for(cls, path: Path, config: FineTuneConfig) -> Sequence[Any]:
        """The labelled examples at a path, where settings of the run say how they are read. Raises as `read` does."""
        return cls.read(path)

    @classmethod
    def divided(cls, config: FineTuneConfig) -> tuple[Sequence[Any], Sequence[Any]]:
        """The examples to train on and those that score the model. Raises DataError if there are too few for both."""
        examples = cls.read_for(Path(config.data), config)
        if config.validation is not None:
            return examples, cls.read_for(Path(config.validation), config)
        return held_out(examples, config.validation_fraction, config.seed, config.data)

    @classmethod
    def files(cls, config: FineTuneConfig) -> tuple[str | None, ...]:
        """The files that the examples are of: their bytes are the identity of the data."""
        return config.data, config.validation

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """What is decided before any example is read: the settings of the run that are fields of the task.

        Raises ConfigurationError for a model or a tokenizer that the task has no use for.
        """
        shared = {one.name for one in fields(cls)} & {one.name for one in fields(config)}
        return {name: getattr(config, name) for name in sorted(shared - {"length"})}

    @classmethod
    @abstractmethod
    def of(cls, examples: Sequence[Example], *, length: int, known: Sequence[str] = (), **choices: Any) -> Self:
        """The task that training examples set to a model that reads `length` tokens and may have labels already.

        `choices` are those of the method of that name. Raises DataError if the examples leave nothing to decide.
        """

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `record`. Raises TypeError for one that is not that of this task.

        One of an earlier version may lack what that version did not leave open.
        """
        kept = [one for one in fields(cls) if one.name not in cls.unrecorded]
        names = {one.name for one in kept}
        if not {one.name for one in kept if one.default is MISSING} <= record.keys() <= names:
            raise TypeError(f"its fields must be {', '.join(sorted(names))}, there are {', '.join(sorted(record))}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
        }
        for one in kept:
            if one.name in values and not _fits(values[one.name], one.type):
                raise TypeError(f"{one.name} is {values[one.name]!r:.60}")
        return cls(**values)

    def record(self) -> dict[str, Any]:
        """All that decides what is asked of a model and that JSON can hold; the rest is kept beside its weights."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in self.unrecorded}

    @property
    @abstractmethod
    def metric(self) -> str:
        """The name of the score to judge by."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """The field of a prediction that is scored."""

    @property
    def weight_of_positives(self) -> float:
        """How many times as much as a 0 a 1 of the targets counts in the loss, where targets are 0 and 1."""
        return 1.0

    @abstractmethod
    def example(self, record: Record, *, labelled: bool) -> Example:
        """What a record asks, and if `labelled` what the right answer is; else labels are not looked at.

        Raises DataError for a record that does not say it.
        """

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The right answer of a labelled example, as `score` takes it."""

    def beside(self, example: Example) -> dict[str, Any]:
        """What stands beside the prediction for a validation example in the run folder, for people to compare."""
        return {}

    @abstractmethod
    def model_fields(self) -> dict[str, Any]:
        """The fields of a model's configuration that the task decides, such as the labels."""

    def prepare(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        """Set what a model for the task says beside its configuration, and saves with its weights."""

    @abstractmethod
    def encoded(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The document of each example as the tokenizer reads it; at least what the reader reads of it."""

    @abstractmethod
    def feature(self, example: Example, encoded: Encoded, row: Row) -> Feature:
        """One row of an example's document. Raises DataError for labels that cannot be used."""

    def features(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        """The features of each example, in their order, to be asked about.

        Raises DataError at the first example that cannot be used, such as one without a token; those before it come.
        """
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            yield self._made(example, encoded, document, self.rows(document))

    def _made(self, example: Example, encoded: Encoded, document: Document, rows: Sequence[Row]) -> list[Feature]:
        features = [self.feature(example, encoded, row) for row in rows]
        if self.reading.cuts and (encoded.goes_on or document.tokens > document.room):
            return [replace(feature, is_cut=True) for feature in features]
        return features

    def tokens(self, feature: Feature) -> int:
        """How long a feature is, where features of like length are to share a batch."""
        return len(feature.inputs["input_ids"])

    def rows(self, document: Document) -> list[Row]:
        """The rows by which a document is read first."""
        return self.reading.rows(document)

    @property
    def needs(self) -> int:
        """How many tokens of a document a row must have place for."""
        return self.reading.needs

    def training_features(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """The features of each example, in their order, to be learned from. Raises as `features` does."""
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            yield self._made(example, encoded, document, self.reading.training_rows(document))

    def drawn(self, example: Example, tokenizer: PreTrainedTokenizerFast, random: np.random.Generator) -> Feature:
        """The one feature of an example that a step learns from. Raises as `features` does."""
        raise NotImplementedError(f"{type(self).__name__} makes its features before the first step")

    def again(
        self,
        example: Example,
        features: Sequence[Feature],
        said: Sequence[Any],
        tokenizer: PreTrainedTokenizerFast,
    ) -> list[Feature]:
        """What is to be read next, after what the model said about these features; [] if that is the answer."""
        if not self.reading.reads_again or len(features) == 1:
            return []
        found = [shown_score(self.found(feature, one)) for feature, one in zip(features, said, strict=True)]
        (encoded,) = self.encoded([example], tokenizer)
        row = self.reading.again(self.document(example, encoded), [feature.row for feature in features], found)
        return [self.feature(example, encoded, row)]

    def found(self, feature: Feature, said: Any) -> float:
        """How much the model found in a feature of what it is asked: the greater, the sooner it is read again."""
        raise NotImplementedError(f"{type(self).__name__} has no reader that reads again")

    @property
    def longest(self) -> tuple[int, ...]:
        """Tokens of the longest row, and of the longest target, if texts are written."""
        return (self.length,)

    def document(self, example: Any, encoded: Encoded) -> Document:
        """What the reader sees of an example. Raises DataError for one that it cannot read."""
        document = replace(encoded.document(self.length), scorer=self.scorer)
        needs, place = self.needs, example.record.place
        if document.room < needs:
            raise DataError(
                f"{place}: what stands around the document has {encoded.around:,} tokens and leaves"
                f" {max(0, document.room):,} of length {self.length:,} for it, where reader {self.reader} needs"
                f" {needs:,}: give a longer length"
            )
        if not document.tokens:
            raise DataError(f"{place}: the tokenizer makes no token of the document")
        if reason := self.reading.refusal(document):
            raise DataError(f"{place}: {reason}")
        return document

    def wanted(self, studied: Sequence[Studied]) -> list[Sequence[float] | None]:
        """How much each window of training documents is wanted, for a scorer to learn from; None where nobody can say.

        Only where a task reads by `selected`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not select windows")

    def notes(self, examples: Sequence[Example], features: Sequence[Sequence[Feature]]) -> list[str]:
        """What a user should know about the training examples and the features of each, one line each.

        Raises DataError for a training example that cannot be learned from, though it could be scored.
        """
        return []

    @abstractmethod
    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """What the loss needs for a batch of features whose rows are padded on the right to `length` tokens."""

    @abstractmethod
    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[Any]:
        """What a model in evaluation mode says about each row of `inputs`, int64 [B, length] each, padded on the right.

        Raises AsterismError if that is not finite.
        """

    @abstractmethod
    def predict(self, example: Example, features: Sequence[Feature], said: Sequence[Any]) -> dict[str, Any]:
        """The prediction for an example, given what `ask` gave for each of its features."""

    @abstractmethod
    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """The scores of answers, beside what `gold` says is right, the metric among them.

        Raises NoScoreError for examples of which there is none.
        """

    def baselines(self, training: Sequence[Example], scored: Sequence[Example]) -> dict[str, dict[str, float]]:
        """The scores on labelled examples of what needs no model, by name; {} where there is nothing of the kind."""
        return {}

    def require_scores(self, examples: Sequence[Example]) -> None:
        """Raises NoScoreError for examples of which no answers can be scored: before the first step, not at the end."""

    def page(
        self, scores: Mapping[str, float], examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """What people read of a finished run, in Markdown; None if its predictions say it all."""
        return None

    @classmethod
    def require_scorer(cls) -> None:
        """Raises ConfigurationError if a package is missing that `score` needs: before hours of work, not after."""


@dataclass(frozen=True, kw_only=True)
class Labelling(Task[Example]):
    """A task whose answers are read from what a model outputs in one call."""

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """What is read of a model's output."""
    per_token: ClassVar[bool] = False
    """Whether the outputs have an axis of tokens after that of rows."""

    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[Logits]:
        """The outputs of each row."""
        found = model(**inputs)
        outputs = [found[name].float().cpu().numpy() for name in self.outputs]
        ends = inputs["attention_mask"].sum(1).tolist() if self.per_token else [None] * len(outputs[0])
        if not all(np.isfinite(output[row, :end]).all() for output in outputs for row, end in enumerate(ends)):
            raise not_finite()
        return [tuple(output[row, :end] for output in outputs) for row, end in enumerate(ends)]

    @abstractmethod
    def predict(self, example: Example, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """What the model says about an example, given the logits of each of its features."""


def _fits(value: object, kind: Any) -> bool:
    """Whether a field of this type can have the value, of those that JSON gives. Other types are not looked into."""
    inside = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_fits(one, inside[0]) for one in value)
    if kind is NoneType:
        return value is None
    if kind in (bool, float, int, str):
        like = (float, int) if kind is float else kind
        return isinstance(value, like) and isinstance(value, bool) == (kind is bool)
    return True


def not_finite() -> AsterismError:
    """What is raised if a model's answers are not finite."""
    return AsterismError("the model's answers are not finite: its weights, or its arithmetic, cannot be used")


def shown(probability: float) -> float:
    """A probability with the four digits that hold.

    Rows of a batch are added up in an order that depends on the batch, so that in float32 the last one to two of seven
    digits change with it; what is written should not. Digits are counted from the first that is not 0, as those of a
    rare label must not all be lost.
    """
    return float(f"{probability:.4g}")


def shown_score(score: float) -> float:
    """A sum of logits, which are some units large, with the three decimals that hold as those of `shown` do."""
    return round(score, 3)


def pad(rows: Sequence[np.ndarray], length: int, filler: int) -> torch.Tensor:
    """Rows of numbers as int64 [B, length], filled up on the right."""
    padded = np.full((len(rows), length), filler, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
