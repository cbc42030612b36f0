"""The definition of a task: three values that work independently of each other.

    record -> example -> features -> model -> what it says -> prediction -> scores
     `Examples`          `ExampleRows`                       `Answers`

A `Kind` names the three classes. A `Task` is a kind with everything that the settings of a run, the model and the
training examples decided about it. These decisions are the fields of the three values, by name. A field of several
values, such as the labels, is the same in all. The fields are JSON and stored with the run, so a finished run can
predict without its training examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Generic, Union, get_args, get_origin

from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from asterism.errors import ConfigurationError
from asterism.presence import require_package
from asterism.training.readers.text import parse_reader
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.answers import Answers
from asterism.training.tasks.examples import Example, Examples
from asterism.training.tasks.rows import ExampleRows


@dataclass(frozen=True)
class Kind(Generic[Example]):
    """One kind of task: its name in messages, and the classes of its three parts."""

    name: str
    examples: type[Examples[Example]]
    rows: type[ExampleRows[Example]]
    answers: type[Answers[Example]]

    @property
    def fields(self) -> dict[str, Field[Any]]:
        """The fields of its tasks that JSON can hold, by name. `scorer` is stored separately and is not one of them."""
        parts: tuple[Any, ...] = (self.rows, self.examples, self.answers)
        return {one.name: one for part in parts for one in fields(part) if one.name != "scorer"}

    def choices(
        self, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The fields that are decided before any example is read, by the settings of the run and the model.

        Raises ConfigurationError for a model or a tokenizer that the task cannot use. It also does so for a missing
        package that scores the answers: before hours of work, not after.
        """
        self.require_scorer()
        shared = self.fields.keys() & {one.name for one in fields(config)} - {"length"}
        return {name: getattr(config, name) for name in shared} | self.answers.choices(config, model, tokenizer)

    def require_scorer(self) -> None:
        """Raise ConfigurationError if a package that scores answers is missing."""
        if self.answers.package is not None:
            require_package(*self.answers.package, "seq2seq", "scoring")

    def of(self, training: Sequence[Example], *, known: Sequence[str] = (), **choices: Any) -> "Task[Example]":
        """The task that the training examples decide, given the other fields.

        `known` are the labels that the model has already. Raises DataError if the examples leave nothing to decide.
        """
        return self.task(**choices | self.examples.decided(training, known, choices))

    def task(self, **values: Any) -> "Task[Example]":
        """The task with these fields. Raises ConfigurationError for a reader that it cannot use."""
        reading = parse_reader(values.get("reader", "cut()"))
        if reading.name not in self.rows.readers:
            allowed = ", ".join(self.rows.readers)
            raise ConfigurationError(
                "reader-unsuitable", f"reader: {reading} cannot be used for {self.name}; choose {allowed}"
            )
        values["reader"] = str(reading.settled(self.answers.pools))
        if odd := values.keys() - self.fields.keys() - {"scorer"}:
            raise TypeError(f"{self.name} has no field {min(odd)}")
        return Task(self, *(_part(kind, values) for kind in (self.examples, self.rows, self.answers)))

    def from_record(self, record: Mapping[str, Any]) -> "Task[Example]":
        """The inverse of `Task.record`. Raises TypeError for a record that does not belong to this kind."""
        known = self.fields
        needed = {name for name, one in known.items() if one.default is MISSING}
        if not needed <= record.keys() <= known.keys():
            raise TypeError(f"its fields must be {', '.join(sorted(known))}, there are {', '.join(sorted(record))}")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
        for name, value in values.items():
            if not _fits(value, known[name].type):
                raise TypeError(f"{name} is {value!r:.60}")
        return self.task(**values)


@dataclass(frozen=True)
class Task(Generic[Example]):
    """One task: its kind and its three values. It is immutable."""

    kind: Kind[Example]
    examples: Examples[Example]
    rows: ExampleRows[Example]
    answers: Answers[Example]

    def record(self) -> dict[str, Any]:
        """Everything that decides the predictions and that JSON can hold, by field name."""
        values = {**vars(self.answers), **vars(self.examples), **vars(self.rows)}
        return {name: values[name] for name in self.kind.fields}

    def changed(self, **changes: Any) -> "Task[Example]":
        """The task with other values of some fields. Raises ConfigurationError as `Kind.task` does."""
        return self.kind.task(**{**self.record(), "scorer": self.rows.scorer, **changes})


def _part(kind: Any, values: Mapping[str, Any]) -> Any:
    """One of the three values, of the values of its own fields."""
    return kind(**{one.name: values[one.name] for one in fields(kind) if one.name in values})


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
