"""Predict with a fine-tuned run, in Python or from file to file.

    from asterism.training import open_run, predict
    run = open_run("runs/reviews")
    for row in predict(run, [{"text": "a fine book"}]): ...

Rows come back unchanged and in order, followed by the fields of the prediction, which begin with "predicted_". Labels
of rows are passed through. They are read only to compute scores.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from asterism.errors import ConfigurationError, DataError
from asterism.training.ask.prediction_output import PredictionOutput, output_path, refuse_existing
from asterism.training.data.records.formats import FORMATS, Format, refuse_present
from asterism.training.data.records.record import Record, Source, source_of
from asterism.training.pipeline import Run, open_run
from asterism.training.run.progress import Display, clock, make_display, rate
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.comparison import baselines_of, notes_on_sameness, score_lines
from asterism.training.tasks.predictor import Predictor, as_fields
from asterism.training.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class PredictionReport:
    """The result of `predict_file`: rows of the output, how many of them existed before, and the seconds of this call.

    `scores` are those of all rows, or None if not requested. With them come the name of the score to judge by, the same
    scores of `baselines` without a model, by name, and `notes`, one line each. `output` is None for standard output.
    """

    run: str
    data: str
    output: str | None
    rows: int
    rows_before: int
    seconds: float
    scores: dict[str, float] | None
    metric: str | None = None
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        new = self.rows - self.rows_before
        before = f", {self.rows_before:,} were there before" if self.rows_before else ""
        speed = f"{rate(new / self.seconds)} per second" if self.seconds else "at once"
        where = "" if self.output is None else f"; saved in {self.output}"
        line = f"{_counted(new)} in {clock(self.seconds)} ({speed}){before}{where}"
        return "\n".join([line, *score_lines(self.metric or "", self.scores or {}, self.baselines, self.notes)])


@dataclass(frozen=True)
class _Moment:
    """Progress: `rows` predictions since the call began, and `read` of `size` bytes of the input. `read_before` bytes
    were finished before. Some formats read the whole input before the first prediction: how many are left is then
    unknown until the call `is_over`.
    """

    rows: int
    seconds: float
    read: int
    read_before: int
    size: int | None
    is_over: bool = False

    @property
    def fraction(self) -> float | None:
        return self.read / self.size if self.size and (self.is_over or self.read < self.size) else None

    def __str__(self) -> str:
        speed = self.rows / self.seconds if self.seconds else 0.0
        left = ""
        if self.size and self.fraction is not None and self.read > self.read_before:
            left = f"  {clock(self.seconds * (self.size - self.read) / (self.read - self.read_before))} left"
        return f"{_counted(self.rows)}  {rate(speed)} per second{left}"


def _counted(rows: int) -> str:
    return f"{rows:,} prediction{'' if rows == 1 else 's'}"


def predict(
    run: Run | str | Path,
    rows: Iterable[Mapping[str, Any]],
    *,
    batch_size: int | None = None,
    reader: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the same rows with their predictions, in order and on demand.

    `run` is a run or its folder. `rows` are read on demand, some batches at a time. Each has the fields that the run's
    task reads, such as `text`, `tokens`, or `context` and `question`. `batch_size` examples are computed together, by
    default as many as in training. `reader` says how long documents are read, by default as in training.

    Raises ConfigurationError for a run that cannot predict. Raises DataError at the first row that cannot be used,
    after the predictions for all rows before it.
    """
    return _predicted(_predictor(_opened(run), batch_size, reader), rows)


