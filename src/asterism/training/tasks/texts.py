"""The tasks of writing: summarising, translating, and generating any text from another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from asterism.training.tasks.text_scores import bleu_and_chrf, exact_match, require, rouge, token_accuracy
from asterism.training.tasks.writing import Writing


@dataclass(frozen=True, kw_only=True)
class Summarization(Writing):
    """What a document says, in short."""

    names: ClassVar[tuple[str, str]] = ("document", "summary")
    metric: ClassVar[str] = "rougeLsum"

    @classmethod
    def require_scorer(cls) -> None:
        require("rouge-score", "rouge_score")

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`rouge1`, `rouge2`, `rougeL`, `rougeLsum`."""
        return rouge(predicted, there)


@dataclass(frozen=True, kw_only=True)
class Translation(Writing):
    """The same in another language."""

    names: ClassVar[tuple[str, str]] = ("source", "target")
    metric: ClassVar[str] = "bleu"
    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")

    @classmethod
    def require_scorer(cls) -> None:
        require("sacrebleu", "sacrebleu")

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`bleu`, `chrf`."""
        return bleu_and_chrf(predicted, there)


@dataclass(frozen=True, kw_only=True)
class Generation(Writing):
    """Any text that belongs to another, where there is one that is right."""

    names: ClassVar[tuple[str, str]] = ("input", "output")
    metric: ClassVar[str] = "exact_match"

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`exact_match`, `token_accuracy`."""
        return {"exact_match": exact_match(predicted, there), "token_accuracy": token_accuracy(predicted, there)}
