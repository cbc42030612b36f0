"""How files become examples of a task, and what is the right answer to each.

    files -> records -> examples to train on, and others to score

Which labels there are, or which columns, is decided by the examples to train on. The class reads files and decides; a
value of it is what was decided, and makes examples of single records ever after, without the training data.
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
    """The examples of a kind of task: a frozen dataclass of what JSON can hold."""

    formats: ClassVar[tuple[str, ...]]
    """The formats that they come in, names of `data.records.formats.FORMATS`."""

    # --- from files -------------------------------------------------------------------------------------------------

    @classmethod
    def format(cls, path: str | Path, asked: str | None = None) -> Format:
        """The format of a file, as `format_of` finds it among those of the task."""
        return format_of(path, cls.formats, asked)

    @classmethod
    def files(cls, config: FineTuneConfig) -> tuple[str | None, ...]:
        """The files that the examples of a run are of: their bytes are the identity of the data."""
        return config.data, config.validation

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[Example]:
        """The labelled examples of a file, read as the settings say. Raises DataError for anything that is not one."""
        records = cls.records(path, config)
        examples = cls.like(records[0])
        return [examples.example(record, labelled=True) for record in records]

    @classmethod
    def records(cls, path: Path, config: FineTuneConfig) -> list[Record]:
        """The records of a file, one at least. Raises DataError for what cannot be read."""
        return read_all(cls.format(path), path)

    @classmethod
    def like(cls, record: Record) -> Self:
        """The value that makes examples of labelled records like this one, the first of a file."""
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

        The model may have labels already, those `known`; `choices` are the fields that are settled without examples.
        Raises DataError if the examples leave nothing to learn.
        """

    # --- of records -------------------------------------------------------------------------------------------------

    @abstractmethod
    def example(self, record: Record, *, labelled: bool) -> Example:
        """What a record asks, and if `labelled` what the right answer is; else labels are not looked at.

        Raises DataError for a record that does not say it.
        """

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """The right answer of a labelled example, as `Answers.score` takes it."""

    def classes(self, example: Example) -> Sequence[str]:
        """The names of the labels of a labelled example; none where the task has no such labels."""
        return ()

    def beside(self, example: Example) -> dict[str, Any]:
        """What the run folder keeps with the prediction for a validation example, for people to compare."""
        return {}
