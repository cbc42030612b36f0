"""Writing: an encoder-decoder generates a text from another, such as a summary or a translation.

Files: JSONL or CSV with two fields, such as `document` and `summary`, and perhaps a `question` about the source, which
precedes it in every row; or lines of text, sources in one file and equally many targets in another. A source longer
than a row is cut, unless the reader does otherwise.

A model learns the target's tokens up to the end token. It answers by greedy search or beams, with the same answer on
every run. If the decoder begins with the token that the tokenizer puts in front, targets omit that token. Otherwise the
decoder would read it twice. A decoder with relative positions (rotary, buckets) cannot distinguish once from twice,
because a mean of equal values is that value. It would never learn when the text begins.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast

from asterism.errors import ConfigurationError
from asterism.labels import IGNORED
from asterism.training.data.corpora.tokenization import end_of
from asterism.training.data.records.formats import Format, Lines
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.answers import WrittenAnswers
from asterism.training.tasks.encoding import ENCODED_TOGETHER, Encoded, encode
from asterism.training.tasks.examples import Examples
from asterism.training.tasks.models import ends, longest_target
from asterism.training.tasks.rows import Feature, RankedRows, Studied, pad

SHOWN = 5
"""The most examples on the page of a run."""
MANY_WRITTEN = 20_000
"""Tokens of answers that take minutes to write."""
EXCERPT = 600
"""The most characters of each text on the page."""


@dataclass(frozen=True)
class Pair:
    """A source and its target, which is None if unknown.

    question  what is wanted of it, if something is asked
    names     the fields of source and target
    """

    record: Record
    source: str
    target: str | None
    question: str | None = None
    names: tuple[str, str] = ("source", "target")


@dataclass(frozen=True, kw_only=True)
class PairExamples(Examples[Pair]):
    """Sources with their targets.

    asks  whether each source has a question; those of other data are not read if not
    """

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv", "text")
    names: ClassVar[tuple[str, str]]
    """The fields of source and target."""
    question: ClassVar[str | None] = "question"
    """The field of the question about a source, for tasks with questions."""

    asks: bool = False

    @classmethod
    def format(cls, path: str | Path, asked: str | None = None) -> Format:
        """The format of a file; lines of text have the fields of the task."""
        found = super().format(path, asked)
        return Lines(cls.names) if isinstance(found, Lines) else found

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> list[Pair]:
        """Read the pairs of a file, or of two files with lines of text. Raises DataError, also for an empty target."""
        return [cls.like(record).example(record, labelled=True) for record in cls.records(path, config)]

    @classmethod
    def like(cls, record: Record) -> Self:
        """Sources have questions if the record has the field."""
        return cls(asks=cls.question in record.fields)

    @classmethod
    def decided(cls, training: Sequence[Pair], known: Sequence[str], choices: Mapping[str, Any]) -> dict[str, Any]:
        """Whether any of the sources has a question."""
        return {"asks": any(one.question is not None for one in training)}

    def example(self, record: Record, *, labelled: bool) -> Pair:
        """The source, its question if there are questions, and the target if `labelled`."""
        source, target = self.names
        question = record.text(self.question) if self.asks and self.question else None
        texts = record.text(source), record.text(target) if labelled else None
        return Pair(record, *texts, question, self.names)

    def gold(self, example: Pair) -> Any:
        """The target."""
        return example.target

    def beside(self, example: Pair) -> dict[str, Any]:
        """The target."""
        return {self.names[1]: example.target}


@dataclass(frozen=True, kw_only=True)
class PairRows(RankedRows[Pair]):
    """Rows of sources, with the targets to write.

    target_length  how many tokens a target may have, the one that ends it included
    cuts_targets   whether a training target with more tokens is cut off; else it is refused
    source_prefix  what is put before each source, or its question, such as "summarize: "
    asks           whether each source has a question
    start          the token that the decoder begins with, which targets do not repeat
    """

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut", "selected")

    target_length: int
    cuts_targets: bool
    source_prefix: str = ""
    asks: bool = False
    start: int

    @property
    def longest(self) -> tuple[int, ...]:
        return self.length, self.target_length

    def encoded(self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """Encode each source, after its question if there are questions. Raises DataError for a missing question."""
        sources, questions = [one.source for one in examples], None
        if self.asks:
            questions = [one.record.text("question") if one.question is None else one.question for one in examples]
        return encode(sources, tokenizer, questions=questions, prefix=self.source_prefix, most=self.most)

    def feature(self, example: Pair, encoded: Encoded, row: Row) -> Feature:
        """A row of the source; `features` adds its target."""
        return Feature(encoded.row(row), None, row=row)

    def features(self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        """The target is int32 [T], all tokens of the target text, the last one ends it."""
        each = zip(super().features(examples, tokenizer), self.targets_of(examples, tokenizer), strict=True)
        for rows, target in each:
            yield [replace(row, target=target) for row in rows]

    def tokens(self, feature: Feature) -> int:
        """Those of source and target, both of which are padded."""
        return super().tokens(feature) + min(len(feature.target), self.target_length)

    def training_features(
        self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[list[Feature]]:
        """The same as `features`, because every reader of these tasks makes one row of a source."""
        return self.features(examples, tokenizer)

    def wanted(self, studied: Sequence[Studied]) -> list[Sequence[float] | None]:
        """The preferred windows: those that BM25 ranks best for a sentence of the target, weighted by the number of
        sentences.
        """
        found: list[Sequence[float] | None] = []
        for one in studied:
            votes = Counter(number for _, number in one.reader.votes(one.words, one.example.target))
            found.append([float(votes[number]) for number in range(len(one.windows))])
        return found

    def targets_of(self, examples: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Iterator[np.ndarray | None]:
        """The tokens of each target behind `start`, None where none is known. Raises DataError for one with none."""
        end, special = end_of(tokenizer), set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        queue = iter(examples)
        while some := list(islice(queue, ENCODED_TOGETHER)):
            known = [one for one in some if one.target is not None]
            rows = tokenizer(text_target=[one.target for one in known], verbose=False).encodings if known else ()
            encoded = {id(one): row.ids for one, row in zip(known, rows, strict=True)}
            for one in some:
                ids = encoded.get(id(one))
                if ids is not None and special.issuperset(ids):
                    raise one.record.error(one.names[1], "has nothing of which the tokenizer makes a token")
                yield None if ids is None else np.array(self._behind_start(ids, end), dtype=np.int32)

    def _behind_start(self, ids: list[int], end: int | None) -> list[int | None]:
        return [*ids[ids[0] == self.start :], *([] if ids[-1] == end else [end])]

    def notes(self, examples: Sequence[Pair], features: Sequence[Sequence[Feature]]) -> list[str]:
        """A note on the number of cut targets. Raises DataError for the first target that is too long and must not be
        cut.
        """
        targets = [(number, len(one.target)) for number, some in enumerate(features) for one in some]
        long = [(number, tokens) for number, tokens in targets if tokens > self.target_length]
        if not long:
            return []
        if not self.cuts_targets:
            number, tokens = long[0]
            raise examples[number].record.error(
                examples[number].names[1],
                f"has {tokens:,} tokens, the decoder takes {self.target_length:,}; leave it"
                f" out, or give target_length={self.target_length} to have such targets cut off",
            )
        return [
            f"{len(long):,} of {len(targets):,} training targets have more than {self.target_length:,} tokens and were"
            " cut off: a greater target_length would keep them whole"
        ]

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`labels`: int64 [B, T] for the longest target of the batch; IGNORED behind the end of others.

        A target that is cut off keeps the token that ends it.
        """
        rows = [self._cut(feature.target) for feature in features]
        return {"labels": pad(rows, max(map(len, rows)), IGNORED)}

    def _cut(self, target: np.ndarray) -> np.ndarray:
        return target if len(target) <= self.target_length else np.append(target[: self.target_length - 1], target[-1:])


