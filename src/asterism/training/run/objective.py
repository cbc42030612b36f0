"""The definition of an objective: what a model is trained on and judged by.

An objective defines everything that differs between runs: the model, the data, a batch, the metrics. The loop, the
session, the run folder and the verbs of the command line use only this interface and depend on no particular objective.
An objective holds no data. The data of a training run are next to it in the run's `Setup`, so a finished run is opened
without them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import ConfigurationError
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Evaluation, Metric, Outcome, Question, Report
from asterism.training.settings.configuration import AnyConfig

if TYPE_CHECKING:
    from asterism.training.run.setup import Setup


Data = TypeVar("Data", bound=Corpus[Any])


class Objective(ABC, Generic[Data]):
    """One kind of learning.

    metric           the metric to judge by
    metrics          all that are measured, that one among them
    unit             what speed is counted in, in the plural: "bytes", "tokens"
    units_per_step   how many of them one step of the optimiser reads
    label_smoothing  the share of the wanted probability that the loss spreads over all tokens
    positive_weight  how many times as much as a 0 a 1 counts in the loss, where labels are columns of 0 and 1
    arguments        of the model in each training step, besides the batch
    tokenizer        that of the model; None where it reads bytes
    notes            what a user should know about the data, one line each
    """

    metric: Metric
    metrics: ClassVar[tuple[Metric, ...]]
    unit: str
    config: AnyConfig
    units_per_step: int
    label_smoothing: float = 0.0
    positive_weight: float = 1.0
    arguments: Mapping[str, Any] = {}
    tokenizer: PreTrainedTokenizerBase | None = None
    notes: Sequence[str] = ()

    # --- from a configuration, and from a folder --------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def resolve(cls, config: Any, own: Path | None) -> "Setup":
        """Prepare a run of this configuration for its first step.

        `own` is the newest checkpoint of a resumed run. Its shape and tokenizer replace those of the configuration.
        Raises ConfigurationError, DataError or CheckpointError if something cannot work, be read, or be loaded.
        """

    @classmethod
    @abstractmethod
    def restore(cls, config: Any, folder: Path, decided: Mapping[str, Any]) -> "Objective[Data]":
        """The objective of a run whose model is in `folder`; `decided` is what `self.decided` was when it began."""

    def decided(self) -> dict[str, Any]:
        """The decisions that only the training data allow, as JSON. They are stored in run.json, so that the run can be
        opened without the data.
        """
        return {}

    @abstractmethod
    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        """A model with new weights, in float32, drawn from torch's global generator."""

    @abstractmethod
    def initial_model(self, shape: PreTrainedConfig, init_from: Path | None) -> tuple[PreTrainedModel, list[str]]:
        """The model of the first step, with new weights or those of a folder, and notes on parts that are new.

        Raises CheckpointError for weights that do not fit.
        """

    @property
    @abstractmethod
    def longest(self) -> tuple[int, ...]:
        """Tokens of the longest row, and of the longest target, if the model writes any."""

    def save_files(self, folder: Path) -> None:
        """Write the files besides the weights into a model folder, such as the tokenizer."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    # --- training ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def batch(self, corpus: Data, step: int) -> dict[str, torch.Tensor]:
        """The batch of a step, on the CPU, the same on every call: arguments of the model, including labels.

        Tensors are [sequences, ...], int64 for tokens and labels. The loop cuts the first axis into the slices of an
        accumulated step. The model computes its own loss from them, the mean in nats.
        """

    @abstractmethod
    def training_metrics(self, loss: float) -> dict[str, float]:
        """A mean training loss in terms of the metrics of `evaluate`; empty if there is no such relation."""

    @abstractmethod
    def evaluate(self, model: PreTrainedModel, corpus: Data, evaluator: Evaluator) -> Outcome:
        """Metrics on the validation split, or on as much of it as the evaluator's budget allows.

        All processes of the run call it together and get the same result. The model is left in evaluation mode.
        """

    @abstractmethod
    def facts(self, corpus: Data, steps: int) -> dict[str, Any]:
        """The facts of a report about the data that were read in `steps` steps, and scored at the end, by name."""

    def results(self, corpus: Data, metrics: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The figures of a report, after so many steps, from metrics of `evaluate`."""
        return {metric.reported: metric.of(metrics) for metric in self.metrics} | self.facts(corpus, steps)

    @classmethod
    def report(cls, values: Mapping[str, Any]) -> Report:
        """The report that run.json holds as `values`. Raises KeyError or TypeError if it is not a report."""
        figures = {metric.name: values[metric.reported] for metric in cls.metrics}
        return Report.from_json(values, cls.describe(figures))

    @classmethod
    @abstractmethod
    def describe(cls, figures: Mapping[str, Any], place: str | None = None) -> str:
        """The values of `metrics`, by name, as text for people. `place` names the data; None for a report."""

    # --- questions to a finished run --------------------------------------------------------------------------------

    @abstractmethod
    def answer(self, model: PreTrainedModel, question: Question, trained_on: str, evaluator: Evaluator) -> Evaluation:
        """Score a finished model; `trained_on` is the hash of the data of its run. All processes call it together.

        Raises ConfigurationError for a question that does not apply, and DataError for data that cannot be used.
        """

    def prompt(self, text: bytes) -> torch.Tensor:
        """The tokens of a prompt, int64 [1, N].

        Raises ConfigurationError if the model does not generate, and names the verb to use instead.
        """
        raise self._continues_nothing()

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """The tokens that ask for the next answer of a conversation, int64 [1, N].

        Raises ConfigurationError if the model was not fine-tuned to answer in conversations.
        """
        raise ConfigurationError(
            "answers-no-messages",
            "chat: the model of this run was not fine-tuned to answer in conversations; use a run of `asterism finetune"
            " --task instruct`",
        )

    def continued(self, model: PreTrainedModel, starts: torch.Tensor, sampling: Mapping[str, Any]) -> torch.Tensor:
        """What follows the tokens `starts`, int64 [B, N]: values, int64 [B, length]; `sampling` are arguments of the
        model's `generate`. Raises ConfigurationError if the model continues nothing."""
        raise self._continues_nothing()

    @property
    def ending(self) -> dict[str, Any]:
        """Arguments of the model's `generate` that say where a text ends; empty if it ends nowhere."""
        return {}

    def written(self, start: torch.Tensor, values: torch.Tensor) -> bytes:
        """The bytes that `values`, int64 [1, length], add to the tokens `start`, int64 [1, N]."""
        return bytes(values[0].tolist())

    def _continues_nothing(self) -> ConfigurationError:
        return ConfigurationError(
            "makes-no-text",
            f"generate: a model trained with objective {self.config.objective} cannot generate; {self.instead}",
        )

    def predictor(self, model: PreTrainedModel, batch_size: int | None = None, reader: str | None = None) -> Any:
        """The task's `Predictor`, which asks the model about examples, `batch_size` at once and by this reader, by
        default as in training.

        Raises ConfigurationError if the model was not fine-tuned for a task, and names the verb to use instead. It also
        does so for a reader that the task cannot use.
        """
        raise ConfigurationError(
            "learned-no-task",
            f"predict: a model trained with objective {self.config.objective} was not fine-tuned for a task;"
            f" {self.instead}",
        )

    instead: ClassVar[str] = "score it with `asterism evaluate`"
    """The verbs to use for a model that does not generate, or does not predict."""
