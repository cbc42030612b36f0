"""What a task is: three values, each of which does its part without the others.

    record -> example -> features -> model -> what it says -> prediction -> scores
     `Examples`          `ExampleRows`                       `Answers`

A `Kind` names the three classes. A `Task` is a kind with all that was decided about it, by the settings of a run, the
model, and the training examples. These are the fields of the three values, by their names: a field of several of them,
such as the labels, is one and the same in all. They are JSON, so a run keeps them, and a finished run is asked without
its training examples.
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
    """One kind of question about documents: what its messages call it, and the classes of the three parts."""

    name: str
    examples: type[Examples[Example]]
    rows: type[ExampleRows[Example]]
    answers: type[Answers[Example]]

    @property
    def fields(self) -> dict[str, Field[Any]]:
        """The fields of its tasks that JSON can hold, by name; `scorer` is kept apart, and is none of them."""
        parts: tuple[Any, ...] = (self.rows, self.examples, self.answers)
        return {one.name: one for part in parts for one in fields(part) if one.name != "scorer"}

    def choices(
        self, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The fields that are settled before any example is read: settings of the run, or of those and the model.

        Raises ConfigurationError for a model or a tokenizer that the task has no use for, and for a package that is
        missing and scores the answers: before hours of work, not after.
        """
        self.require_scorer()
        shared = self.fields.keys() & {one.name for one in fields(config)} - {"length"}
        return {name: getattr(config, name) for name in shared} | self.answers.choices(config, model, tokenizer)

    def require_scorer(self) -> None:
        """Raises ConfigurationError if a package is missing that scores answers."""
        if self.answers.package is not None:
            require_package(*self.answers.package, "seq2seq", "scoring")

    def of(self, training: Sequence[Example], *, known: Sequence[str] = (), **choices: Any) -> "Task[Example]":
        """The task that training examples set, given the other fields.

        The model may have labels already, those `known`. Raises DataError if the examples leave nothing to decide.
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
        """The inverse of `Task.record`. Raises TypeError for one that is not that of such a task."""
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
    """One task: its kind, and the three values that do it. It is immutable."""

    kind: Kind[Example]
    examples: Examples[Example]
    rows: ExampleRows[Example]
    answers: Answers[Example]

    def record(self) -> dict[str, Any]:
        """All that decides what is asked of a model and that JSON can hold, by the names of the fields."""
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
