"""Predicting the next byte: bits per byte, and what general compressors need for the same bytes."""

import bz2
import lzma
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models import AsterismForCausalLM
from asterism.training.data.corpus import load_corpus
from asterism.training.data.tokenization import Vocabulary
from asterism.training.data.windows import ByteWindows, ScoringPlan, plan_records, plan_stream, read_windows
from asterism.training.objectives.objective import Evaluation, Metric, Outcome, Question, Report, refuse_reader
from asterism.training.objectives.pretraining import Pretraining
from asterism.training.run.arithmetic import arithmetic
from asterism.training.run.configuration import RunConfig


@dataclass(frozen=True, kw_only=True)
class ByteReport(Report):
    """What a finished run on bytes came to, scored on `validation_bytes` bytes: the whole split, without its first."""

    bytes_trained: int
    validation_bytes: int
    validation_bits_per_byte: float
    baselines: dict[str, float]

    def __str__(self) -> str:
        compressed = ", ".join(f"{name} {bits:.4f}" for name, bits in self.baselines.items())
        return (
            f"validation: {self.validation_bits_per_byte:.4f} bits per byte on {self.validation_bytes:,} bytes\n"
            f"the same bytes compressed: {compressed}"
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Bits per byte of a model when every byte has at least `minimum_context` bytes of context."""

    minimum_context: int
    bits_per_byte: float


@dataclass(frozen=True, kw_only=True)
class ByteEvaluation(Evaluation):
    """Scores of a model and baselines (bits per byte by compressor), all on the same `bytes_scored` bytes."""

    split: str
    bytes_scored: int
    scores: tuple[Score, ...]
    baselines: dict[str, float]

    def __str__(self) -> str:
        rows = [f"{score.minimum_context:>15,}  {score.bits_per_byte:>13.4f}" for score in self.scores]
        compressed = ", ".join(f"{name} {bits:.4f}" for name, bits in self.baselines.items())
        return "\n".join(
            [
                f"{self.bytes_scored:,} bytes of the {self.split} split of {self.corpus}",
                "minimum context  bits per byte",
                *rows,
                f"the same bytes compressed: {compressed}",
            ]
        )


class CausalBytes(Pretraining[ByteWindows]):
    """Every position of a random window predicts the next byte."""

    metric = Metric("bits_per_byte", "bits/byte")
    report_type: ClassVar[type[Report]] = ByteReport
    unit: ClassVar[str] = "bytes"
    instead: ClassVar[str] = "it predicts the next byte: continue a prompt with `asterism generate`"

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        """The 256 bytes; none of them pads."""
        return Vocabulary(256, None)

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """A causal language model."""
        return AsterismForCausalLM

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        return _arguments(torch.zeros(sequences, config.context + 1, dtype=torch.int64))

    @classmethod
    def refuse_start(cls, config: RunConfig, size: int, vocabulary: Vocabulary, folder: Path) -> None:
        """A model of bytes has one embedding for each."""
        if size != vocabulary.size:
            raise ConfigurationError(
                f"init_from: objective causal predicts {vocabulary.size} bytes, {folder} has a vocabulary of {size:,}"
            )

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["CausalBytes", ByteWindows]:
        """Raises DataError if the training or validation split of the corpus is shorter than a window."""
        splits = load_corpus(config.data, record_length=config.record_length)
        return cls(config), ByteWindows(splits, config.context, config.seed)

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "CausalBytes":
        """Nothing but the configuration is needed."""
        return cls(config)

    def batch(self, corpus: ByteWindows, step: int) -> dict[str, torch.Tensor]:
        """Random windows of the training split: input_ids and shift_labels, int64 [batch_size, context] each."""
        return _arguments(corpus.draw(step, self.config.batch_size))

    def training_metrics(self, loss: float) -> dict[str, float]:
        """Bits instead of nats."""
        return {"bits_per_byte": loss / math.log(2)}

    def evaluate(self, model: PreTrainedModel, corpus: ByteWindows, *, sample: bool = False) -> Outcome:
        """Bits per byte of the validation split, or of about `evaluation_bytes` bytes spread evenly over it."""
        plan = plan_split(self.config, len(corpus.validation))
        if sample:
            plan = plan.thin(self.config.evaluation_bytes)
        return Outcome({"bits_per_byte": bits_per_byte(model, corpus.validation, plan, self.config)})

    def results(self, corpus: ByteWindows, metrics: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields of ByteReport."""
        scored = plan_split(self.config, len(corpus.validation)).bytes_scored
        return {
            "bytes_trained": steps * self.units_per_step,
            "validation_bytes": scored,
            "validation_bits_per_byte": metrics["bits_per_byte"],
            "baselines": baselines(corpus.validation[-scored:].tobytes()),
        }

    def answer(self, model: PreTrainedModel, question: Question, trained_on: str) -> ByteEvaluation:
        """Bits per byte, and what general compressors need for the same bytes.

        With a minimum context M, every scored byte has at least M bytes before it in its window (the protocol of Child
        2019, table 3). Several values of M are scored on the same bytes, so that their numbers can be compared: the
        first max(1, largest M) bytes of the split, which cannot have that much context, are left out for all of them.
        """
        refuse_reader(question)
        config, asked = self.config, question.minimum_context
        _check_minimum_context(config, asked)
        corpus = load_corpus(question.data or config.data, record_length=config.record_length)
        split = question.split or "validation"
        bytes_ = corpus.require(split, config.context)
        first, stop = _scored_range(config, len(bytes_), asked, question.limit)
        return ByteEvaluation(
            corpus=corpus.name,
            corpus_sha256=corpus.sha256,
            is_training_corpus=corpus.sha256 == trained_on,
            split=split,
            bytes_scored=stop - first,
            scores=tuple(
                Score(
                    minimum_context=minimum,
                    bits_per_byte=bits_per_byte(model, bytes_, plan_range(config, minimum, first, stop), config),
                )
                for minimum in asked
            ),
            baselines=baselines(bytes_[first:stop].tobytes()),
        )

    def generate(self, model: PreTrainedModel, prompt: bytes, sampling: Mapping[str, Any]) -> bytes:
        """Where training put a NUL byte (between files, before a record) so does this: an empty prompt starts after
        one, and so does every record."""
        start = b"\0" + prompt if self.config.record_length is not None or not prompt else prompt
        tokens = torch.tensor([list(start)], device=model.device)
        with arithmetic(self.config.dtype, model.device):
            output = cast(Any, model).generate(tokens, **sampling)
        return bytes(output[0, len(start) :].tolist())


def _arguments(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the model reads of rows, int64 [B, context + 1], and what each column is to predict: the byte after it."""
    return {"input_ids": rows[:, :-1], "shift_labels": rows[:, 1:].contiguous()}


def _check_minimum_context(config: RunConfig, asked: Sequence[int]) -> None:
    if not asked:
        raise ConfigurationError("minimum context: at least one value is needed")
    if config.record_length is not None and any(asked):
        raise ConfigurationError("minimum context: this model reads records, and a record has no bytes before it")
    for minimum in asked:
        if not 0 <= minimum <= config.context:
            raise ConfigurationError(
                f"minimum context {minimum} is not between 0 and the model's context {config.context}"
            )


def _scored_range(config: RunConfig, size: int, asked: Sequence[int], limit: int | None) -> tuple[int, int]:
    """The first byte that is scored, and the one after the last."""
    if config.record_length is not None:
        stop = size if limit is None else min(size, max(limit, config.context))
        return 0, stop - stop % config.context
    first = max(1, *asked)
    return first, size if limit is None else min(size, max(first + limit, config.context + 1))


def plan_range(config: RunConfig, minimum_context: int, first: int, stop: int) -> ScoringPlan:
    """The windows of a run's context that score the bytes first .. stop - 1 of a split."""
    if config.record_length is not None:
        return plan_records(config.context, stop=stop)
    return plan_stream(config.context, minimum_context, first=first, stop=stop)


def plan_split(config: RunConfig, size: int) -> ScoringPlan:
    """The windows that score a whole split of `size` bytes, next to each other: minimum context 0."""
    if config.record_length is not None:
        return plan_range(config, 0, 0, size - size % config.context)
    return plan_range(config, 0, 1, size)


@torch.no_grad()
def bits_per_byte(model: PreTrainedModel, data: np.ndarray, plan: ScoringPlan, config: RunConfig) -> float:
    """The mean of -log2 p(byte) over the bytes that `plan` scores in `data` (uint8), in the run's arithmetic.

    The model is left in evaluation mode. Sums are in float64, so that the result does not depend on the number of
    windows; batches have the size of one slice of the run's batches.
    """
    model.eval()
    size = config.micro_batch_size
    positions = torch.arange(config.context, device=model.device)
    nats = 0.0
    for at in range(0, len(plan.starts), size):
        rows = read_windows(
            data, plan.starts[at : at + size], config.context, records=config.record_length is not None
        ).to(model.device)
        with arithmetic(config.dtype, model.device):
            logits = model(input_ids=rows[:, :-1]).logits
        losses = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none")
        firsts = torch.from_numpy(plan.firsts[at : at + size]).to(model.device)
        nats += losses[(positions >= firsts[:, None]).flatten()].cpu().double().sum().item()
    return nats / math.log(2) / plan.bytes_scored


def baselines(data: bytes) -> dict[str, float]:
    """Bits per byte that zlib, bz2 and lzma need for `data`, each at its strongest standard setting (9)."""
    compressed = {
        "zlib": zlib.compress(data, 9),
        "bz2": bz2.compress(data, 9),
        "lzma": lzma.compress(data, preset=9),
    }
    return {name: 8 * len(small) / len(data) for name, small in compressed.items()}
