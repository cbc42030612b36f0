"""Pretraining encoder-decoders: a part of a text is left out of what the encoder reads, and the decoder writes it.

What is left out, and how, is the objective's (`span_corruption.py`, `gap_sentences.py`); the rest stands here. Metrics
are in nats per token of the target, of pairs that are the same in every run: those of text r of a split are a function
of r.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import ConfigurationError, DataError
from asterism.labels import IGNORED
from asterism.models import AsterismConfig, AsterismForConditionalGeneration
from asterism.randomness import of_row
from asterism.training.data.corpora.bytes import load_documents
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.packing import Epochs
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import Needs, Vocabulary, end_of, load_tokenizer, vocabulary
from asterism.training.objectives.pretraining import Pretraining, first_rows
from asterism.training.run.arithmetic import arithmetic, wide
from asterism.training.run.objective import Evaluation, Metric, Outcome, Question, Report, refuse_reader
from asterism.training.run.processes import ALONE, Processes
from asterism.training.settings.configuration import RunConfig

_EVALUATION_SEED = 0


@dataclass(frozen=True, kw_only=True)
class DenoisingReport(Report):
    """What a finished run came to, on `target_tokens` tokens that were left out of the validation split.

    The loss is in nats per token of the target.
    """

    tokens_trained: int
    target_tokens: int
    validation_target_loss: float
    validation_target_accuracy: float

    def __str__(self) -> str:
        return _describe(
            f"validation: {self.target_tokens:,} tokens that were left out",
            self.validation_target_loss,
            self.validation_target_accuracy,
        )


@dataclass(frozen=True, kw_only=True)
class DenoisingEvaluation(Evaluation):
    """Metrics of a model on `target_tokens` tokens that were left out, in nats per token and as a share."""

    split: str
    target_tokens: int
    target_loss: float
    target_accuracy: float

    def __str__(self) -> str:
        what = f"{self.target_tokens:,} tokens that were left out of the {self.split} split of {self.corpus}"
        return _describe(what, self.target_loss, self.target_accuracy)


def _describe(what: str, loss: float, accuracy: float) -> str:
    return f"{what}, {loss:.4f} nats each, {accuracy:.1%} right given those before"


class Room(NamedTuple):
    """How many tokens an input and a target may have, the one that ends each included."""

    inputs: int
    targets: int


class Pairs(ABC):
    """The texts of one split, of which parts are left out.

    count      how many pairs there are
    tokens     how many tokens their texts have
    documents  how many documents they are of
    """

    count: int
    tokens: int
    documents: int

    @abstractmethod
    def pair(self, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and target of a text, int64 [tokens] each, without the token that ends them."""


class PairCorpus(Corpus[np.ndarray]):
    """The data of a run: the pairs of two splits, and the order in which training reads them."""

    unit: ClassVar[str] = "tokens"

    def __init__(self, corpus: Splits, train: Pairs, validation: Pairs, seed: int) -> None:
        self.corpus = corpus
        self.name, self.sha256, self.notes = corpus.name, corpus.sha256, corpus.notes
        self.train, self.validation = train, validation
        self.epochs = Epochs(train.count, seed)

    def length(self, split: Split) -> int:
        return {"train": self.train, "validation": self.validation}[split].tokens

    def draw(self, step: int, count: int) -> np.ndarray:
        """The numbers of pairs; every text is read once before any is read again."""
        return self.epochs.draw(step * count, count)

    def record(self) -> dict[str, Any]:
        """Name, hash, and of each split that is used bytes, tokens, documents and pairs."""
        splits: dict[Split, Pairs] = {"train": self.train, "validation": self.validation}
        sizes: dict[str, Any] = {
            name: {
                "bytes": self.corpus.length(name),
                "tokens": pairs.tokens,
                "documents": pairs.documents,
                "pairs": pairs.count,
            }
            for name, pairs in splits.items()
        }
        return {"name": self.name, "sha256": self.sha256} | sizes


