"""Extractive question answering: the answer to a question is a span of its context.

Files: SQuAD's JSON, 1.1 or 2.0 (`data`, `paragraphs`, `qas`, `is_impossible`); or JSONL with the fields `context`,
`question` and `answers`, which is {"text": [...], "answer_start": [...]} or a list of {"text", "answer_start"}, and
perhaps `id`. `answer_start` counts characters of the context from 0. A question without answers has none.

A context is read in one or more rows. The best span over all rows is the answer. A row is the question, followed by the
part of the context that the reader chose. The first token of a row means "no answer here": a row is trained to point at
it if it does not hold the whole answer in one piece (Devlin 2019, section 4.3).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.records.record import Record
from asterism.training.readers.reader import Row
from asterism.training.tasks.answers import Logits, RankedAnswers, shown_score
from asterism.training.tasks.encoding import Encoded, encode
from asterism.training.tasks.examples import Examples
from asterism.training.tasks.rows import Feature, RankedRows, Studied
from asterism.training.tasks.scores.answers import answer_f1, exact_match
from asterism.training.tasks.task import Kind

Span = tuple[float, int, int]
"""Score, first and last token."""


@dataclass(frozen=True)
class Answer:
    """A span of a context: its text, and the index of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class ContextQuestion:
    """A question about a context, and the answers that are right; none if the context does not answer it.

    `answers` is None if they are not known.
    """

    record: Record
    context: str
    question: str
    answers: tuple[Answer, ...] | None


@dataclass(frozen=True, kw_only=True)
class Questions(Examples[ContextQuestion]):
    """Questions about contexts, with the spans that answer them."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "json")

    @classmethod
    def decided(
        cls, training: Sequence[ContextQuestion], known: Sequence[str], choices: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Predictions may be empty if some of the training questions have no answer.

        Raises DataError if none has an answer.
        """
        if not any(question.answers for question in training):
            raise DataError("no-answers", "data: none of the training questions has an answer")
        return {"may_have_none": any(not question.answers for question in training)}

    def example(self, record: Record, *, labelled: bool) -> ContextQuestion:
        """`context` and `question`, and if `labelled` the `answers`."""
        context, question = record.text("context"), record.text("question")
        if not labelled:
            return ContextQuestion(record, context, question, None)
        answers = tuple(_answer(record, context, *pair) for pair in _answer_pairs(record))
        return ContextQuestion(record, context, question, answers)

    def gold(self, example: ContextQuestion) -> Any:
        """The texts of all right answers; each of them counts as correct."""
        return [answer.text for answer in example.answers or ()]


