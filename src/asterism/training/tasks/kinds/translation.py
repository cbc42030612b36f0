"""Translation: write a text in another language."""

from collections.abc import Sequence
from typing import Any, ClassVar

from asterism.training.tasks.kinds.writing import DecoderAnswers, PairExamples, PairRows
from asterism.training.tasks.scores.texts import bleu_and_chrf
from asterism.training.tasks.task import Kind


class Translations(PairExamples):
    """Texts in two languages, without questions."""

    names: ClassVar[tuple[str, str]] = ("source", "target")
    question: ClassVar[str | None] = None


class TranslationRows(PairRows):
    """Rows of the texts in one of the languages."""

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut")


class TranslationAnswers(DecoderAnswers):
    """Translations, compared with the reference translations."""

    answer: ClassVar[str] = "target"
    metric: ClassVar[str] = "bleu"
    package: ClassVar[tuple[str, str] | None] = ("sacrebleu", "sacrebleu")

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`bleu`, `chrf`."""
        return bleu_and_chrf(predicted, there)


TRANSLATION = Kind("translation", Translations, TranslationRows, TranslationAnswers)
