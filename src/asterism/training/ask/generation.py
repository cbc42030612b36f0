"""Files that a model makes: sequences that are new, that continue a file, or that complete held-out pieces.

    from asterism.training import generate_file
    generate_file("runs/cifar", "sheet.png", Wanted(complete=16))

The modality decides how values become a file. The objective decides which token precedes them and how they are drawn.
The files are written when all sequences are drawn. Until then, `drawn.py` stores the sequences next to them.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from asterism.errors import CheckpointError, ConfigurationError, nearest, shown
from asterism.quiet import quiet_transformers
from asterism.randomness import derive, isolated
from asterism.training.ask.drawn import Drawn
from asterism.training.ask.prediction_output import output_path
from asterism.training.data.corpora.modality import Modality
from asterism.training.data.corpora.windows import FIRST_CLASS
from asterism.training.objectives.causal import refuse_labels
from asterism.training.pipeline import Run, open_run
from asterism.training.run.progress import Display, clock, make_display, rate
from asterism.training.settings.configuration import RunConfig
from asterism.training.settings.sampling import Sampling

AT_ONCE = 16
"""The number of sequences drawn together. It is a constant, so that the seed alone decides what is drawn."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be generated.

    prompt    a file that is continued; None for sequences that are new
    complete  how many pieces of the test split are completed, evenly spread over it
    keep      the share of a file or piece that the model is given; by default as the modality has it, or half of a
              piece
    count     how many sequences are made for each prompt, piece or label
    length    how many values are added, where sequences may have any length; by default as many as the context holds
    labels    classes, as numbers or names, of models that know of some; by default those of the pieces, or one after
              the other
    data      where the test split is; by default where the run's data are
    """

    prompt: str | None = None
    complete: int | None = None
    keep: float | None = None
    count: int = 1
    length: int | None = None
    labels: Sequence[str] = ()
    data: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("complete", self.complete), ("length", self.length)):
            if value is not None and value < 1:
                raise ConfigurationError("at-least-one", f"generation: {name}={value!r} must be at least 1")
        if self.keep is not None and not 0 <= self.keep <= 1:
            raise ConfigurationError("share-range", f"generation: keep={self.keep!r} must be from 0 to 1")
        if self.prompt is not None and self.complete is not None:
            raise ConfigurationError(
                "continue-or-complete", "generation: got both prompt and complete; give one of them"
            )
        if self.keep is not None and self.prompt is None and self.complete is None:
            raise ConfigurationError("keep-needs-prompt", "generation: keep needs prompt or complete")
        if self.data is not None and self.complete is None:
            raise ConfigurationError(
                "data-needs-complete", "generation: data needs complete, the number of its pieces to complete"
            )


@dataclass(frozen=True, kw_only=True)
class GenerationReport:
    """The result: the files, the number of sequences, the number of values drawn for them, and the time it took.

    `unit` names a value. `values_before` values were drawn before a stop. `milliseconds_per_value` divides the time by
    the other values, of up to AT_ONCE sequences together. `is_training_corpus` says whether completed pieces are from
    the run's data; it is None if no pieces were completed.
    """

    run: str
    files: tuple[str, ...]
    sequences: int
    values: int
    values_before: int
    unit: str
    seconds: float
    milliseconds_per_value: float
    seed: int
    is_training_corpus: bool | None

    def __str__(self) -> str:
        other = "\nthe data are not those that the run was trained on" if self.is_training_corpus is False else ""
        before = f", {self.values_before:,} were there before" if self.values_before else ""
        return (
            f"{self.values:,} {self.unit} of {self.sequences:,} sequence{'s' * (self.sequences != 1)} in"
            f" {clock(self.seconds)} ({self.milliseconds_per_value:.3g} ms each){before}\n"
            f"saved in {', '.join(self.files)}{other}"
        )


@dataclass(frozen=True, eq=False)
class _Job:
    """One sequence to draw: the given values, the class, the number of values to add, and its origin."""

    given: np.ndarray
    label: int | None
    length: int
    original: np.ndarray | None = None


def generate_file(
    run: Run | str | Path,
    output: str | Path,
    wanted: Wanted,
    how: Sampling | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
) -> GenerationReport:
    """Draw sequences from a run, or the run in a folder, and write them as files of their modality.

    With `resume`, an unfinished output is continued. Sequences drawn before the stop are not drawn again, and the files
    are identical, byte for byte, to those of an uninterrupted run.

    Raises CheckpointError for an output that exists, cannot be written, or was begun without `resume`, by another run,
    or with other settings. Raises ConfigurationError for settings that cannot work and for a run that does not
    generate, and DataError for a prompt or pieces that cannot be read.
    """
    how = how or Sampling()
    path = output_path(output)
    _require_new(path)
    with closing(make_display(progress)) as display:
        display.doing("loading the model")
        opened = run if isinstance(run, Run) else open_run(run)
    config, objective = opened.config, opened.objective
    if not isinstance(config, RunConfig):
        raise ConfigurationError(
            "makes-no-files", f"generate: a model fine-tuned for a task generates no files; {objective.instead}"
        )
    if opened.tokenizer is not None:
        raise ConfigurationError(
            "output-of-tokens",
            f"generate: {opened.folder.path} has a tokenizer and writes text, not files: leave --output out, and"
            " redirect the standard output",
        )
    modality = config.reads()
    modality.refuse_output(path)
    jobs, is_training_corpus = _Request(config, opened.record, wanted).jobs()
    began = time.monotonic()
    values = sum(job.length for job in jobs)
    with (
        closing(Drawn(path, _settings(opened, wanted, jobs, how), resume=resume)) as kept,
        closing(make_display(progress)) as display,
        quiet_transformers(),
    ):
        display.doing("drawing")
        watch = _Watch(display, values, modality.unit)
        drawn = list(_drawn(opened, modality, jobs, how, watch, kept))
        seconds = time.monotonic() - began
        files = _written(modality, jobs, drawn, wanted.count, path)
        kept.remove()
    return GenerationReport(
        run=str(opened.folder.path),
        files=tuple(str(file) for file in files),
        sequences=len(jobs),
        values=values,
        values_before=values - watch.values,
        unit=modality.unit,
        seconds=round(seconds, 3),
        milliseconds_per_value=round(1000 * seconds / max(1, watch.values), 4),
        seed=how.seed,
        is_training_corpus=is_training_corpus,
    )


def _require_new(path: Path) -> None:
    """Raise CheckpointError for a path that exists (except an empty file) or whose folder does not."""
    empty = path.is_file() and not path.is_symlink() and not path.stat().st_size
    if os.path.lexists(path) and not empty:
        raise CheckpointError("output-exists", f"output: {path} exists; choose another name")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        reason = "cannot be written to" if path.parent.is_dir() else "is no folder"
        raise CheckpointError(
            "output-folder", f"output: {path.parent} {reason}; name a file in a folder that you can write to"
        )


# --- what is drawn ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """What is wanted of a run of this configuration, whose run.json says `record`."""

    config: RunConfig
    record: dict[str, Any]
    wanted: Wanted

    @property
    def modality(self) -> Modality:
        return self.config.reads()

    def jobs(self) -> tuple[list[_Job], bool | None]:
        """The sequences to draw, `count` of each kind together, and whether their originals are from the run's data."""
        wanted, modality = self.wanted, self.modality
        if modality.sequence_length is not None and wanted.length is not None:
            raise ConfigurationError(
                "sequence-length",
                f"generation: length={wanted.length}: a sequence of {modality} has {modality.sequence_length:,}"
                f" {modality.unit}, and is always generated whole",
            )
        labels = self.labels()
        each: list[int | None] = [*labels] or [None]
        if wanted.complete is not None:
            return self.completions(wanted.complete, labels)
        if wanted.prompt is not None:
            if modality.classes is not None and not labels:
                raise ConfigurationError(
                    "prompt-needs-class", "generation: this model has classes: give the class of the prompt with label"
                )
            original = modality.read_prompt(Path(wanted.prompt))
            one_each = [self.continued(original, label, wanted.keep) for label in each]
            return [job for job in one_each for _ in range(wanted.count)], None
        new, length = np.zeros(0, dtype=np.uint8), self.length(0)
        if modality.classes is not None and not labels:
            return [_Job(new, number % modality.classes, length) for number in range(wanted.count)], None
        return [_Job(new, label, length) for label in each for _ in range(wanted.count)], None

    def completions(self, asked: int, labels: Sequence[int]) -> tuple[list[_Job], bool]:
        """Pieces of the test split, evenly spread over it."""
        if len(labels) > 1:
            raise ConfigurationError(
                "labels-said-twice",
                "generation: complete takes at most one label, for all pieces; without one, each piece keeps its own",
            )
        splits = self.modality.splits(self.wanted.data or self.config.data)
        pieces = splits.require("test", self.config.context)
        if not labels:
            refuse_labels(splits.name, pieces, self.modality.classes)
        there = len(pieces.bounds) - 1
        if asked > there:
            raise ConfigurationError(
                "too-few-pieces",
                f"generation: complete={asked}: the test split of {splits.name} has {there:,}"
                f" piece{'s' * (there != 1)}",
            )
        keep = 0.5 if self.wanted.keep is None else self.wanted.keep
        jobs = []
        for piece in np.linspace(0, there - 1, asked).astype(np.int64).tolist():
            own = None if pieces.labels is None else int(pieces.labels[piece])
            begin, end = pieces.bounds[piece : piece + 2].tolist()
            original = pieces.read(begin, min(end, begin + self.config.context))
            jobs += [self.continued(original, labels[0] if labels else own, keep)] * self.wanted.count
        return jobs, splits.sha256 == self.record["corpus"]["sha256"]

    def continued(self, original: np.ndarray, label: int | None, keep: float | None) -> _Job:
        """A sequence that begins like another one. If that one is not given whole, it is completed."""
        kept = self.modality.kept(len(original), keep)
        if kept == len(original):
            return _Job(original, label, self.length(kept))
        return _Job(original[:kept], label, self.wanted.length or len(original) - kept, original)

    def length(self, given: int) -> int:
        """The number of values to add to the given ones."""
        if self.wanted.length is not None:
            return self.wanted.length
        length = (self.modality.sequence_length or self.config.context) - given
        if length < 1:
            raise ConfigurationError(
                "prompt-too-long",
                f"generation: got {given:,} {self.modality.unit}, but the context of the run is"
                f" {self.config.context:,}: lower keep, or give length, how many to add",
            )
        return length

    def labels(self) -> list[int]:
        """The numbers of classes, which are given as numbers or by the names that the run's data have for them."""
        if not self.wanted.labels:
            return []
        if self.modality.classes is None:
            raise ConfigurationError("no-classes", f"generation: labels: the model of {self.modality} has no classes")
        names = self.record["corpus"].get("classes", [])
        return [_class(one, names, self.modality.classes) for one in self.wanted.labels]


