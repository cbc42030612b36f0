"""Predicting the next byte: bits per byte, and what general compressors need for the same bytes."""

import bz2
import lzma
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from asterism.training.data.corpus import SPLITS, Corpus
from asterism.training.data.windows import ScoringPlan, draw_starts, plan_records, plan_stream, read_windows
from asterism.training.objectives.objective import Headline, Objective, Report, penalised
from asterism.training.run.build import arithmetic
from asterism.training.run.configuration import RunConfig


@dataclass(frozen=True, kw_only=True)
class ByteReport(Report):
    """What a finished run on bytes came to, scored on `validation_bytes` bytes: the whole split, without its first."""

    bytes_trained: int
    validation_bytes: int
    validation_bits_per_byte: float
    yardsticks: dict[str, float]

    def __str__(self) -> str:
        compressed = ", ".join(f"{name} {bits:.4f}" for name, bits in self.yardsticks.items())
        return (
            f"validation: {self.validation_bits_per_byte:.4f} bits per byte on {self.validation_bytes:,} bytes\n"
            f"the same bytes compressed: {compressed}"
        )


class CausalBytes(Objective):
    """Every position of a random window predicts the next byte.

    Raises DataError if the training or validation split of the corpus is shorter than a window.
    """

    headline: ClassVar[Headline] = Headline("bits_per_byte", "bits/byte")
    report_type: ClassVar[type[Report]] = ByteReport
    unit: ClassVar[str] = "bytes"

    def __init__(self, config: RunConfig, corpus: Corpus) -> None:
        corpus.require("train", config.context)
        corpus.require("validation", config.context)
        self.config = config
        self.corpus = corpus
        self.units_per_step = config.batch_size * config.context
        self.plan = plan_split(config, len(corpus.validation))

    def batch(self, step: int) -> dict[str, torch.Tensor]:
        """{"rows": int64 [batch_size, context + 1]}: random windows of the training split."""
        config, data = self.config, self.corpus.train
        records = config.record_length is not None
        starts = draw_starts(len(data), config.context, config.batch_size, records=records, seed=config.seed, step=step)
        return {"rows": read_windows(data, starts, config.context, records=records)}

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Mean nats per byte: every position predicts the next byte of its row."""
        return byte_loss(model, batch, self.config)

    def training_figures(self, loss: float) -> dict[str, float]:
        """Bits instead of nats."""
        return {"bits_per_byte": loss / math.log(2)}

    def evaluate(self, model: PreTrainedModel, *, sample: bool = False) -> dict[str, float]:
        """Bits per byte of the validation split, or of about `evaluation_bytes` bytes spread evenly over it."""
        plan = self.plan.thin(self.config.evaluation_bytes) if sample else self.plan
        return {"bits_per_byte": bits_per_byte(model, self.corpus.validation, plan, self.config)}

    def results(self, figures: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields of ByteReport."""
        scored = self.plan.bytes_scored
        return {
            "bytes_trained": steps * self.units_per_step,
            "validation_bytes": scored,
            "validation_bits_per_byte": figures["bits_per_byte"],
            "yardsticks": yardsticks(self.corpus.validation[-scored:].tobytes()),
        }

    def corpus_record(self) -> dict[str, Any]:
        """Name, hash, and the bytes of each split."""
        sizes = {name: len(self.corpus.split(name)) for name in SPLITS}
        return {"name": self.corpus.name, "sha256": self.corpus.sha256, "bytes": sizes}

    def save_files(self, folder: Path) -> None:
        """Nothing: bytes need no tokenizer."""


def blank_batch(config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
    """A batch of so many sequences as `CausalBytes.batch` gives it, all zeros."""
    return {"rows": torch.zeros(sequences, config.context + 1, dtype=torch.int64)}


def byte_loss(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], config: RunConfig) -> torch.Tensor:
    """The loss of `CausalBytes`."""
    rows = batch["rows"]
    with arithmetic(config.dtype, rows.device):
        logits = model(input_ids=rows[:, :-1]).logits
    return penalised(F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten()), model)


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
    size = config.batch_size // config.accumulation
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


def yardsticks(data: bytes) -> dict[str, float]:
    """Bits per byte that zlib, bz2 and lzma need for `data`, each at its strongest standard setting (9)."""
    compressed = {
        "zlib": zlib.compress(data, 9),
        "bz2": bz2.compress(data, 9),
        "lzma": lzma.compress(data, preset=9),
    }
    return {name: 8 * len(small) / len(data) for name, small in compressed.items()}
