"""Sequences with columns of labels that are 0 or 1 each, such as which proteins bind to a stretch of DNA.

Files: JSONL or CSV with a `sequence` of bases (or a `text`), and a column for each label, or a list `labels`; or FASTA
with a table of labels (JSONL or CSV) by `id`; or intervals of a genome with such a table, of which windows are read
(`data/records/genome_windows.py`). Columns may be in groups, by a table (JSONL or CSV) with the fields
`column` and `group`, whose scores are given apart.

DNA has two strands, and most labels hold for both. Training may draw either strand (`augment_strands`), and an answer
may be the mean of the probabilities for both (`average_strands`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.genomes.sequences import Sequences, open_sequences
from asterism.training.data.records.formats import GenomeIntervals, read_all, read_records
from asterism.training.data.records.genome_windows import (
    FIELDS,
    GenomeWindows,
    interval_of,
    require_all,
    window_letters,
)
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import (
    NOT_LABELS,
    LabelledSequence,
    LabelTable,
    columns_of,
    labels_of,
    letters_of,
    read_sequences,
)
from asterism.training.readers.reader import Row
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.answers import Logits, NoScoreError, ReadAnswers, shown
from asterism.training.tasks.encoding import Encoded, encode
from asterism.training.tasks.examples import Examples
from asterism.training.tasks.kinds.classification import label_fields
from asterism.training.tasks.rows import DrawnRows, Feature
from asterism.training.tasks.scores.baselines import baselines
from asterism.training.tasks.scores.curves import aucs, known_mean
from asterism.training.tasks.scores.labels import Counts
from asterism.training.tasks.task import Kind

MOST_COUNTED = 10_000
"""The most training examples that baselines read, evenly spread."""


@dataclass(frozen=True, kw_only=True)
class SequenceExamples(Examples[LabelledSequence]):
    """Sequences with columns of labels.

    columns  the names of the labels, in the order of the model's outputs
    genome   the file or folder whose windows are read, if data are intervals
    window   bases of a window
    """

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv", "fasta", "intervals")

    columns: tuple[str, ...]
    genome: str | None = None
    window: int = 8000

    @classmethod
    def files(cls, config: FineTuneConfig) -> tuple[str | None, ...]:
        return *super().files(config), config.label_table, config.column_groups, config.genome

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[LabelledSequence]:
        """The sequences of a file, or of windows of the genome, with the labels of `label_table` if there is one."""
        return super().read(path, config) if config.genome is None else cls._windows(path, config)

    @classmethod
    def records(cls, path: Path, config: FineTuneConfig) -> list[Record]:
        return list(read_sequences(path, cls.formats, config.label_table))

    @classmethod
    def like(cls, record: Record) -> Self:
        """Of the columns of the record. Raises DataError for one without any."""
        if "chromosome" in record.fields and not set(record.fields) - {*FIELDS, *NOT_LABELS}:
            raise DataError(
                "labels-in-table", f"{record.place}: an interval has no labels of its own; give a label_table"
            )
        return cls(columns=columns_of(record))

    @classmethod
    def _windows(cls, path: Path, config: FineTuneConfig) -> GenomeWindows:
        """Raises DataError for intervals without labels, and for those that are not within their sequences."""
        kind = cls.format(path)
        if kind.name != GenomeIntervals.name:
            raise DataError(
                "not-intervals",
                f"data: {path} must hold intervals of the genome, as {', '.join(GenomeIntervals.suffixes)} do",
            )
        sequences = open_sequences(config.genome or "")
        records = read_all(kind, path)
        require_all(sequences, records)
        table = None if config.label_table is None else LabelTable(config.label_table)
        labelled = records if table is None else [table.row(record) for record in records]
        columns = cls.like(labelled[0]).columns
        labels = np.stack([cls.labels_of(record, columns) for record in labelled])
        return GenomeWindows(sequences, records, config.window, columns, labels)

    @classmethod
    def labels_of(cls, record: Record, columns: Sequence[str]) -> np.ndarray:
        """The labels of a record in these columns: uint8 of 0 and 1."""
        return labels_of(record, columns)

    @classmethod
    def decided(
        cls, training: Sequence[LabelledSequence], known: Sequence[str], choices: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The columns, which are those of the first example."""
        return {"columns": training[0].columns}

    def example(self, record: Record, *, labelled: bool) -> LabelledSequence:
        """The sequence, and its columns if `labelled`."""
        letters, of_bases = self._letters(record)
        labels = self.labels_of(record, self.columns) if labelled else None
        return LabelledSequence(record, letters, of_bases, self.columns, labels)

    def _letters(self, record: Record) -> tuple[str, bool]:
        """The sequence of a record, its window, or its text; and whether it is one of bases. Raises DataError."""
        if "chromosome" in record.fields and "sequence" not in record.fields:
            return window_letters(self._sequences, interval_of(record), self.window), True
        return letters_of(record)

    @cached_property
    def _sequences(self) -> Sequences:
        """Those of the genome. Raises DataError if there is none."""
        if self.genome is None:
            raise DataError(
                "genome-missing", "data: intervals need a genome, but this run has no sequences; give sequences"
            )
        return open_sequences(self.genome)