def _class(label: str, names: Sequence[str], classes: int) -> int:
    """The number of a class."""
    is_number = label.isdecimal() and len(label) < 10
    number = names.index(label) if label in names else int(label) if is_number else -1
    if not 0 <= number < classes:
        known = f"names are {', '.join(names[:20])}" if names else "this run's data has no names for them"
        raise ConfigurationError(
            "unknown-class",
            f"generation: unknown label {shown(label)}: numbers are 0 to {classes - 1},"
            f" {known}.{nearest(label, names)}",
        )
    return number


# --- drawing ---------------------------------------------------------------------------------------------------------


def _settings(run: Run, wanted: Wanted, jobs: Sequence[_Job], how: Sampling) -> dict[str, Any]:
    """Everything that decides what is drawn and how the files look."""
    given = hashlib.sha256()
    for job in jobs:
        for values in (job.given, job.given if job.original is None else job.original):
            given.update(hashlib.sha256(values.tobytes()).digest())
        given.update(f"{job.label} {job.length};".encode())
    return {
        "model": run.folder.weights_digest(),
        **asdict(wanted),
        "labels": list(wanted.labels),
        "given": given.hexdigest(),
        **asdict(how),
        "dtype": run.config.dtype,
        "device": run.model.device.type,
    }


def _drawn(
    run: Run, modality: Modality, jobs: Sequence[_Job], how: Sampling, watch: "_Watch", kept: Drawn
) -> Iterator[np.ndarray]:
    """The complete sequences. Those of equal length are drawn together, unless they are stored already."""
    for number, batch in enumerate(_batches(jobs)):
        values = kept.batch(len(batch), batch[0].length)
        if values is None:
            values = _values(run, modality, batch, number, how, watch)
            kept.add(values)
        else:
            watch.leave_out(values.size)
        for job, row in zip(batch, values, strict=True):
            yield np.concatenate([job.given, row])


