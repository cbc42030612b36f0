"""Sequences with columns of labels that are 0 or 1 each, such as which proteins bind to a stretch of DNA.

Files: JSONL or CSV with a `sequence` of bases (or a `text`), and a column for each label, or a list `labels`; or FASTA
with a table of labels (JSONL or CSV) by `id`; or intervals of a genome with such a table, of which windows are read
(`genomes/windows.py`). Columns may be in groups, by a table (JSONL or CSV) with the fields
`column` and `group`, whose scores are given apart.

DNA has two strands, and what is said of one is mostly said of both: training may draw either (`augment_strands`), and
an answer may be the mean of the probabilities for both (`average_strands`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    other_strand,
    read_sequences,
)
from asterism.training.readers.reader import Row
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.baselines import baselines
from asterism.training.tasks.classification import label_fields
from asterism.training.tasks.curves import aucs, known_mean
from asterism.training.tasks.encoding import Encoded, encode
from asterism.training.tasks.scores import Counts
from asterism.training.tasks.task import Feature, Labelling, Logits, NoScoreError, shown

MOST_COUNTED = 10_000
"""Training examples that are read for baselines, evenly spread."""


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Labelling[LabelledSequence]):
    """Which of its columns' labels a sequence has.

    columns          the names of the labels, in the order of the model's outputs
    groups           the group of each column; () for none
    pooling          which token the model answers by, "cls" or "mean"; None leaves it to the model
    positive_weight  how many times as much as a 0 a 1 counts in training
    augment_strands  whether training draws either strand of a sequence of bases
    average_strands  whether an answer is the mean of the probabilities for both strands
    genome           the file or folder whose windows are read, if data are intervals
    window           bases of a window
    """

    architecture: ClassVar[str] = "AutoModelForSequenceClassification"
    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv", "fasta", "intervals")
    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")
    on_demand: ClassVar[bool] = True
    usual_weight: ClassVar[float] = 1.0
    """The weight of positives, if the run does not say otherwise."""

    columns: tuple[str, ...]
    groups: tuple[str, ...] = ()
    pooling: str | None = None
    positive_weight: float = 1.0
    augment_strands: bool = False
    average_strands: bool = False
    genome: str | None = None
    window: int = 8000

    # --- examples ---------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Sequence[LabelledSequence]:
        """As `read_for` without a table."""
        return cls._labelled(read_sequences(path, cls.formats, None))

    @classmethod
    def read_for(cls, path: Path, config: FineTuneConfig) -> Sequence[LabelledSequence]:
        """The sequences of a file, or of windows of the genome, with the labels of `label_table` if there is one."""
        if config.genome is not None:
            return cls._windows(path, config)
        return cls._labelled(read_sequences(path, cls.formats, config.label_table))

    @classmethod
    def _labelled(cls, records: Iterator[Record]) -> list[LabelledSequence]:
        examples: list[LabelledSequence] = []
        for record in records:
            columns = examples[0].columns if examples else columns_of(record)
            examples.append(LabelledSequence(record, *letters_of(record), columns, labels_of(record, columns)))
        return examples

    @classmethod
    def _windows(cls, path: Path, config: FineTuneConfig) -> GenomeWindows:
        """Raises DataError for intervals without labels, and for those that are not within their sequences."""
        kind = cls.format(path)
        if kind.name != GenomeIntervals.name:
            raise DataError(
                f"data: {path} must hold intervals of the genome, as {', '.join(GenomeIntervals.suffixes)} do"
            )
        sequences = open_sequences(config.genome or "")
        records = read_all(kind, path)
        require_all(sequences, records)
        table = None if config.label_table is None else LabelTable(config.label_table)
        labelled = records if table is None else [table.row(record) for record in records]
        columns = cls.columns_of(labelled[0])
        labels = np.stack([cls.labels_of(record, columns) for record in labelled])
        return GenomeWindows(sequences, records, config.window, columns, labels)

    @classmethod
    def columns_of(cls, record: Record) -> tuple[str, ...]:
        """The names of the columns that a labelled record has."""
        if not set(record.fields) - {*FIELDS, *NOT_LABELS}:
            raise DataError(f"{record.place}: an interval has no labels of its own; give a label_table")
        return columns_of(record)

    @classmethod
    def labels_of(cls, record: Record, columns: Sequence[str]) -> np.ndarray:
        """The labels of a record in these columns: uint8 of 0 and 1."""
        return labels_of(record, columns)

    @cached_property
    def sequences(self) -> Sequences:
        """Those of the genome. Raises DataError if there is none."""
        if self.genome is None:
            raise DataError("data: intervals need a genome, and this run has none; give sequences")
        return open_sequences(self.genome)

    def letters(self, record: Record) -> tuple[str, bool]:
        """The sequence of a record, its window, or its text; and whether it is one of bases. Raises DataError."""
        if "chromosome" in record.fields and "sequence" not in record.fields:
            return window_letters(self.sequences, interval_of(record), self.window), True
        return letters_of(record)

    @classmethod
    def files(cls, config: FineTuneConfig) -> tuple[str | None, ...]:
        return *super().files(config), config.label_table, config.column_groups, config.genome

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The settings that are its fields, and the table of groups."""
        weight = cls.usual_weight if config.positive_weight is None else config.positive_weight
        named = {} if config.column_groups is None else read_groups(Path(config.column_groups))
        return {**super().choices(config, model, tokenizer), "positive_weight": weight, "named_groups": named}

    @classmethod
    def of(
        cls,
        examples: Sequence[LabelledSequence],
        *,
        length: int,
        known: Sequence[str] = (),
        named_groups: Mapping[str, str] | None = None,
        **choices: Any,
    ) -> Self:
        """With the columns of the first example, and the group of each. Raises DataError for one without a group."""
        columns = examples[0].columns
        if named_groups and (lacking := [name for name in columns if name not in named_groups]):
            raise DataError(f"column_groups: {len(lacking):,} columns have no group, such as {lacking[0]!r}")
        groups = tuple(named_groups[name] for name in columns) if named_groups else cls.usual_groups(columns)
        return cls(columns=columns, groups=groups, length=length, **choices)

    @classmethod
    def usual_groups(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """The groups of columns that no table puts into one."""
        return ()

    def example(self, record: Record, *, labelled: bool) -> LabelledSequence:
        """Its sequence, and if `labelled` its columns."""
        labels = self.labels_of(record, self.columns) if labelled else None
        return LabelledSequence(record, *self.letters(record), self.columns, labels)

    def gold(self, example: LabelledSequence) -> Any:
        """The label of each column, by its name."""
        return dict(zip(self.columns, self._known(example).tolist(), strict=True))

    def _known(self, example: LabelledSequence) -> np.ndarray:
        if example.columns != self.columns or example.labels is None:
            odd = sorted(set(example.columns) ^ set(self.columns))[:1] or ["their order"]
            raise DataError(
                f"{example.record.place}: has {len(example.columns):,} columns of labels, the training data"
                f" {len(self.columns):,}; they differ in {odd[0]}"
            )
        return example.labels

    # --- rows -------------------------------------------------------------------------------------------------------

    def model_fields(self) -> dict[str, Any]:
        """The columns, which loss, and which token they are read from."""
        pooling = {} if self.pooling is None else {"classifier_pooling": self.pooling}
        return {**label_fields(self.columns), "problem_type": "multi_label_classification", **pooling}

    @property
    def weight_of_positives(self) -> float:
        return self.positive_weight

    def encoded(self, examples: Sequence[LabelledSequence], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The letters of each."""
        return encode([one.letters for one in examples], tokenizer, most=self.length if self.reading.cuts else None)

    def feature(self, example: LabelledSequence, encoded: Encoded, row: Row) -> Feature:
        """The target is a list of 0.0 and 1.0, one per column."""
        target = None if example.labels is None else self._known(example).astype(np.float32)
        return Feature(encoded.row(row), target, row=row)

    def features(
        self, examples: Sequence[LabelledSequence], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """One row of each, or one of each strand."""
        for example in examples:
            strands = [example, self._reversed(example)] if self.average_strands else [example]
            yield [feature for (feature,) in super().features(strands, tokenizer)]

    def drawn(
        self, example: LabelledSequence, tokenizer: PreTrainedTokenizerFast, random: np.random.Generator
    ) -> Feature:
        """Of either strand, where training draws them."""
        if self.augment_strands and random.integers(2):
            example = self._reversed(example)
        ((feature,),) = super().features([example], tokenizer)
        return feature

    @staticmethod
    def _reversed(example: LabelledSequence) -> LabelledSequence:
        if not example.of_bases:
            raise DataError(
                f"{example.record.place}: a text has no other strand: leave augment_strands and"
                " average_strands out, or give a `sequence` of bases"
            )
        return replace(example, letters=other_strand(example.letters))

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: float32 [B, columns]."""
        return {"labels": torch.from_numpy(np.stack([feature.target for feature in features]))}

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        return "auc"

    @property
    def answer(self) -> str:
        return "probabilities"

    def predict(self, example: LabelledSequence, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`labels`, the columns more likely than not; `probabilities` of all."""
        probabilities = dict(zip(self.columns, map(shown, self._probabilities(said)), strict=True))
        return {"labels": [name for name, one in probabilities.items() if one > 0.5], "probabilities": probabilities}

    @staticmethod
    def _probabilities(said: Sequence[Logits]) -> list[float]:
        """Of each column, the mean over the strands."""
        logits = torch.from_numpy(np.stack([one[0] for one in said])).double()
        probabilities: list[float] = logits.sigmoid().mean(0).tolist()
        return probabilities

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`auc`, the mean over the columns; `auc_GROUP` of each group; `micro_f1`; and the share of columns scored.

        A column without a 0, or without a 1, has no area, and is left out. Raises DataError if all are.
        """
        scores, labels = self._matrix(predicted), self._matrix(there) > 0
        each = aucs(scores, labels)
        mean = known_mean(each)
        if mean is None:
            raise self._no_area(len(there))
        by_group = {group: self._of_group(each, group) for group in dict.fromkeys(self.groups)}
        found = Counts(int((scores > 0.5).sum()), int(labels.sum()), int(((scores > 0.5) & labels).sum()))
        return {
            "auc": mean,
            **{f"auc_{group}": one for group, one in by_group.items() if one is not None},
            "micro_f1": found.f1,
            "columns_scored": sum(one is not None for one in each) / len(each),
        }

    def _no_area(self, examples: int) -> NoScoreError:
        return NoScoreError(
            f"none of the {len(self.columns):,} columns has both a 0 and a 1 among the {examples:,} examples that"
            " are scored: there is no area under a curve; score more of them"
        )

    def require_scores(self, examples: Sequence[LabelledSequence]) -> None:
        seen = np.zeros((2, len(self.columns)), dtype=bool)
        for example in examples:
            labels = self._known(example) > 0
            seen |= [~labels, labels]
            if seen.all(0).any():
                return
        raise self._no_area(len(examples))

    def baselines(
        self, training: Sequence[LabelledSequence], scored: Sequence[LabelledSequence]
    ) -> dict[str, dict[str, float]]:
        """The frequencies of the columns, and a regression on counted words or bases."""
        examples = list(training[:: max(1, len(training) // MOST_COUNTED)])
        there = [self.gold(one) for one in scored]
        return baselines(
            [(one.letters, self._known(one).astype(np.float64)) for one in examples],
            [one.letters for one in scored],
            lambda found: self.score([self._as_answer(row) for row in found], there),
            of_bases=all(one.of_bases for one in examples),
        )

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
        """The scores, and the area of each column; those that are left out are named. None for a single column."""
        if len(self.columns) == 1:
            return None
        labels = np.stack([self._known(one) for one in examples]) > 0
        each = aucs(self._matrix([one[self.answer] for one in predictions]), labels)
        lines = [f"# {len(examples):,} examples, {len(self.columns):,} columns", ""]
        lines += [f"- {name}: {value:.4f}" for name, value in scores.items()]
        lines += ["", "| column | group | positives | AUC |", "|---|---|---|---|"]
        groups = self.groups or ("",) * len(self.columns)
        for name, group, positives, area in zip(self.columns, groups, labels.sum(0).tolist(), each, strict=True):
            lines.append(f"| {name} | {group} | {positives:,} | {'left out' if area is None else f'{area:.4f}'} |")
        return "\n".join([*lines, ""])


def read_groups(path: Path) -> dict[str, str]:
    """The group of each column. Raises DataError for a column that stands there twice."""
    groups: dict[str, str] = {}
    for record in read_records(path, ("jsonl", "csv")):
        column = record.text("column")
        if column in groups:
            raise record.error("column", f"{column!r} has a group already")
        groups[column] = record.text("group")
    return groups
