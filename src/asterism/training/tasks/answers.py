"""How a model answers, and how good its answers are.

    features -> model -> what it says about each -> a prediction -> scores

`ReadAnswers` are read from logits, `WrittenAnswers` are texts that the model generates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from asterism.errors import AsterismError, DataError
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.examples import Example
from asterism.training.tasks.rows import Feature

Logits = tuple[np.ndarray, ...]
"""What a model says about a feature where answers are read: one float32 array for each of `outputs`, padding cut off,
[labels] or, with `per_token`, [N] or [N, labels]."""


class NoScoreError(DataError):
    """The metric cannot be computed of these examples."""


class Answers(ABC, Generic[Example]):
    """The answers of a kind of task: a frozen dataclass of what JSON can hold.

    metric           the name of the score to judge by
    answer           the field of a prediction that is scored
    positive_weight  how many times as much as a 0 a 1 of the targets counts in the loss, where targets are 0 and 1
    """

    architecture: ClassVar[str]
    """The Auto class of transformers whose models give them."""
    gathers: ClassVar[int]
    """Batches of examples that are collected before the model is asked."""
    pools: ClassVar[tuple[str, ...]] = ()
    """How one answer can be made of several windows, the usual way first."""
    package: ClassVar[tuple[str, str] | None] = None
    """The package that scores them, and its module, where that is an optional one."""

    positive_weight: float = 1.0

    @property
    @abstractmethod
    def metric(self) -> str: ...

    @property
    @abstractmethod
    def answer(self) -> str: ...

    # --- the model --------------------------------------------------------------------------------------------------

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The fields of the task that settings and model decide together; those equal to settings go without saying.

        Raises ConfigurationError for a model or a tokenizer that the task has no use for.
        """
        return {}

    @abstractmethod
    def model_fields(self) -> dict[str, Any]:
        """The fields of a model's configuration that the task decides, such as the labels."""

    @abstractmethod
    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[Any]:
        """What a model in evaluation mode says about each row of `inputs`, int64 [B, length] each, padded on the right.

        Raises AsterismError if that is not finite.
        """

    # --- predictions and scores -------------------------------------------------------------------------------------

    @abstractmethod
    def predict(self, example: Example, features: Sequence[Feature], said: Sequence[Any]) -> dict[str, Any]:
        """The prediction for an example, given what `ask` gave for each of its features."""

    @abstractmethod
    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """The scores of answers, compared with what `Examples.gold` says is right, the metric among them.

        Raises NoScoreError for examples that have none.
        """

    def baselines(
        self, training: Sequence[Example], scored: Sequence[Example], there: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """The scores of what needs no model, by name, on examples where `there` is right; {} if nothing is known."""
        return {}

    def page(
        self, scores: Mapping[str, float], examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """What people read of a finished run, in Markdown; None if its predictions say it all."""
        return None


class ReadAnswers(Answers[Example]):
    """Answers that are read from what a model outputs in one call. What it puts on top of an encoder may be new."""

    gathers: ClassVar[int] = 16  # more saves little padding
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """What is read of a model's output."""
    per_token: ClassVar[bool] = False
    """Whether the outputs have an axis of tokens after that of rows."""

    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[Logits]:
        """The outputs of each row; `inputs` are int64 [B, length] each."""
        found = model(**inputs)
        outputs = [found[name].float().cpu().numpy() for name in self.outputs]
        ends = inputs["attention_mask"].sum(1).tolist() if self.per_token else [None] * len(outputs[0])
        if not all(np.isfinite(output[row, :end]).all() for output in outputs for row, end in enumerate(ends)):
            raise _not_finite()
        return [tuple(output[row, :end] for output in outputs) for row, end in enumerate(ends)]


class RankedAnswers(ReadAnswers[Example]):
    """Answers that also say in which of several rows the model found most, for a reader that reads these again."""

    @abstractmethod
    def found(self, feature: Feature, said: Logits) -> float:
        """How much the model found in a feature of what it is asked: the greater, the sooner it is read again."""


class WrittenAnswers(Answers[Example]):
    """Answers that a model generates, by the same search on every run. All of its weights must be there already."""

    architecture: ClassVar[str] = "AutoModelForSeq2SeqLM"
    gathers: ClassVar[int] = 2  # texts take seconds: who waits wants to see them, and who stops to keep them

    @abstractmethod
    def generation(self, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
        """How answers are generated: what the task says, and nothing of what the model's folder would."""

    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[str]:
        """The text that is generated for each row; `inputs` are int64 [B, length] each."""
        generating: Any = model  # transformers gives `generate` to those that can
        found = generating.generate(
            **inputs,
            generation_config=self.generation(model.config, tokenizer),
            logits_processor=LogitsProcessorList([_RefuseNotFinite()]),
        )
        texts = tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [text.strip() for text in texts]


class _RefuseNotFinite(LogitsProcessor):
    """The likeliest of scores that are not finite would be a token like any other."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if (scores.isnan() | scores.isposinf()).any():
            raise _not_finite()
        return scores


def _not_finite() -> AsterismError:
    return AsterismError(
        "answers-not-finite",
        "the model's answers are not finite (NaN or infinity): check its weights and the dtype",
    )


def shown(probability: float) -> float:
    """A probability with the four digits that hold.

    Rows of a batch are added up in an order that depends on the batch, so that in float32 the last one to two of seven
    digits change with it; what is written should not. Digits are counted from the first that is not 0, as those of a
    rare label must not all be lost.
    """
    return float(f"{probability:.4g}")


def shown_score(score: float) -> float:
    """A sum of logits, which are some units large, with the three decimals that hold as those of `shown` do."""
    return round(score, 3)