def _values(
    run: Run, modality: Modality, batch: Sequence[_Job], number: int, how: Sampling, watch: "_Watch"
) -> np.ndarray:
    """The new values of each sequence of a batch: uint8 [sequences, values]."""
    starts = torch.tensor(np.stack([_start(modality, job) for job in batch]))
    watch.expect(len(batch))
    with isolated(derive(how.seed, number)):
        arguments = how.arguments(batch[0].length) | {"stopping_criteria": StoppingCriteriaList([watch])}
        return run.objective.continued(run.model, starts, arguments).numpy().astype(np.uint8)


def _batches(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Runs of jobs of one shape, at most AT_ONCE each."""
    for _, same in groupby(jobs, key=lambda job: (len(job.given), job.length)):
        run = list(same)
        yield from (run[at : at + AT_ONCE] for at in range(0, len(run), AT_ONCE))


def _start(modality: Modality, job: _Job) -> np.ndarray:
    """The model's first input, int64. A given stream is continued; everything else starts at a beginning."""
    first = [] if modality.is_stream and len(job.given) else [0 if job.label is None else FIRST_CLASS + job.label]
    return np.concatenate([np.array(first, dtype=np.int64), job.given.astype(np.int64)])


class _Watch(StoppingCriteria):
    """Shows the progress of drawing. It never stops it."""

    def __init__(self, display: Display, values: int, unit: str) -> None:
        self.display, self.values, self.unit = display, values, unit
        self.rows, self.drawn, self.began = 0, 0, time.monotonic()

    def leave_out(self, values: int) -> None:
        """Note that this many values need not be drawn."""
        self.values -= values

    def expect(self, rows: int) -> None:
        """Note that this many sequences are drawn from now on."""
        self.rows = rows

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        self.drawn += self.rows
        seconds = time.monotonic() - self.began
        self.display.show(_DrawnSoFar(self.drawn, self.values, self.unit, seconds))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]


@dataclass(frozen=True)
class _DrawnSoFar:
    """The progress of drawing: `drawn` of `values` values, after `seconds` seconds."""

    drawn: int
    values: int
    unit: str
    seconds: float

    @property
    def fraction(self) -> float:
        return self.drawn / self.values

    def __str__(self) -> str:
        left = self.seconds * (self.values - self.drawn) / self.drawn
        speed = rate(self.drawn / max(self.seconds, 1e-9))
        return f"{self.drawn:,} of {self.values:,} {self.unit}  {speed} {self.unit}/s  {clock(left)} left"


# --- writing ---------------------------------------------------------------------------------------------------------


def _written(
    modality: Modality, jobs: Sequence[_Job], drawn: Sequence[np.ndarray], count: int, path: Path
) -> list[Path]:
    """Write the sequences as files; completions stand next to their originals."""
    originals = [job.original for job in jobs[::count]]
    if any(original is None for original in originals):
        return modality.write(drawn, path)
    return modality.write_completions(
        [original for original in originals if original is not None],
        [len(job.given) for job in jobs[::count]],
        [drawn[at : at + count] for at in range(0, len(drawn), count)],
        path,
    )