def _predicted(predictor: Predictor, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for example, prediction in predictor.ask(_record(number, row) for number, row in enumerate(rows)):
        fields = as_fields(prediction)
        refuse_present(example.record, fields)
        yield {**example.record.fields, **fields}


def _record(number: int, row: Any) -> Record:
    if not isinstance(row, Mapping):
        raise DataError(
            "not-a-mapping", f"rows[{number}]: must be a mapping of fields, such as a dict, got {type(row).__name__}"
        )
    return Record(f"rows[{number}]", dict(row))


def _refuse_other_suffix(output: Path | None, kind: Format) -> None:
    """Raise ConfigurationError if the suffix of a name is that of CSV or JSONL but another format is written."""
    written, tables = kind.written_format, [FORMATS["csv"], FORMATS["jsonl"]]
    suffix = "" if output is None else output.suffix.lower()
    if suffix not in written.suffixes and any(suffix in one.suffixes for one in tables):
        raise ConfigurationError(
            "output-format",
            f"output: {output}: predictions for {kind.name} data are written as {written.name}; the name must end in"
            f" {written.suffixes[0]}",
        )


def predict_file(
    run: Run | str | Path,
    data: str | Path,
    *,
    output: str | Path | None = None,
    format: str | None = None,
    batch_size: int | None = None,
    reader: str | None = None,
    resume: bool = False,
    score: bool = False,
    progress: bool = True,
) -> PredictionReport:
    """Write the records of a file ("-" is standard input) with predictions to another, or to standard output.

    `format` is a name of `data.formats.FORMATS`; None means by the suffix. `batch_size` and `reader` are by default
    those of training. With `resume`, an unfinished output is continued. The finished file is identical, byte for byte,
    to that of an uninterrupted call. With `score`, every record must have its labels.

    Raises CheckpointError for an output that exists, or that belongs to another input, run or settings. Raises
    DataError at the first record that cannot be used, after those before it are written, and ConfigurationError for a
    run that cannot predict.
    """
    path = None if output is None else output_path(output)
    if not resume:
        refuse_existing(path)
    with closing(make_display(progress)) as display:
        display.doing("loading the model")
        opened = _opened(run)
    predictor = _predictor(opened, batch_size, reader)
    kind = predictor.task.examples.format(data, format)
    _refuse_other_suffix(path, kind)
    source = source_of(data)
    settings = {**_settings(opened, predictor), "format": kind.name}
    with closing(PredictionOutput(path, settings, kind)) as out, closing(make_display(progress)) as display:
        display.doing("reading the unfinished output" if resume else "predicting")
        records = kind.read(source)
        scoring = _Scoring(predictor.task) if score else None
        again = _catch_up(out, records, source.name, predictor.buffered, scoring) if resume else []
        before, show, began = out.rows, _shown(display, out, source), time.monotonic()
        if resume:
            display.doing("predicting")
        answers = predictor.ask(chain(again, records), labelled=score)
        for number, (example, prediction) in enumerate(answers, start=1):
            if number > len(again):
                fields = as_fields(prediction)
                refuse_present(example.record, fields)
                out.write(example.record, fields)
                if scoring is not None:
                    answer = kind.kept(prediction[predictor.task.answers.answer])
                    scoring.add(example, answer, prediction.get("label", answer))
            if number % predictor.buffered == 0:
                out.flush()
                show(False)
        if not out.rows:
            raise DataError("no-records", f"data: {source.name} holds no record")
        out.finish()
        if out.rows - before >= predictor.buffered and source.size:
            show(True)
        seconds = time.monotonic() - began
        display.doing("scoring, also without a model")
        scored = {"scores": None} if scoring is None else scoring.report(opened)
        return PredictionReport(
            run=str(opened.folder.path),
            data=source.name,
            output=None if path is None else str(path),
            rows=out.rows,
            rows_before=before,
            seconds=round(seconds, 3),
            **scored,
        )


def _shown(display: Display, out: PredictionOutput, source: Source) -> Callable[[bool], None]:
    """Shows how far predictions are that begin now; the argument says whether they are over."""
    before, read_before, began = out.rows, source.position, time.monotonic()

    def show(is_over: bool) -> None:
        seconds = time.monotonic() - began
        display.show(_Moment(out.rows - before, seconds, source.position, read_before, source.size, is_over))

    return show


class _Scoring:
    """Collects labelled examples and the model's answers to them."""

    def __init__(self, task: Task[Any]) -> None:
        task.kind.require_scorer()
        self.task = task
        self.examples: list[Any] = []
        self.predicted: list[Any] = []
        self.said: list[Any] = []
        self.there: list[Any] = []

    def add(self, example: Any, answer: Any, said: Any) -> None:
        """Add one: the answer that is scored, and what the model says in words, such as a probability's label."""
        self.examples.append(example)
        self.predicted.append(answer)
        self.said.append(said)
        self.there.append(self.task.examples.gold(example))

    def add_written(self, kind: Format, written: Record, record: Record) -> None:
        """Add one whose prediction stands in a row that was written before."""
        example = self.task.examples.example(record, labelled=True)
        (answer,), (label,) = as_fields({self.task.answers.answer: None}), as_fields({"label": None})
        found = kind.written_value(written, answer, like=self.task.examples.gold(example))
        self.add(example, found, written.fields.get(label, found))

    def report(self, run: Run) -> dict[str, Any]:
        """The scores of all of them, and what they are compared with: fields of a `PredictionReport`."""
        config = run.config
        assert isinstance(config, FineTuneConfig)  # no others predict
        scores = self.task.answers.score(self.predicted, self.there)
        found, notes = baselines_of(self.task, config, run.record["corpus"]["sha256"], self.examples, self.there)
        notes += notes_on_sameness(self.said, self.there)
        return {"scores": scores, "metric": self.task.answers.metric, "baselines": found, "notes": notes}


def _catch_up(
    out: PredictionOutput, records: Iterator[Record], name: str, buffered: int, scoring: _Scoring | None
) -> list[Record]:
    """Skip the records that are written already.

    Returns the last of them. These are computed again but not written, because the records that share a buffer with
    them depend on them.
    """
    again: list[Record] = []
    for written, record in out.matched(records, name):
        if scoring is not None:
            scoring.add_written(out.format, written, record)
        again.append(record)
        if len(again) == buffered:
            again.clear()
    return again


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def _predictor(run: Run, batch_size: int | None, reader: str | None) -> Predictor:
    if batch_size is not None and batch_size < 1:
        raise ConfigurationError("batch-size", f"batch size must be at least 1, got {batch_size}")
    return run.objective.predictor(run.model, batch_size, reader)


def _settings(run: Run, predictor: Predictor) -> dict[str, Any]:
    """Everything that decides predictions besides the rows."""
    return {
        "model": run.folder.weights_digest(),
        "reader": predictor.task.rows.reader,
        "length": predictor.task.rows.length,
        "task": json.loads(json.dumps(predictor.task.record())),
        "dtype": predictor.dtype,
        "batch_size": predictor.batch_size,
        "device": predictor.model.device.type,
    }
