"""Pretrain encoder-decoders: a part of a text is left out of the encoder's input, and the decoder writes it.

The objective decides what is left out, and how (`span_corruption.py`, `gap_sentences.py`); the rest is here. Metrics
are in nats per token of the target. Their pairs are the same in every run, because the pair of text r of a split is a
function of r.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import ConfigurationError, DataError
from asterism.labels import IGNORED
from asterism.models import AsterismForConditionalGeneration
from asterism.training.data.corpora.bytes import load_documents
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import Needs, Vocabulary, end_of, load_tokenizer, vocabulary
from asterism.training.objectives.rows import RowCorpus, RowObjective, SplitRows
from asterism.training.run.arithmetic import wide
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Metric
from asterism.training.settings.configuration import RunConfig

SHOWN = 64
"""How many tokens of a target a sample shows."""


class Room(NamedTuple):
    """The most tokens of an input and of a target, including their end tokens."""

    inputs: int
    targets: int


class Pairs(SplitRows):
    """The texts of one split, from which parts are left out."""

    @abstractmethod
    def pair(self, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and target of a text, int64 [tokens] each, without the token that ends them."""

    def record(self) -> dict[str, int]:
        """Also how many pairs there are."""
        return {**super().record(), "pairs": self.count}


class Denoising(RowObjective[Pairs]):
    """An encoder-decoder writes the parts that were left out of a text."""

    metric = Metric("target_loss", "nats/target token", "validation_target_loss")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("target_tokens", "tokens that were left out", is_count=True),
        metric,
        Metric("target_accuracy", "share that is right given those before", "validation_target_accuracy"),
    )
    rows_are: ClassVar[str] = "pairs"
    no_minimum: ClassVar[str] = "writes what is left out, and reads all of the rest"
    instead: ClassVar[str] = "score it with `asterism evaluate`, teach it a task with `asterism finetune`"

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
        """The largest lengths of inputs and targets."""

    # --- what is the same for all -----------------------------------------------------------------------------------

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        return vocabulary(config.tokenizer if source is None else str(source), cls.needs(config))

    @classmethod
    def foundations(
        cls, config: RunConfig, own: Path | None = None
    ) -> tuple[Path | None, Vocabulary, PreTrainedConfig]:
        """Raises ConfigurationError also for a model without a decoder, or with one that is too short for a target."""
        source, known, shape = super().foundations(config, own)
        if shape.decoder_mixers is None:
            raise ConfigurationError(
                "no-decoder",
                f"objective {config.objective} trains an encoder-decoder: give the model a decoder with"
                ' model.decoder_mixers, such as "causal()"',
            )
        reach, needed = shape.decoder_max_position_embeddings or 0, cls.room_of(config).targets
        if shape.positions_end and reach < needed:
            raise ConfigurationError(
                "decoder-too-short",
                f"model.decoder_max_position_embeddings is {reach:,}, too few for the targets of objective"
                f" {config.objective} with context={config.context:,}: {needed:,}",
            )
        return source, known, shape

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """An encoder-decoder."""
        return AsterismForConditionalGeneration

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        """A batch of this many pairs of the largest length, all zeros."""
        sizes = {"input_ids": cls.room_of(config).inputs, "labels": cls.room_of(config).targets}
        return {name: torch.zeros(sequences, size, dtype=torch.int64) for name, size in sizes.items()}

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["Denoising", RowCorpus[Pairs]]:
        """The tokenizer is learned from the training split, unless it exists."""
        corpus = load_documents(config.data)
        objective = cls(config, vocabulary.made(corpus.documents("train"), config.context))
        train, validation = objective.rows(corpus, "train"), objective.rows(corpus, "validation")
        return objective, RowCorpus(corpus, train, validation, config.seed)

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "Denoising":
        """The tokenizer is in the model folder."""
        return cls(config, load_tokenizer(folder, cls.needs(config)))

    def splits(self, data: str | None) -> Splits:
        return load_documents(data)

    def read(self, rows: Pairs, numbers: np.ndarray, random: Sequence[np.random.Generator]) -> dict[str, torch.Tensor]:
        """The pairs with these indices, int64 [pairs]; each pair draws from its own generator.

        input_ids and attention_mask are int64 [pairs, room.inputs], and labels int64 [pairs, room.targets]. Each has an
        end token and is padded on the right, labels with IGNORED. All batches have one shape, so patterns are compiled
        once.
        """
        shape = len(numbers), self.room.inputs
        inputs, mask = np.full(shape, self.tokenizer.pad_token_id), np.zeros(shape, dtype=np.int64)
        labels = np.full((len(numbers), self.room.targets), IGNORED)
        for row, (number, generator) in enumerate(zip(numbers.tolist(), random, strict=True)):
            read, wanted = rows.pair(number, generator)
            inputs[row, : len(read) + 1] = [*read, self.end]
            mask[row, : len(read) + 1] = 1
            labels[row, : len(wanted) + 1] = [*wanted, self.end]
        columns = {"input_ids": inputs, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(column.astype(np.int64)) for name, column in columns.items()}

    def training_metrics(self, loss: float) -> dict[str, float]:
        """The loss is that of the tokens that were left out."""
        return {"target_loss": loss}

    @classmethod
    def describe(cls, figures: Mapping[str, Any], place: str | None = None) -> str:
        tokens = f"{figures['target_tokens']:,} tokens that were left out"
        what = f"validation: {tokens}" if place is None else f"{tokens} of {place}"
        return (
            f"{what}, {figures['target_loss']:.4f} nats each, {figures['target_accuracy']:.1%} right given those before"
        )

    def samples(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
        """What the encoder read, the first tokens that are wanted of the decoder, and as many that it writes by itself,
        the likeliest at each place."""
        wanted = batch["labels"][0][batch["labels"][0] != IGNORED][:SHOWN].tolist()
        read = batch["input_ids"][:, : int(batch["attention_mask"].sum())]
        # The end does not stop the decoder: processes that share weights compute equally many steps.
        how = GenerationConfig(
            max_new_tokens=len(wanted),
            do_sample=False,
            pad_token_id=self.tokenizer.pad_token_id,
            decoder_start_token_id=model.config.decoder_start_token_id,
        )
        written = cast(Any, model).generate(read, generation_config=how)[0].tolist()[1:]
        if self.end in written:
            written = written[: written.index(self.end) + 1]
        columns = {"prompt": read[0].tolist(), "text": written, "expected": wanted}
        return [{name: self.tokenizer.decode(tokens) for name, tokens in columns.items()}]

    def measured(self, model: PreTrainedModel, rows: Pairs, numbers: range, evaluator: Evaluator) -> dict[str, float]:
        def measure(output: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
            logits, labels = wide(output.logits.flatten(0, 1)), batch["labels"].flatten()
            losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
            return {
                "nats": losses.double().sum().item(),
                "right": (logits.argmax(-1) == labels).sum().item(),
                "tokens": (labels != IGNORED).sum().item(),
            }

        found = evaluator.sums(model, self.config, numbers, partial(self.read_scored, rows), measure)
        tokens = found["tokens"]
        loss, accuracy = found["nats"] / tokens, found["right"] / tokens
        return {"target_loss": loss, "target_accuracy": accuracy, "target_tokens": tokens}


def none_left(split: Split, corpus: Splits, why: str) -> DataError:
    """The error for a split from which no pair can be made."""
    return DataError("no-pairs", f"data: the {split} split of {corpus.name} gives no pairs: {why}")
