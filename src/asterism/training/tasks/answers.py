"""The answers of a model, and their scores.

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
"""The model's outputs for a feature: one float32 array for each of `outputs`, without padding, [labels] or, with
`per_token`, [N] or [N, labels]."""


class NoScoreError(DataError):
    """The metric cannot be computed from these examples."""


class Answers(ABC, Generic[Example]):
    """The answers of a kind of task: a frozen dataclass of JSON values.

    metric           the name of the score to judge by
    answer           the field of a prediction that is scored
    positive_weight  how many times as much as a 0 a 1 of the targets counts in the loss, where targets are 0 and 1
    """

    architecture: ClassVar[str]
    """The Auto class of transformers for models that give these answers."""
    gathers: ClassVar[int]
    """The number of batches of examples that are collected before the model runs."""
    pools: ClassVar[tuple[str, ...]] = ()
    """The ways to pool several windows into one answer, the default first."""
    package: ClassVar[tuple[str, str] | None] = None
    """The optional package that scores them, and its module, if there is one."""

    positive_weight: float = 1.0

    @property
    @abstractmethod
    def metric(self) -> str: ...

    @property
    @abstractmethod
    def answer(self) -> str: ...

    # --- the model --------------------------------------------------------------------------------------------------

    arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments of the model in each training step, besides the batch."""

    @classmethod
    def fitted(cls, config: FineTuneConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """The tokenizer of the model as the task uses and saves it. Raises ConfigurationError for an unfit one."""
        return tokenizer

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The fields of the task that settings and model decide together; fields that equal a setting are left out.

        Raises ConfigurationError for a model or a tokenizer that the task cannot use.
        """
        return {}

    def prepare(self, model: PreTrainedModel, config: FineTuneConfig) -> None:
        """Change the model of the first step as the settings say. Raises ConfigurationError for an unfit one."""

    @abstractmethod
    def model_fields(self) -> dict[str, Any]:
        """The fields of a model's configuration that the task decides, such as the labels."""

    @abstractmethod
    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[Any]:
        """The outputs of a model in evaluation mode for each row of `inputs`, int64 [B, length] each, padded on the
        right.

        Raises AsterismError if they are not finite.
        """

    # --- predictions and scores -------------------------------------------------------------------------------------

    @abstractmethod
    def predict(self, example: Example, features: Sequence[Feature], said: Sequence[Any]) -> dict[str, Any]:
        """The prediction for an example, given the result of `ask` for each of its features."""

    @abstractmethod
    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """The scores of answers, compared with those of `Examples.gold`. The metric is one of them.

        Raises NoScoreError for examples without a score.
        """

    def baselines(
        self, training: Sequence[Example], scored: Sequence[Example], there: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """The scores of baselines without a model, by name, on examples with the right answers `there`; {} if there are
        none.
        """
        return {}

    def notes(self, examples: int) -> list[str]:
        """What to say before training about the evaluation of so many examples."""
        return []

    def page(
        self, scores: Mapping[str, float], examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """The page of a finished run for people, in Markdown, or None if its predictions suffice."""
        return None


class ReadAnswers(Answers[Example]):
    """Answers that are read from a model's outputs in one call. The layers on top of an encoder may be new."""

    gathers: ClassVar[int] = 16  # more saves little padding
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    """The fields that are read from a model's output."""
    per_token: ClassVar[bool] = False
    """Whether the outputs have an axis of tokens after the axis of rows."""

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
    """Answers that also rank the rows in which the model found most, for a reader that reads these again."""

    @abstractmethod
    def found(self, feature: Feature, said: Logits) -> float:
        """How much the model found in a feature. Features with the greatest values are read again."""


class WrittenAnswers(Answers[Example]):
    """Answers that a model generates, by the same search on every run. Its folder must hold all of its weights."""

    architecture: ClassVar[str] = "AutoModelForSeq2SeqLM"
    gathers: ClassVar[int] = 2  # texts take seconds, and should be seen, and kept at a stop, soon

    @abstractmethod
    def generation(self, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
        """How answers are generated: what the task says, and nothing of what the model's folder would."""

    def ask(
        self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[str]:
        """The text that is generated for each row; `inputs` are int64 [B, length] each."""
        generating: Any = model  # transformers gives `generate` to models that can generate
        found = generating.generate(
            **self.given(inputs),
            generation_config=self.generation(model.config, tokenizer),
            logits_processor=LogitsProcessorList([_RefuseNotFinite()]),
        )
        return [text.strip() for text in self.texts(found, inputs, tokenizer)]

    def given(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The arguments of `generate` for rows, int64 [B, length] each, that are padded on the right."""
        return inputs

    def sampled(self, tokenizer: PreTrainedTokenizerFast) -> Mapping[str, Any]:
        """Arguments of `generate` that say where an answer to a typed prompt ends; {} if the task answers none."""
        return {}

    def following(self, tokens: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> str:
        """The text that an answer's tokens add to a typed prompt."""
        text: Any = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def texts(
        self, found: torch.Tensor, inputs: Mapping[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast
    ) -> list[str]:
        """The texts of the tokens that `generate` gave, int64 [B, N], for rows int64 [B, length] each."""
        texts: list[str] = tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return texts


class _RefuseNotFinite(LogitsProcessor):
    """Refuse scores that are not finite, because their likeliest token would look like any other."""

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
    """A probability with four digits, which are reproducible.

    Sums depend on the batch of a row, so that in float32 the last one or two of seven digits change with it. The
    written digits should not. They are counted from the first nonzero digit, so that rare labels keep four digits too.
    """
    return float(f"{probability:.4g}")


def shown_score(score: float) -> float:
    """A sum of logits, which are a few units large, with three reproducible decimals."""
    return round(score, 3)
