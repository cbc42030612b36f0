"""Promoters: decide whether a sequence of bases is one.

Files: FASTA, or lines, of promoters alone, for which negatives are made; or sequences with a label, yes or no: FASTA
with a table of `id` and `label`, JSONL or CSV with `sequence` and `label`; or intervals of a genome whose names are yes
or no, or that a table labels by their names.

Negatives are made as DeePromoter (Oubounyt 2019) and BigBird (Zaheer 2020, appendix F) make them: a promoter is cut
into 20 pieces of like length, 12 of them, chosen at random, become random bases, and 8 stay where they are. So a
negative keeps two fifths of the promoter; what replaces the rest has all bases equally often, which promoters have not,
so counts of short words alone tell many of them apart. It is a function of the seed and the promoter's letters, and
stands on the same side as the promoter: files are divided before negatives are made. A promoter that stands in a file
twice counts once.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from asterism.errors import DataError
from asterism.randomness import derive
from asterism.training.data.records.held_out import held_out
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import LabelledSequence
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.answers import Logits, shown
from asterism.training.tasks.kinds.multilabel import SequenceAnswers, SequenceExamples, SequenceRows
from asterism.training.tasks.rows import Feature
from asterism.training.tasks.scores.curves import auc
from asterism.training.tasks.scores.labels import Counts
from asterism.training.tasks.task import Kind

PIECES, REPLACED = 20, 12
COLUMN = "promoter"
WORDS = {"yes": 1, "no": 0, "1": 1, "0": 0, "true": 1, "false": 0}
"""What a label can be, in any case of letters; a number or a truth value of JSON stands for its word."""


class PromoterExamples(SequenceExamples):
    """Promoters, and sequences that are not."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv", "fasta", "sequences", "intervals")

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[LabelledSequence]:
        """Read labelled sequences as they are, or promoters, each followed by its negative."""
        if config.genome is not None:
            return super().read(path, config)
        return with_negatives(cls._read(path, config), config.seed)

    @classmethod
    def divided(cls, config: FineTuneConfig) -> tuple[Sequence[Any], Sequence[Any]]:
        """A promoter and its negative are in the same split."""
        if config.validation is not None or config.genome is not None:
            return super().divided(config)
        sides = held_out(cls._read(Path(config.data), config), config.validation_fraction, config.seed, config.data)
        training, validation = (with_negatives(list(side), config.seed) for side in sides)
        return training, validation

    @classmethod
    def _read(cls, path: Path, config: FineTuneConfig) -> list[LabelledSequence]:
        """Sequences with their labels; promoters alone with none, each once."""
        labelled = config.label_table is not None or cls.format(path).name in ("jsonl", "csv")
        records = cls.records(path, config)
        examples = [cls.like(record).example(record, labelled=labelled) for record in records]
        for one in examples:
            if not one.of_bases:
                raise one.record.error("sequence", "is missing: promoters are sequences of bases")
        return examples if labelled else list({one.letters: one for one in examples}.values())

    @classmethod
    def like(cls, record: Record) -> Self:
        """Of the one column."""
        return cls(columns=(COLUMN,))

    @classmethod
    def labels_of(cls, record: Record, columns: Sequence[str]) -> np.ndarray:
        """The `label` of a record, or the name of an interval: uint8 [1]."""
        field = "id" if "chromosome" in record.fields and "label" not in record.fields else "label"
        value = str(record.get(field)).strip().lower()
        if value not in WORDS:
            raise record.error(field, f"must be yes or no, got {record.get(field)!r:.40}")
        return np.array([WORDS[value]], dtype=np.uint8)

    def gold(self, example: LabelledSequence) -> Any:
        """ "yes" or "no"."""
        return _word(bool(example.labels_in(self.columns)[0]))


class PromoterAnswers(SequenceAnswers):
    """Answers that are yes or no: one column, so the model has one output."""

    metric: ClassVar[str] = "f1"
    answer: ClassVar[str] = "probability"

    def predict(self, example: LabelledSequence, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`label` is "yes" if that is more likely than not; `probability` is that of "yes"."""
        (probability,) = map(shown, self.probabilities(said))
        return {"label": _word(probability > 0.5), "probability": probability}

    def _as_answer(self, probabilities: np.ndarray) -> Any:
        return float(probabilities[0])

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """F1, precision and recall of yes; the share of right answers; the area under the curve if there are both."""
        scores = np.array([float(one) for one in predicted])
        right = np.array([one == "yes" for one in there])
        said = scores > 0.5
        found = Counts(int(said.sum()), int(right.sum()), int((said & right).sum()))
        area = auc(scores, right)
        return {
            "f1": found.f1,
            "precision": found.precision,
            "recall": found.recall,
            "accuracy": float((said == right).mean()),
            **({} if area is None else {"auc": area}),
        }


PROMOTER = Kind("promoter", PromoterExamples, SequenceRows, PromoterAnswers)


def with_negatives(examples: Sequence[LabelledSequence], seed: int) -> list[LabelledSequence]:
    """Labelled examples as they are; behind each promoter without a label its negative."""
    return [one for example in examples for one in _pair(example, seed)]


def _pair(example: LabelledSequence, seed: int) -> Iterator[LabelledSequence]:
    if example.labels is not None:
        yield example
        return
    if len(example.letters) < PIECES:
        raise DataError(
            "sequence-too-short",
            f"{example.record.place}: has {len(example.letters)} bases; a negative is made from {PIECES} pieces of a"
            f" promoter, so at least {PIECES} are needed",
        )
    yield replace(example, labels=np.ones(1, dtype=np.uint8))
    yield replace(example, letters=negative(example.letters, seed), labels=np.zeros(1, dtype=np.uint8))


def negative(letters: str, seed: int) -> str:
    """A negative that resembles a promoter: 12 of its 20 pieces are replaced by random bases, and 8 are kept.

    A function of the letters and the seed. Pieces differ in length by one base at most.
    """
    key = int.from_bytes(hashlib.sha256(letters.encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.Philox(derive(seed, key)))
    made = np.frombuffer(letters.encode(), dtype=np.uint8).copy()
    bounds = np.linspace(0, len(made), PIECES + 1).round().astype(np.int64)
    for piece in random.choice(PIECES, REPLACED, replace=False):
        begin, end = bounds[piece : piece + 2]
        made[begin:end] = np.frombuffer(b"ACGT", dtype=np.uint8)[random.integers(4, size=end - begin)]
    return made.tobytes().decode()


def _word(is_one: bool) -> str:
    return "yes" if is_one else "no"
