"""The common part of objectives that read rows cut from a split once: masked rows, and pairs of input and target.

A row is read by its index and its own generator. In training the generator is a function of (seed, step, place). In
evaluations it is a function of the index alone, so metrics use the same rows in every run.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import ConfigurationError
from asterism.randomness import of_row
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.packing import Epochs
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.objectives.pretraining import Pretraining
from asterism.training.run.arithmetic import arithmetic
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Evaluation, Outcome, Question, refuse_reader

_EVALUATION_SEED = 0


class SplitRows(ABC):
    """The rows of one split.

    count      how many there are
    tokens     how many tokens the split has
    documents  how many documents it has
    """

    count: int
    tokens: int
    documents: int

    def record(self) -> dict[str, int]:
        """The facts about the split in run.json besides its bytes."""
        return {"tokens": self.tokens, "documents": self.documents}


Kind = TypeVar("Kind", bound=SplitRows)


class RowCorpus(Corpus[np.ndarray], Generic[Kind]):
    """The data of a run: the rows of two splits, and the order in which training reads them."""

    unit: ClassVar[str] = "tokens"

    def __init__(self, corpus: Splits, train: Kind, validation: Kind, seed: int) -> None:
        self.corpus = corpus
        self.name, self.sha256, self.notes = corpus.name, corpus.sha256, corpus.notes
        self.train, self.validation = train, validation
        self.epochs = Epochs(train.count, seed)

    def length(self, split: Split) -> int:
        return {"train": self.train, "validation": self.validation}[split].tokens

    def draw(self, step: int, count: int) -> np.ndarray:
        """Indices of rows, int64 [count]. Every row is read once before any is read again."""
        return self.epochs.draw(step * count, count)

    def record(self) -> dict[str, Any]:
        """Name, hash, and the sizes of each split that is used."""
        splits: dict[Split, Kind] = {"train": self.train, "validation": self.validation}
        sizes: dict[str, Any] = {
            name: {"bytes": self.corpus.length(name), **rows.record()} for name, rows in splits.items()
        }
        return {"name": self.name, "sha256": self.sha256, **sizes}


class RowObjective(Pretraining[RowCorpus[Kind]], Generic[Kind]):
    """An objective that reads rows of tokens.

    rows_are    what its rows are called, in the plural
    no_minimum  why a minimum context makes no sense: what the model does
    """

    unit: str = "tokens"
    rows_are: ClassVar[str] = "rows"
    no_minimum: ClassVar[str]
    tokenizer: PreTrainedTokenizerBase

    # --- what each of them says -------------------------------------------------------------------------------------

    @abstractmethod
    def splits(self, data: str | None) -> Splits:
        """Read the corpus at a path. Raises DataError if it cannot be used."""

    @abstractmethod
    def rows(self, corpus: Splits, split: Split) -> Kind:
        """The rows of a split. Raises DataError if there are none."""

    @abstractmethod
    def read(self, rows: Kind, numbers: np.ndarray, random: Sequence[np.random.Generator]) -> dict[str, torch.Tensor]:
        """The rows with these indices, int64 [B]; each row draws from its own generator."""

    @abstractmethod
    def measured(self, model: PreTrainedModel, rows: Kind, numbers: range, evaluator: Evaluator) -> dict[str, float]:
        """The metrics of the rows of these numbers, read as `read_scored` does."""

    @abstractmethod
    def samples(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
        """What the model makes of one row, [1, ...] each on the model's device, for people to see how it learns.

        All processes of a run compute it together, each the whole row.
        """

    # --- what is the same for all -----------------------------------------------------------------------------------

    def batch(self, corpus: RowCorpus[Kind], step: int) -> dict[str, torch.Tensor]:
        """Rows of the training split as `read` gives them."""
        count = self.config.batch_size
        random = [of_row(self.config.seed, step, place) for place in range(count)]
        return self.read(corpus.train, corpus.draw(step, count), random)

    def read_scored(self, rows: Kind, numbers: np.ndarray) -> dict[str, torch.Tensor]:
        """The rows with these indices, int64 [B], as every evaluation reads them."""
        return self.read(rows, numbers, [of_row(_EVALUATION_SEED, 0, number) for number in numbers.tolist()])

    def evaluate(self, model: PreTrainedModel, corpus: RowCorpus[Kind], evaluator: Evaluator) -> Outcome:
        rows, budget = corpus.validation, evaluator.budget
        numbers = range(rows.count)[budget.part(rows.count, corpus.corpus.length("validation"))]
        metrics = self.measured(model, rows, numbers, evaluator)
        first = {name: one.to(model.device) for name, one in self.read_scored(rows, np.array([0])).items()}
        with torch.no_grad(), arithmetic(self.config.dtype, model.device):
            samples = self.samples(model, first)
        notes = self.reported(budget, len(numbers), rows.count, self.rows_are)
        return Outcome(metrics, samples=samples, notes=notes)

    def answer(self, model: PreTrainedModel, question: Question, trained_on: str, evaluator: Evaluator) -> Evaluation:
        refuse_reader(question)
        if any(question.minimum_context):
            raise ConfigurationError("minimum-context-rows", f"minimum context: this model {self.no_minimum}")
        corpus, split = self.splits(question.data or self.config.data), question.split or "validation"
        rows = self.rows(corpus, split)
        numbers = range(rows.count)[evaluator.budget.part(rows.count, corpus.length(split))]
        found = self.measured(model, rows, numbers, evaluator)
        figures = {metric.name: metric.of(found) for metric in self.metrics}
        return Evaluation(
            corpus=corpus.name,
            corpus_sha256=corpus.sha256,
            is_training_corpus=corpus.sha256 == trained_on,
            figures={"split": split, **figures},
            text=self.describe(figures, f"the {split} split of {corpus.name}"),
        )
