"""The results of evaluations: metrics, each declared once, and the two values that hold them, for people and as JSON.

objective.evaluate --> Outcome --> history.jsonl, and at the end of a run its Report
objective.answer   --> Evaluation
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from asterism.errors import ConfigurationError
from asterism.training.data.corpora.splits import Split


@dataclass(frozen=True)
class Metric:
    """One figure that an objective measures.

    name             what evaluations call it
    label            what it is, with its unit, for people
    in_report        what reports call it; by default its name
    is_count         whether it is a whole number
    lower_is_better  whether less of it is better, for what a run is judged by
    """

    name: str
    label: str
    in_report: str | None = None
    is_count: bool = False
    lower_is_better: bool = True

    @property
    def reported(self) -> str:
        """The name of the metric in reports."""
        return self.in_report or self.name

    def of(self, metrics: Mapping[str, Any]) -> Any:
        """The value of the metric among measured ones, or None if it was not measured."""
        value = metrics.get(self.name)
        return int(value) if self.is_count and value is not None else value


@dataclass(frozen=True, kw_only=True)
class ScoredFigures:
    """Measured `figures` by name, which are also attributes, and the same as `text` for people."""

    figures: dict[str, Any]
    text: str

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["figures"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Everything but the text, in one flat object."""
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("figures", "text")} | values["figures"]


@dataclass(frozen=True, kw_only=True)
class Evaluation(ScoredFigures):
    """The scores of a model on data. `is_training_corpus` says whether the data are, by their hash, those of its run.

    The figures are the objective's metrics, by their names, and on which part of the data they were measured.
    """

    corpus: str
    corpus_sha256: str
    is_training_corpus: bool


@dataclass(frozen=True, kw_only=True)
class Report(ScoredFigures):
    """The report of a finished run: an evaluation of its model on the validation split, and the facts of the run.

    minutes  training time, evaluations on the way included, the last one not
    notes    what a user should know, one line each
    figures  what was trained on, and the metrics, by the names that reports have for them
    """

    folder: str
    recipe: str
    parameters: int
    steps: int
    minutes: float
    corpus: str
    corpus_sha256: str
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        size = f"{self.parameters:,} parameters, {self.steps:,} steps in {self.minutes:.1f} minutes"
        return f"{self.text}\n{size}\nsaved in {self.folder}"

    @classmethod
    def from_json(cls, values: Mapping[str, Any], text: str) -> "Report":
        """The inverse of `as_json`. Raises TypeError for values that are not those of a report."""
        facts = {one.name for one in fields(cls)}
        figures = {name: value for name, value in values.items() if name not in facts}
        return cls(**{name: values[name] for name in facts & values.keys()}, figures=figures, text=text)


@dataclass(frozen=True)
class Outcome:
    """The result of an evaluation during a run or at its end.

    metrics      what was measured, by name
    predictions  if there are any, one per example
    page         for people to read, in Markdown: what was measured, and some examples
    samples      what the model wrote, for people to see how it learns: `text`, and `prompt`, `expected` or `record`
    notes        what a user should know about it, one line each
    """

    metrics: dict[str, float]
    predictions: Sequence[Mapping[str, Any]] | None = None
    page: str | None = None
    samples: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request to score a finished run: the data (None: its own), and how they are read.

    Settings that an objective does not use must have their defaults; it refuses other values.
    """

    data: str | None = None
    split: Split | None = None
    minimum_context: tuple[int, ...] = (0,)
    reader: str | None = None


def refuse_reader(question: Question) -> None:
    """Raise ConfigurationError if a reader is given for a model that does not use readers."""
    if question.reader is not None:
        raise ConfigurationError(
            "reader-needs-task", "reader: only a model that was fine-tuned for a task takes a reader"
        )