@dataclass(frozen=True, kw_only=True)
class TextAnswers(WrittenAnswers[Pair]):
    """Answers that are generated texts, of any kind of model.

    target_length         how many tokens an answer may have, the one that ends it included
    num_beams             how many answers are followed at once; 1 takes the likeliest token each time
    length_penalty        beams are compared by log probability / tokens ** length_penalty
    no_repeat_ngram_size  no n-gram of this many tokens is repeated; 0 allows it
    """

    target_length: int
    num_beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    def model_fields(self) -> dict[str, Any]:
        """Nothing: texts need no names."""
        return {}

    def notes(self, examples: int) -> list[str]:
        """How much is written at the end, where that can take longer than training."""
        if examples * self.target_length < MANY_WRITTEN:
            return []
        return [
            f"the evaluation at the end writes up to {self.target_length:,} tokens for each of {examples:,} validation"
            " examples; it takes less time with fewer of them (report_examples), or with a smaller target_length"
        ]

    def search(self, **more: Any) -> GenerationConfig:
        """How texts are searched for: what the task says, `more`, and nothing of what the model's folder would."""
        beams = {"num_beams": self.num_beams, "length_penalty": self.length_penalty} if self.num_beams > 1 else {}
        return GenerationConfig(
            max_new_tokens=self.target_length,
            do_sample=False,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            **beams,
            **more,
        )

    def page(
        self, scores: Mapping[str, float], examples: Sequence[Pair], predictions: Sequence[Mapping[str, Any]]
    ) -> str:
        """The scores, and up to `SHOWN` examples, evenly spread, with target and prediction."""
        lines = ["# What the model writes", "", f"{len(examples):,} validation examples.", ""]
        lines += ["| score | |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in scores.items())]
        for number in range(0, len(examples), -(-len(examples) // SHOWN)):
            example, answer = examples[number], predictions[number][self.answer]
            lines += ["", f"## {example.record.place}"]
            shown = zip((*example.names, "predicted"), (example.source, example.target, answer), strict=True)
            for name, text in shown:
                lines += ["", f"{name}:", "", *_quoted(text or "")]
        return "\n".join([*lines, ""])

    def predict(self, example: Pair, features: Sequence[Feature], said: Sequence[str]) -> dict[str, Any]:
        """The text, under the name of the target."""
        return {self.answer: said[0]}


@dataclass(frozen=True, kw_only=True)
class DecoderAnswers(TextAnswers):
    """Texts that the decoder of an encoder-decoder generates."""

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """The length of targets is the setting's, or else the limit of the decoder.

        Raises ConfigurationError for a model that does not generate, for one without the necessary tokens, and for a
        target_length that it cannot have.
        """
        _refuse_unfit(config.model, model, tokenizer)
        return {
            "target_length": _target_length(config, model),
            "cuts_targets": config.target_length is not None,
            "start": _start(model),
        }

    def generation(self, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
        return self.search(
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=end_of(tokenizer),
            decoder_start_token_id=_start(model),
        )


def _quoted(text: str) -> list[str]:
    """The first `EXCERPT` characters as a quotation in Markdown."""
    rest = len(text) - EXCERPT
    text = f"{text[:EXCERPT]} ... ({rest:,} more characters)" if rest > 0 else text
    return [f"> {line}".rstrip() for line in text.split("\n")]


def _start(model: PreTrainedConfig) -> int | None:
    """The token that a decoder begins with."""
    found: int | None = getattr(model, "decoder_start_token_id", None)
    return found


def _refuse_unfit(folder: str, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    if not model.is_encoder_decoder:
        raise ConfigurationError(
            "not-an-encoder-decoder",
            f"model: {folder} holds a {model.model_type} model, which cannot generate text from text; give an"
            " encoder-decoder such as BART or T5",
        )
    for what, token, why in (
        ("tokenizer", tokenizer.pad_token_id, "no padding token (pad_token), which fills up the rows of a batch"),
        ("tokenizer", end_of(tokenizer), "no end-of-sequence token (eos_token), which ends an answer"),
        ("config.json", model.pad_token_id, "no pad_token_id, which a decoder reads in place of what is not there"),
        ("config.json", _start(model), "no decoder_start_token_id, which a decoder begins with"),
    ):
        if token is None:
            raise ConfigurationError("token-missing", f"model: the {what} in {folder} has {why}; give it one")
    known = getattr(getattr(model, "decoder", model), "vocab_size", None)
    for name, token in (("pad_token_id", model.pad_token_id), ("decoder_start_token_id", _start(model))):
        if known is not None and token is not None and not 0 <= token < known:
            raise ConfigurationError(
                "token-beyond-decoder",
                f"model: the config.json in {folder} has {name} {token}, but the decoder has tokens 0 to {known - 1:,}",
            )


def _target_length(config: FineTuneConfig, model: PreTrainedConfig) -> int:
    """The most tokens of an answer. Raises ConfigurationError if neither setting nor model limits it, or beyond the
    limit.
    """
    most = longest_target(model)
    if config.target_length is None:
        if most is None:
            raise ConfigurationError(
                "target-length-unsaid",
                f"target_length: the decoder in {config.model} has no maximum length; give one",
            )
        return most
    if most is not None and config.target_length > most and ends(model):
        raise ConfigurationError(
            "target-beyond-decoder",
            f"target_length: got {config.target_length:,} tokens, but the decoder in {config.model} takes at most"
            f" {most:,}",
        )
    return config.target_length
