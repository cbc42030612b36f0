"""What a model is trained on and judged by.

An objective owns the data of a run. The training loop, the session beside it and the run folder know its batches, its
loss and its figures by name only, so that they are the same for bytes, masked tokens and labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Headline:
    """The figure by which a run is judged: its `name` among the figures, a `label` for people, and what is better."""

    name: str
    label: str
    lower_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a finished run came to. `minutes` is training time, evaluations on the way included, the last one not."""

    folder: str
    recipe: str
    parameters: int
    steps: int
    minutes: float
    corpus: str
    corpus_sha256: str


def penalised(loss: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """The loss and, in training, what a model with adaptive spans adds to it."""
    penalty = model.model.span_penalty() if model.training else None
    return loss if penalty is None else loss + penalty


class Objective(ABC):
    """Batches, a loss, and figures on data that training has not seen.

    headline         the figure to judge by
    report_type      what a finished run reports: the fields of `Report` and those that `results` gives
    unit             what speed is counted in, in the plural: "bytes", "tokens"
    units_per_step   how many of them one step of the optimiser reads
    """

    headline: ClassVar[Headline]
    report_type: ClassVar[type[Report]]
    unit: ClassVar[str]
    units_per_step: int

    @abstractmethod
    def batch(self, step: int) -> dict[str, torch.Tensor]:
        """What one step reads, on the CPU, the same on every call: the first axis of every tensor counts sequences.

        The loop cuts that axis into the slices of an accumulated step.
        """

    @abstractmethod
    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of a batch or slice, in nats: a scalar to differentiate. Dropout may draw from torch."""

    @abstractmethod
    def training_figures(self, loss: float) -> dict[str, float]:
        """What a mean training loss says in terms of the figures of `evaluate`; empty if it says nothing."""

    @abstractmethod
    def evaluate(self, model: PreTrainedModel, *, sample: bool = False) -> dict[str, float]:
        """Figures on the validation split, the headline among them, or on a fixed sample of the split.

        The model is left in evaluation mode.
        """

    @abstractmethod
    def results(self, figures: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields that `report_type` adds to Report, after so many steps, from figures of `evaluate`."""

    @abstractmethod
    def corpus_record(self) -> dict[str, Any]:
        """What run.json says about the data: "name", "sha256" (by which a resumed run knows them again), and sizes."""

    @abstractmethod
    def save_files(self, folder: Path) -> None:
        """Write into a model folder what belongs to the model beside weights, such as a tokenizer."""