class QuestionRows(RankedRows[ContextQuestion]):
    """Rows of a question and stretches of its context."""

    readers: ClassVar[tuple[str, ...]] = ("whole", "cut", "windows", "selected", "iterated")

    def encoded(self, examples: Sequence[ContextQuestion], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """Encode each context after its question."""
        contexts, questions = ([getattr(one, part) for one in examples] for part in ("context", "question"))
        return encode(contexts, tokenizer, questions=questions)

    def feature(self, example: ContextQuestion, encoded: Encoded, row: Row) -> Feature:
        """The target is the first and last token of the first answer, or (0, 0).

        `tokens` is int32 [N, 2]: the characters of the context that each token covers, (-1, -1) for the question.
        """
        covered = encoded.along(row, encoded.characters, -1)
        return Feature(encoded.row(row), _target(example, covered, _pieces(covered, row)), covered, row)

    def notes(self, examples: Sequence[ContextQuestion], features: Sequence[Sequence[Feature]]) -> list[str]:
        """A note on the number of answers that no row holds."""
        answered = [windows for question, windows in zip(examples, features, strict=True) if question.answers]
        beyond = sum(all(window.target == (0, 0) for window in windows) for windows in answered)
        if not beyond:
            return []
        return [
            f"{beyond:,} of {len(answered):,} training answers are in no row of {self.length:,} tokens by reader"
            f" {self.reader}: a longer length, or another reader, would reach them"
        ]

    def wanted(self, studied: Sequence[Studied]) -> list[Sequence[float] | None]:
        """The windows that hold all of the first answer."""
        return [
            _holding(one.example, [one.encoded.characters[slice(*window)] for window in one.windows]) for one in studied
        ]

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`start_positions` and `end_positions`: int64 [B] each."""
        starts, ends = zip(*(feature.target for feature in features), strict=True)
        return {"start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}


@dataclass(frozen=True, kw_only=True)
class SpanAnswers(RankedAnswers[ContextQuestion]):
    """Answers that are spans of the context.

    max_answer_length  how many tokens an answer may have
    may_have_none      whether a question may be left without an answer
    """

    architecture: ClassVar[str] = "AutoModelForQuestionAnswering"
    outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    per_token: ClassVar[bool] = True
    metric: ClassVar[str] = "f1"
    answer: ClassVar[str] = "answer"
    pools: ClassVar[tuple[str, ...]] = ("span",)

    max_answer_length: int = 30
    may_have_none: bool

    def model_fields(self) -> dict[str, Any]:
        """No fields, because a start and an end need no names."""
        return {}

    def predict(self, example: ContextQuestion, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`answer` (text), `answer_start` (null for none), `score`, and `no_answer_score` if that is allowed.

        Scores are sums of a start and an end logit. The answer is the best span of all rows. If questions may have no
        answer, its score is the lowest that any row gives it, and the answer is empty if that is higher.
        """
        spans = [self._best(feature, one) for feature, one in zip(features, said, strict=True)]
        number = max(range(len(spans)), key=lambda one: spans[one][0])  # of equals the first
        (score, first, last), covered = spans[number], features[number].tokens
        assert covered is not None
        none_score = min(float(starts[0]) + float(ends[0]) for starts, ends in said)
        text = example.context[int(covered[first, 0]) : int(covered[last, 1])]
        begin = int(covered[first, 0]) + len(text) - len(text.lstrip())  # some tokenizers count a space to its word
        answer = {"answer": text.strip(), "answer_start": begin, "score": shown_score(score)}
        if not self.may_have_none:
            return answer
        if none_score > score:
            answer |= {"answer": "", "answer_start": None}
        return answer | {"no_answer_score": shown_score(none_score)}

    def found(self, feature: Feature, said: Logits) -> float:
        """The margin by which the best span scores higher than "no answer"."""
        return self._best(feature, said)[0] - float(said[0][0]) - float(said[1][0])

    def _best(self, feature: Feature, logits: Logits) -> Span:
        """The best span of a row. It lies within one piece of the context, because the text between pieces was not
        read.
        """
        assert feature.tokens is not None
        starts, ends = logits
        spans = []
        for begin, end in _pieces(feature.tokens, feature.row):
            allowed = np.zeros(len(feature.tokens), dtype=bool)
            allowed[begin:end] = True
            spans.append(best_span(starts, ends, allowed, self.max_answer_length))
        return max(spans, key=lambda one: one[0])  # of equals the first

    def score(self, predicted: Sequence[Any], there: Sequence[Any]) -> dict[str, float]:
        """`exact_match` and `f1`, from 0 to 1, over all questions; if some have no answer, also for each kind apart."""
        pairs = list(zip(predicted, there, strict=True))
        groups = {"": pairs, "has_answer_": [pair for pair in pairs if pair[1]]}
        groups["no_answer_"] = [pair for pair in pairs if not pair[1]]
        if not groups["has_answer_"] or not groups["no_answer_"]:
            groups = {"": pairs}
        return {
            f"{group}{name}": sum(measure(*pair) for pair in members) / len(members)
            for group, members in groups.items()
            for name, measure in (("exact_match", exact_match), ("f1", answer_f1))
        }


ANSWERING = Kind("answering", Questions, QuestionRows, SpanAnswers)


def _answer_pairs(record: Record) -> list[tuple[Any, Any]]:
    """(text, start) of each answer, from either of the two forms."""
    answers = record.get("answers")
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    elif isinstance(answers, list) and all(isinstance(one, dict) for one in answers):
        return [(one.get("text"), one.get("answer_start")) for one in answers]
    raise record.error("answers", 'must be {"text": [...], "answer_start": [...]}, two lists of one length')


def _answer(record: Record, context: str, text: Any, start: Any) -> Answer:
    if not isinstance(text, str) or not text or not isinstance(start, int) or isinstance(start, bool):
        raise record.error("answers", f"has an answer of text {text!r:.40} and answer_start {start!r:.40}")
    found = context[start : start + len(text)] if start >= 0 else ""
    if found != text:
        first = context.find(text)
        where = f"it is at {first:,}" if first >= 0 else "it is nowhere in the context"
        raise record.error(
            "answers", f"has {text!r:.60} at character {start:,}, but the text there is {found!r:.60}; {where}"
        )
    return Answer(text, start)


def best_span(starts: np.ndarray, ends: np.ndarray, allowed: np.ndarray, longest: int) -> Span:
    """The span with the greatest sum of start and end logit, among those of allowed tokens and at most `longest` long.

    `starts` and `ends` are float32 [N], and `allowed` is bool [N]. The allowed tokens are consecutive, and at least one
    is allowed. The first of equal spans wins.
    """
    first = int(allowed.argmax())
    starts, ends = starts[allowed].astype(np.float64), ends[allowed].astype(np.float64)
    ahead = np.concatenate([ends, np.full(longest - 1, -np.inf)])
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ahead, longest)
    start, extra = divmod(int(sums.argmax()), longest)
    return float(sums[start, extra]), first + start, first + start + extra


def _pieces(covered: np.ndarray, row: Row) -> list[tuple[int, int]]:
    """Where in a row the pieces of the context begin and end."""
    ends = int((covered[:, 0] >= 0).argmax()) + np.cumsum([end - begin for begin, end in row])
    return [(int(end) - (last - first), int(end)) for end, (first, last) in zip(ends, row, strict=True)]


def _target(
    question: ContextQuestion, covered: np.ndarray, pieces: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """The tokens of the first answer, if a piece of the row holds all of it; else (0, 0). None if none is known."""
    if question.answers is None:
        return None
    if not question.answers:
        return 0, 0
    for first, last in pieces:
        if (held := _held(question.answers[0], covered[first:last])) is not None:
            return first + held[0], first + held[1]
    return 0, 0


def _held(answer: Answer, piece: np.ndarray) -> tuple[int, int] | None:
    """The first and last token of an answer in a piece of its context, given as `covered`, if that holds all of it."""
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    end = answer.start + len(answer.text.rstrip())
    inside = np.flatnonzero((piece[:, 0] < end) & (piece[:, 1] > begin))
    whole = len(inside) > 0 and piece[0, 0] <= begin and piece[-1, 1] >= end
    return (int(inside[0]), int(inside[-1])) if whole else None


def _holding(question: ContextQuestion, windows: Sequence[np.ndarray]) -> list[float] | None:
    """Which windows hold all of the first answer, as 1 and 0; None if none does."""
    if not question.answers:
        return None
    held = [float(_held(question.answers[0], window) is not None) for window in windows]
    return held if any(held) else None
