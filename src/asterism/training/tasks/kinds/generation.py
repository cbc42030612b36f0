"""Generation: write any text that belongs to another, if a single text is right."""

from collections.abc import Sequence
from typing import Any, ClassVar

from asterism.training.tasks.kinds.writing import DecoderAnswers, PairExamples, PairRows
from asterism.training.tasks.scores.texts import exactness
from asterism.training.tasks.task import Kind


class Outputs(PairExamples):
    """Texts and what is made of them."""

    names: ClassVar[tuple[str, str]] = ("input", "output")


class OutputAnswers(DecoderAnswers):
    """Answers that are right or wrong."""

    answer: ClassVar[str] = "output"
    metric: ClassVar[str] = "exact_match"

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`exact_match`, and `token_accuracy` of tokens that are separated by white space."""
        return exactness(predicted, there)


GENERATION = Kind("generation", Outputs, PairRows, OutputAnswers)
