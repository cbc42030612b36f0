"""The tasks of writing: summarising, translating, and generating any text from another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError
from asterism.training.readers.reader import Document, Row
from asterism.training.readers.selected import Iterated
from asterism.training.tasks.task import Feature
from asterism.training.tasks.text_scores import bleu_and_chrf, exact_match, require, rouge, token_accuracy
from asterism.training.tasks.writing import Pair, Writing


@dataclass(frozen=True, kw_only=True)
class Summarization(Writing):
    """What a document says, in short."""

    names: ClassVar[tuple[str, str]] = ("document", "summary")
    metric: ClassVar[str] = "rougeLsum"
    readers: ClassVar[tuple[str, ...]] = (*Writing.readers, "iterated")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(reader := self.reading, Iterated) and reader.k != Iterated.k:
            raise ConfigurationError(
                f"reader: iterated: all summaries of parts are read again, so k={reader.k} says nothing"
            )

    def rows(self, document: Document) -> list[Row]:
        """Of a document that is read again the parts."""
        reader = self.reading
        return reader.parts(document) if isinstance(reader, Iterated) else reader.rows(document)

    @property
    def needs(self) -> int:
        """Of a document that is read again one more than parts share, whatever `k`."""
        return self.reading.stride + 1 if isinstance(self.reading, Iterated) else super().needs

    def training_features(
        self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """Of a document that is read again the parts that have something to say, each with its sentences."""
        reader = self.reading
        if not isinstance(reader, Iterated):
            yield from super().training_features(examples, tokenizer)
            return
        for example, encoded in zip(examples, self.encoded(examples, tokenizer), strict=True):
            document = self.document(example, encoded)
            parts = reader.parts(document)
            texts = reader.shared_out(document, parts, example.target or "")
            said = [(part, replace(example, target=text)) for part, text in zip(parts, texts, strict=True) if text]
            targets = self.targets_of([one for _, one in said], tokenizer)
            yield [
                replace(self.feature(one, encoded, part), target=target)
                for (part, one), target in zip(said, targets, strict=True)
            ]

    def again(
        self, example: Pair, features: Sequence[Feature], said: Sequence[Any], tokenizer: PreTrainedTokenizerFast
    ) -> list[Feature]:
        """The summaries of the parts, one after the other, as a document; its first part, if that would not end."""
        if not self.reading.reads_again or len(features) == 1:
            return []
        joined = replace(example, source="\n".join(filter(None, said)), target=None)
        (encoded,) = self.encoded([joined], tokenizer)
        if not encoded.tokens:  # the model had nothing to say
            return []
        rows = self.rows(self.document(joined, encoded))
        return [self.feature(joined, encoded, row) for row in (rows if len(rows) < len(features) else rows[:1])]

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
    question: ClassVar[str | None] = None

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
        """`exact_match`, and `token_accuracy` of tokens that are parted by white space."""
        return {"exact_match": exact_match(predicted, there), "token_accuracy": token_accuracy(predicted, there)}