class ColumnExamples(SequenceExamples):
    """Sequences with any number of columns. Each column is scored, and columns may be in groups."""

    @classmethod
    def divided(cls, config: FineTuneConfig) -> tuple[Sequence[LabelledSequence], Sequence[LabelledSequence]]:
        """Divide the examples. Raises NoScoreError for validation examples without a score: now, and not after
        training.
        """
        training, validation = super().divided(config)
        columns = training[0].columns
        seen = np.zeros((2, len(columns)), dtype=bool)
        reported = config.at_the_end.of(validation)
        for example in reported:
            labels = example.labels_in(columns) > 0
            seen |= [~labels, labels]
            if seen.all(0).any():
                return training, validation
        raise _no_area(len(columns), len(reported))

    @classmethod
    def decided(
        cls, training: Sequence[LabelledSequence], known: Sequence[str], choices: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The columns, and the group of each, which the choice of `groups` says by name.

        Raises DataError for a column without a group, where others have one.
        """
        found = super().decided(training, known, choices)
        groups: Mapping[str, str] = choices.get("groups", {})
        if groups and (lacking := [name for name in found["columns"] if name not in groups]):
            raise DataError(
                "columns-without-group",
                f"column_groups: {len(lacking):,} columns, such as {lacking[0]!r}, have no group",
            )
        named = tuple(groups[name] for name in found["columns"]) if groups else cls.usual_groups(found["columns"])
        return {**found, "groups": named}

    @classmethod
    def usual_groups(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """The groups of columns that no table puts into one."""
        return ()

    def gold(self, example: LabelledSequence) -> Any:
        """The label of each column, by its name."""
        return dict(zip(self.columns, example.labels_in(self.columns).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class SequenceRows(DrawnRows[LabelledSequence]):
    """Rows of the letters of sequences.

    columns          the names of the labels, in the order of the model's outputs
    augment_strands  whether training draws either strand of a sequence of bases
    average_strands  whether an answer is the mean of the probabilities for both strands
    """

    columns: tuple[str, ...]
    augment_strands: bool = False
    average_strands: bool = False

    def encoded(self, examples: Sequence[LabelledSequence], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The letters of each."""
        return encode([one.letters for one in examples], tokenizer, most=self.most)

    def feature(self, example: LabelledSequence, encoded: Encoded, row: Row) -> Feature:
        """The target is a list of 0.0 and 1.0, one per column."""
        target = None if example.labels is None else example.labels_in(self.columns).astype(np.float32)
        return Feature(encoded.row(row), target, row=row)

    def features(
        self, examples: Sequence[LabelledSequence], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """One row of each, or one of each strand."""
        for example in examples:
            strands = [example, example.reversed] if self.average_strands else [example]
            yield [feature for (feature,) in super().features(strands, tokenizer)]

    def drawn(
        self, example: LabelledSequence, tokenizer: PreTrainedTokenizerFast, random: np.random.Generator
    ) -> Feature:
        """Of either strand, where training draws them."""
        one = example.reversed if self.augment_strands and random.integers(2) else example
        ((feature,),) = super().features([one], tokenizer)
        return feature

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: float32 [B, columns]."""
        return {"labels": torch.from_numpy(np.stack([feature.target for feature in features]))}


@dataclass(frozen=True, kw_only=True)
class SequenceAnswers(ReadAnswers[LabelledSequence]):
    """Answers that are the probabilities of the columns.

    columns          the names of the labels, in the order of the model's outputs
    groups           the group of each column; () for none
    pooling          which token the model answers by, "cls" or "mean"; None leaves it to the model
    positive_weight  how many times as much as a 0 a 1 counts in training
    """

    architecture: ClassVar[str] = "AutoModelForSequenceClassification"
    usual_weight: ClassVar[float] = 1.0
    """The weight of positives, if the run does not say otherwise."""

    columns: tuple[str, ...]
    groups: tuple[str, ...] = ()
    pooling: str | None = None
    positive_weight: float = 1.0

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The weight of positives."""
        return {"positive_weight": cls.usual_weight if config.positive_weight is None else config.positive_weight}

    def model_fields(self) -> dict[str, Any]:
        """The columns, which loss, and which token they are read from."""
        pooling = {} if self.pooling is None else {"classifier_pooling": self.pooling}
        return {**label_fields(self.columns), "problem_type": "multi_label_classification", **pooling}

    @staticmethod
    def probabilities(said: Sequence[Logits]) -> list[float]:
        """Of each column, the mean over the strands, given the logits [columns] of each, float32."""
        logits = torch.from_numpy(np.stack([one[0] for one in said])).double()
        probabilities: list[float] = logits.sigmoid().mean(0).tolist()
        return probabilities

    def baselines(
        self, training: Sequence[LabelledSequence], scored: Sequence[LabelledSequence], there: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """The frequencies of the columns, and a regression on counted words or bases."""
        examples = list(training[:: max(1, len(training) // MOST_COUNTED)])
        return baselines(
            [(one.letters, one.labels_in(self.columns).astype(np.float64)) for one in examples],
            [one.letters for one in scored],
            lambda found: self.score([self._as_answer(row) for row in found], there),
            of_bases=all(one.of_bases for one in examples),
        )

    @abstractmethod
    def _as_answer(self, probabilities: np.ndarray) -> Any:
        """Probabilities of the columns as `score` takes them."""


class ColumnAnswers(SequenceAnswers):
    """Answers that are the columns whose label is 1."""

    metric: ClassVar[str] = "auc"
    answer: ClassVar[str] = "probabilities"

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The weight of positives, and the table of groups."""
        groups = {} if config.column_groups is None else read_groups(Path(config.column_groups))
        return {**super().choices(config, model, tokenizer), "groups": groups}

    def predict(self, example: LabelledSequence, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`labels` are the columns more likely than not; `probabilities` holds those of all columns."""
        probabilities = dict(zip(self.columns, map(shown, self.probabilities(said)), strict=True))
        return {"labels": [name for name, one in probabilities.items() if one > 0.5], "probabilities": probabilities}

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`auc`, the mean over the columns; `auc_GROUP` of each group; `micro_f1`; and the share of columns scored.

        A column without a 0 or without a 1 has no area and is left out. Raises DataError if all columns are left out.
        """
        scores, labels = self._matrix(predicted), self._matrix(there) > 0
        each = aucs(scores, labels)
        mean = known_mean(each)
        if mean is None:
            raise _no_area(len(self.columns), len(there))
        by_group = {group: self._of_group(each, group) for group in dict.fromkeys(self.groups)}
        found = Counts(int((scores > 0.5).sum()), int(labels.sum()), int(((scores > 0.5) & labels).sum()))
        return {
            "auc": mean,
            **{f"auc_{group}": one for group, one in by_group.items() if one is not None},
            "micro_f1": found.f1,
            "columns_scored": sum(one is not None for one in each) / len(each),
        }

    def _as_answer(self, probabilities: np.ndarray) -> Any:
        """Probabilities of the columns as `score` takes them."""
        return dict(zip(self.columns, probabilities.tolist(), strict=True))

    def _of_group(self, each: Sequence[float | None], group: str) -> float | None:
        return known_mean([one for one, own in zip(each, self.groups, strict=True) if own == group])

    def _matrix(self, rows: Sequence[Mapping[str, float]]) -> np.ndarray:
        """float64 [n, columns]."""
        return np.array([[row[name] for name in self.columns] for row in rows], dtype=np.float64)

    def page(
        self,
        scores: Mapping[str, float],
        examples: Sequence[LabelledSequence],
        predictions: Sequence[Mapping[str, Any]],
    ) -> str | None:
        """The scores, the area of each column, and the names of those left out. None for a single column."""
        if len(self.columns) == 1:
            return None
        labels = np.stack([one.labels_in(self.columns) for one in examples]) > 0
        each = aucs(self._matrix([one[self.answer] for one in predictions]), labels)
        lines = [f"# {len(examples):,} examples, {len(self.columns):,} columns", ""]
        lines += [f"- {name}: {value:.4f}" for name, value in scores.items()]
        lines += ["", "| column | group | positives | AUC |", "|---|---|---|---|"]
        groups = self.groups or ("",) * len(self.columns)
        for name, group, positives, area in zip(self.columns, groups, labels.sum(0).tolist(), each, strict=True):
            lines.append(f"| {name} | {group} | {positives:,} | {'left out' if area is None else f'{area:.4f}'} |")
        return "\n".join([*lines, ""])


MULTILABEL = Kind("multilabel", ColumnExamples, SequenceRows, ColumnAnswers)


def read_groups(path: Path) -> dict[str, str]:
    """Read the group of each column. Raises DataError for a column that is listed twice."""
    groups: dict[str, str] = {}
    for record in read_records(path, ("jsonl", "csv")):
        column = record.text("column")
        if column in groups:
            raise record.error("column", f"{column!r} has a group already")
        groups[column] = record.text("group")
    return groups


def _no_area(columns: int, examples: int) -> NoScoreError:
    return NoScoreError(
        "no-contrast",
        f"none of the {columns:,} columns has both a 0 and a 1 among the {examples:,} examples that are scored, so no"
        " area under a curve exists; score more of them",
    )
