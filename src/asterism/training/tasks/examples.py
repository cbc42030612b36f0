"""Examples of a task: how files become examples, and the right answer to each.

    files -> records -> examples to train on, and others to score

The training examples decide which labels or columns exist. The class reads files and decides. An instance holds the
decisions, and makes examples of single records later, without the training data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from asterism.training.data.records.formats import Format, format_of, read_all
from asterism.training.data.records.held_out import held_out
from asterism.training.data.records.record import Record
from asterism.training.settings.configuration import FineTuneConfig

Example = TypeVar("Example")


class Examples(ABC, Generic[Example]):
    """The examples of a kind of task: a frozen dataclass of JSON values."""

    formats: ClassVar[tuple[str, ...]]
    """The formats of their files, names of `data.records.formats.FORMATS`."""

    # --- from files -------------------------------------------------------------------------------------------------

    @classmethod
    def format(cls, path: str | Path, asked: str | None = None) -> Format:
        """The format of a file, which `format_of` chooses among those of the task."""
        return format_of(path, cls.formats, asked)

    @classmethod
    def files(cls, config: FineTuneConfig) -> tuple[str | None, ...]:
        """The files of a run's examples. Their bytes are the identity of the data."""
        return config.data, config.validation

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[Example]:
        """Read the labelled examples of a file, according to the settings. Raises DataError for anything else."""
        records = cls.records(path, config)
        examples = cls.like(records[0])
        return [examples.example(record, labelled=True) for record in records]

    @classmethod
    def records(cls, path: Path, config: FineTuneConfig) -> list[Record]:
        """Read the records of a file, at least one. Raises DataError for a file that cannot be read."""
        return read_all(cls.format(path), path)

    @classmethod
    def like(cls, record: Record) -> Self:
        """An instance that makes examples of labelled records like this one, the first of a file."""
        return cls()

    @classmethod
    def divided(cls, config: FineTuneConfig) -> tuple[Sequence[Example], Sequence[Example]]:
        """The examples to train on and those that score the model. Raises DataError if there are too few for both."""
        examples = cls.read(Path(config.data), config)
        if config.validation is not None:
            return examples, cls.read(Path(config.validation), config)
        return held_out(examples, config.validation_fraction, config.seed, config.data)

    @classmethod
    @abstractmethod
    def decided(cls, training: Sequence[Example], known: Sequence[str], choices: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the task that its training examples decide, such as the labels.

        `known` are the labels that the model has already, and `choices` the fields that are decided without examples.
        Raises DataError if the examples leave nothing to learn.
        """

    # --- of records -------------------------------------------------------------------------------------------------

    @abstractmethod
    def example(self, record: Record, *, labelled: bool) -> Example:
        """The example of a record, with its right answer if `labelled`. Otherwise labels are not read.

        Raises DataError for a record without the necessary fields.
        """

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The right answer of a labelled example, as `Answers.score` takes it."""

    def classes(self, example: Example) -> Sequence[str]:
        """The names of the labels of a labelled example; empty if the task has no labels."""
        return ()

    def beside(self, example: Example) -> dict[str, Any]:
        """Fields that the run folder stores with the prediction for a validation example, so that people can compare
        them.
        """
        return {}
