"""Summarization: write the content of a document in short, or what it says about a question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from asterism.training.readers.reader import Reader
from asterism.training.readers.selected import Iterated, SummarizedParts
from asterism.training.tasks.kinds.writing import DecoderAnswers, Pair, PairExamples, PairRows
from asterism.training.tasks.rows import Feature
from asterism.training.tasks.scores.texts import rouge
from asterism.training.tasks.task import Kind


class Summaries(PairExamples):
    """Documents with summaries."""

    names: ClassVar[tuple[str, str]] = ("document", "summary")


@dataclass(frozen=True, kw_only=True)
class SummaryRows(PairRows):
    """Rows of documents. A document that is read again is read in parts, and then the summaries of the parts are read
    together.
    """

    readers: ClassVar[tuple[str, ...]] = (*PairRows.readers, "iterated")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.reading  # refuses readers that it cannot use

    @property
    def reading(self) -> Reader:
        """Instead of windows of a document, its parts."""
        found = super().reading
        return SummarizedParts(**vars(found)) if isinstance(found, Iterated) else found

    def training_features(
        self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """The parts of a document that is read again, each with its sentences of the target. Parts without one are left
        out.
        """
        reader = self.reading
        if not isinstance(reader, SummarizedParts):
            yield from super().training_features(examples, tokenizer)
            return
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            parts = reader.rows(document)
            texts = reader.shared_out(document, parts, example.target or "")
            said = [(part, replace(example, target=text)) for part, text in zip(parts, texts, strict=True) if text]
            targets = self.targets_of([one for _, one in said], tokenizer)
            yield [
                replace(self.feature(one, encoded, part), target=target)
                for (part, one), target in zip(said, targets, strict=True)
            ]

    def again(
        self, example: Pair, features: Sequence[Feature], found: Sequence[Any], tokenizer: PreTrainedTokenizerFast
    ) -> list[Feature]:
        """The summaries of the parts, in order, as a document; only its first part if that would not end otherwise."""
        if not isinstance(self.reading, SummarizedParts) or len(features) == 1:
            return []
        joined = replace(example, source="\n".join(filter(None, found)), target=None)
        (encoded,) = self.encoded([joined], tokenizer)
        if not encoded.tokens:  # the model had nothing to say
            return []
        rows = self.reading.rows(self.document(joined, encoded))
        return [self.feature(joined, encoded, row) for row in (rows if len(rows) < len(features) else rows[:1])]


class SummaryAnswers(DecoderAnswers):
    """Summaries, compared by the words that they share with the reference summaries."""

    answer: ClassVar[str] = "summary"
    metric: ClassVar[str] = "rougeLsum"
    package: ClassVar[tuple[str, str] | None] = ("rouge-score", "rouge_score")

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`rouge1`, `rouge2`, `rougeL`, `rougeLsum`."""
        return rouge(predicted, there)


SUMMARIZATION = Kind("summarization", Summaries, SummaryRows, SummaryAnswers)