class Denoising(Pretraining[PairCorpus]):
    """An encoder-decoder writes what was left out of a text."""

    metric = Metric("target_loss", "nats/target token")
    report_type: ClassVar[type[Report]] = DenoisingReport
    unit: ClassVar[str] = "tokens"
    instead: ClassVar[str] = "score it with `asterism evaluate`, teach it a task with `asterism finetune`"

    tokenizer: PreTrainedTokenizerBase

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.end, self.room = end_of(tokenizer), self.room_of(config)

    @property
    def longest(self) -> tuple[int, ...]:
        """All inputs have one length, and all targets."""
        return self.room

    # --- what each of them says -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def needs(cls, config: RunConfig) -> Needs:
        """The special tokens without which nothing can be left out."""

    @classmethod
    @abstractmethod
    def room_of(cls, config: RunConfig) -> Room:
        """How long inputs and targets may be."""

    @abstractmethod
    def pairs(self, corpus: Splits, split: Split) -> Pairs:
        """The pairs of a split. Raises DataError if there is none."""

    # --- what is the same for all -----------------------------------------------------------------------------------

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        return vocabulary(config.tokenizer if source is None else str(source), cls.needs(config))

    @classmethod
    def foundations(cls, config: RunConfig, own: Path | None = None) -> tuple[Path | None, Vocabulary, AsterismConfig]:
        """Raises ConfigurationError also for a model without a decoder, or with one that is too short for a target."""
        source, known, shape = super().foundations(config, own)
        if shape.decoder_mixers is None:
            raise ConfigurationError(
                f"objective {config.objective} trains an encoder-decoder: give the model a decoder with"
                ' model.decoder_mixers, such as "causal()"'
            )
        reach, needed = shape.decoder_max_position_embeddings or 0, cls.room_of(config).targets
        if shape.positions_end and reach < needed:
            raise ConfigurationError(
                f"model.decoder_max_position_embeddings is {reach:,}, too few for the targets of objective"
                f" {config.objective} with context={config.context:,}: {needed:,}"
            )
        return source, known, shape

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """An encoder-decoder."""
        return AsterismForConditionalGeneration

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        """A batch of so many pairs as long as they can be, all zeros."""
        sizes = {"input_ids": cls.room_of(config).inputs, "labels": cls.room_of(config).targets}
        return {name: torch.zeros(sequences, size, dtype=torch.int64) for name, size in sizes.items()}

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["Denoising", PairCorpus]:
        """The tokenizer is made of the training split, unless it is there."""
        corpus = load_documents(config.data)
        objective = cls(config, vocabulary.made(corpus.documents("train"), config.context))
        train, validation = objective.pairs(corpus, "train"), objective.pairs(corpus, "validation")
        return objective, PairCorpus(corpus, train, validation, config.seed)

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "Denoising":
        """The tokenizer is in the model folder."""
        return cls(config, load_tokenizer(folder, cls.needs(config)))

    def batch(self, corpus: PairCorpus, step: int) -> dict[str, torch.Tensor]:
        """Pairs of the training split as `read` gives them."""
        count = self.config.batch_size
        numbers = corpus.draw(step, count)
        return self.read(corpus.train, numbers, [of_row(self.config.seed, step, place) for place in range(count)])

    def read(self, pairs: Pairs, numbers: np.ndarray, random: Sequence[np.random.Generator]) -> dict[str, torch.Tensor]:
        """The pairs of these numbers, what is random about each drawn from a generator of its own.

        input_ids and attention_mask int64 [pairs, room.inputs], labels int64 [pairs, room.targets]: each is ended, and
        filled up on the right, labels with IGNORED. All batches have one shape, so patterns are compiled once.
        """
        shape = len(numbers), self.room.inputs
        inputs, mask = np.full(shape, self.tokenizer.pad_token_id), np.zeros(shape, dtype=np.int64)
        labels = np.full((len(numbers), self.room.targets), IGNORED)
        for row, (number, generator) in enumerate(zip(numbers.tolist(), random, strict=True)):
            read, wanted = pairs.pair(number, generator)
            inputs[row, : len(read) + 1] = [*read, self.end]
            mask[row, : len(read) + 1] = 1
            labels[row, : len(wanted) + 1] = [*wanted, self.end]
        columns = {"input_ids": inputs, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(column.astype(np.int64)) for name, column in columns.items()}

    def training_metrics(self, loss: float) -> dict[str, float]:
        """The loss is that of the tokens that were left out."""
        return {"target_loss": loss}

    def evaluate(
        self, model: PreTrainedModel, corpus: PairCorpus, *, sample: bool = False, processes: Processes = ALONE
    ) -> Outcome:
        """Metrics of the pairs of the first `report_bytes` of the validation split, or of pairs spread evenly over
        `evaluation_bytes` of it."""
        count, size = corpus.validation.count, corpus.corpus.length("validation")
        numbers = np.arange(first_rows(count, size, self.config.report_bytes))
        if sample:
            numbers = np.arange(count)[:: max(1, -(-size // self.config.evaluation_bytes))]
        metrics = self._metrics(model, corpus.validation, numbers, processes)
        return Outcome(metrics, notes=[] if sample else self.reported(len(numbers), count, "pairs"))

    def results(self, corpus: PairCorpus, metrics: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields of DenoisingReport."""
        return {
            "tokens_trained": steps * self.units_per_step,
            "target_tokens": int(metrics["target_tokens"]),
            "validation_target_loss": metrics["target_loss"],
            "validation_target_accuracy": metrics["target_accuracy"],
        }

    def answer(
        self, model: PreTrainedModel, question: Question, trained_on: str, processes: Processes = ALONE
    ) -> DenoisingEvaluation:
        """Nats per token that was left out."""
        refuse_reader(question)
        if any(question.minimum_context):
            raise ConfigurationError("minimum context: this model writes what is left out, and reads all of the rest")
        corpus = load_documents(question.data or self.config.data)
        split = question.split or "validation"
        pairs = self.pairs(corpus, split)
        wanted = first_rows(pairs.count, corpus.length(split), question.limit)
        metrics = self._metrics(model, pairs, np.arange(wanted), processes)
        return DenoisingEvaluation(
            corpus=corpus.name,
            corpus_sha256=corpus.sha256,
            is_training_corpus=corpus.sha256 == trained_on,
            split=split,
            target_tokens=int(metrics["target_tokens"]),
            target_loss=metrics["target_loss"],
            target_accuracy=metrics["target_accuracy"],
        )

    @torch.no_grad()
    def _metrics(
        self, model: PreTrainedModel, pairs: Pairs, numbers: np.ndarray, processes: Processes
    ) -> dict[str, float]:
        """target_loss in nats per token, target_accuracy, target_tokens. The model is left in evaluation mode."""
        model.eval()
        nats = right = tokens = 0.0
        size = self.config.micro_batch_size
        for turn, counts in processes.share(-(-len(numbers) // size)):
            part = numbers[turn * size : (turn + 1) * size]
            batch = self.read(pairs, part, [of_row(_EVALUATION_SEED, 0, number) for number in part.tolist()])
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            batch = processes.tokens(model, batch)
            with processes.sharing(), arithmetic(self.config.dtype, model.device):
                logits = wide(model(**batch).logits.flatten(0, 1))
            if not counts:
                continue
            labels = batch["labels"].flatten()
            losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
            nats += losses.double().sum().item()
            right += (logits.argmax(-1) == labels).sum().item()
            tokens += (labels != IGNORED).sum().item()
        nats, right, tokens = processes.total([nats, right, tokens])
        return {"target_loss": nats / tokens, "target_accuracy": right / tokens, "target_tokens": tokens}


def none_left(split: Split, corpus: Splits, why: str) -> DataError:
    """What is raised for a split of which no pair can be made."""
    return DataError(f"data: of the {split} split of {corpus.name} no pair can be made: {why}")
