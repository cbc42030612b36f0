"""Chromatin profiles: which of hundreds of experiments found a signal at a position of the genome.

As in DeepSEA (Zhou and Troyanskaya 2015) and BigBird (Zaheer 2020, section 5 and appendix F): 919 columns, 690 of them
transcription factors (TF), 125 DNase I sites (DHS) and 104 marks of histones (HM), whose areas under the curve are also
given for each group; a 1 counts 8 times as much as a 0.

Data: arrays in DeepSEA's layout (`data/records/deepsea.py`); or whatever `multilabel` reads, such as bins in BED, a
genome, of which 8,000 bases around each bin are read, and a table of labels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from asterism.training.data.records.deepsea import GROUPS, SUFFIXES, read_deepsea
from asterism.training.data.records.sequences import LabelledSequence
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.kinds.multilabel import ColumnAnswers, ColumnExamples, SequenceRows
from asterism.training.tasks.task import Kind


class ChromatinExamples(ColumnExamples):
    """Columns in DeepSEA's groups, if their number is the same."""

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[LabelledSequence]:
        """Read arrays one example at a time."""
        if path.suffix.lower() in SUFFIXES:
            return read_deepsea(path)
        return super().read(path, config)

    @classmethod
    def usual_groups(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """Those of DeepSEA for 919 columns, which stand in its order."""
        if len(columns) != sum(GROUPS.values()):
            return ()
        return tuple(group for group, size in GROUPS.items() for _ in range(size))


class ChromatinAnswers(ColumnAnswers):
    """Answers whose positives weigh 8 in training."""

    usual_weight: ClassVar[float] = 8.0


CHROMATIN = Kind("chromatin", ChromatinExamples, SequenceRows, ChromatinAnswers)
