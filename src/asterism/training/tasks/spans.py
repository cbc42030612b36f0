"""Answering by spans: a context read in one window or several, and the best span over all of them.

A window is the question followed by a stretch of the context. Without a stride the context is read once, and what is
beyond the window is cut off; with one, windows follow each other, each sharing `stride` tokens of the context with the
one before, until all of it is read. The first token of a window stands for "no answer here": a window is trained to
point at it when it does not hold the whole answer (Devlin 2019, section 4.3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.data.records import Record
from asterism.training.tasks.answering import FORMATS, Question, read_question, read_questions
from asterism.training.tasks.scores import answer_f1, exact_match
from asterism.training.tasks.task import Feature, Labelling, Logits, inputs_of, shown_score

Span = tuple[float, int, int]
"""Score, first and last token."""


@dataclass(frozen=True, kw_only=True)
class Answering(Labelling[Question]):
    """Which span of its context answers a question.

    length             how many tokens a window has, the question included
    stride             how many tokens of the context consecutive windows share; None: one window, cut off
    max_answer_length  how many tokens an answer may have
    may_have_none      whether a question may be left without an answer
    """

    architecture: ClassVar[str] = "AutoModelForQuestionAnswering"
    formats: ClassVar[tuple[str, ...]] = FORMATS
    outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    per_token: ClassVar[bool] = True
    metric: ClassVar[str] = "f1"
    answer: ClassVar[str] = "answer"

    stride: int | None = None
    max_answer_length: int = 30
    may_have_none: bool

    @classmethod
    def read(cls, path: Path) -> list[Question]:
        """As `read_questions`."""
        return read_questions(path)

    @classmethod
    def of(
        cls,
        examples: Sequence[Question],
        *,
        length: int,
        known: Sequence[str] = (),
        **choices: Any,
    ) -> Self:
        """Questions may be left without an answer if some of the training questions have none. No labels are `known`.

        Raises DataError if none has an answer.
        """
        if not any(question.answers for question in examples):
            raise DataError("data: none of the training questions has an answer")
        may_have_none = any(not question.answers for question in examples)
        return cls(length=length, may_have_none=may_have_none, **choices)

    def example(self, record: Record, *, labelled: bool) -> Question:
        """`context` and `question`, and if `labelled` the `answers`."""
        return read_question(record, labelled=labelled)

    def gold(self, example: Question) -> Any:
        """The texts of all right answers, any of which will do."""
        return [answer.text for answer in example.answers or ()]

    def model_fields(self) -> dict[str, Any]:
        """Nothing: a start and an end need no names."""
        return {}

    def features(self, examples: Sequence[Question], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Feature]]:
        """A feature for each window. The target is the first and last token of the first answer, or (0, 0).

        `tokens` is int32 [N, 2]: the characters of the context that each token covers, (-1, -1) for the question.
        """
        for question in examples:
            windows = []
            for window in self._windows(question, tokenizer):
                covered = np.array(window.offsets, dtype=np.int32)
                covered[[part != 1 for part in window.sequence_ids]] = -1
                windows.append(Feature(inputs_of(window, tokenizer), _target(question, covered), covered))
            yield windows

    def _windows(self, question: Question, tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoding]:
        asked = len(tokenizer(question.question, add_special_tokens=False, verbose=False)["input_ids"])
        room = self.length - asked - tokenizer.num_special_tokens_to_add(pair=True)
        if room <= (self.stride or 0):
            needed = (self.stride or 0) + 1
            raise question.record.error(
                "question",
                f"has {asked:,} tokens and leaves {max(0, room):,} of length {self.length:,} for the context, "
                f"which needs {needed:,}; give a longer length{'' if self.stride is None else ' or a smaller stride'}",
            )
        windows = tokenizer(
            question.question,
            question.context,
            truncation="only_second",
            max_length=self.length,
            stride=self.stride or 0,
            return_overflowing_tokens=self.stride is not None,
        ).encodings
        if not any(part == 1 for part in windows[0].sequence_ids):
            raise question.record.error("context", "has nothing of which the tokenizer makes a token")
        yield from windows

    def notes(self, examples: Sequence[Question], features: Sequence[Sequence[Feature]]) -> list[str]:
        """How many answers no window holds."""
        answered = [windows for question, windows in zip(examples, features, strict=True) if question.answers]
        beyond = sum(all(window.target == (0, 0) for window in windows) for windows in answered)
        if not beyond:
            return []
        more = "a longer length, or a stride" if self.stride is None else "a longer length, or a greater stride"
        return [
            f"{beyond:,} of {len(answered):,} training answers are not within the {self.length:,} tokens of a window:"
            f" {more}, would reach them"
        ]

    def targets(self, features: Sequence[Feature], length: int) -> dict[str, torch.Tensor]:
        """`start_positions` and `end_positions`: int64 [B] each."""
        starts, ends = zip(*(feature.target for feature in features), strict=True)
        return {"start_positions": torch.tensor(starts), "end_positions": torch.tensor(ends)}

    def predict(self, example: Question, features: Sequence[Feature], said: Sequence[Logits]) -> dict[str, Any]:
        """`answer` (text), `answer_start` (null for none), `score`, and `no_answer_score` if that is allowed.

        Scores are sums of a start and an end logit. The answer is the best span of all windows; none is given if it is
        allowed and scores higher, where its score is the least that any window gives it.
        """
        spans: list[tuple[Span, np.ndarray]] = []
        for feature, (starts, ends) in zip(features, said, strict=True):
            assert feature.tokens is not None
            allowed = feature.tokens[:, 0] >= 0
            spans.append((best_span(starts, ends, allowed, self.max_answer_length), feature.tokens))
        (score, first, last), covered = max(spans, key=lambda one: one[0][0])  # of equals the first
        none_score = min(float(starts[0]) + float(ends[0]) for starts, ends in said)
        begin, end = int(covered[first, 0]), int(covered[last, 1])
        answer = {"answer": example.context[begin:end], "answer_start": begin, "score": shown_score(score)}
        if not self.may_have_none:
            return answer
        if none_score > score:
            answer |= {"answer": "", "answer_start": None}
        return answer | {"no_answer_score": shown_score(none_score)}

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


def best_span(starts: np.ndarray, ends: np.ndarray, allowed: np.ndarray, longest: int) -> Span:
    """The span with the greatest sum of start and end logit, among those of allowed tokens and at most `longest` long.

    Arrays are [N]. The allowed tokens stand next to each other, and there is one at least. Of equals the first wins.
    """
    first = int(allowed.argmax())
    starts, ends = starts[allowed].astype(np.float64), ends[allowed].astype(np.float64)
    ahead = np.concatenate([ends, np.full(longest - 1, -np.inf)])
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ahead, longest)
    start, extra = divmod(int(sums.argmax()), longest)
    return float(sums[start, extra]), first + start, first + start + extra


def _target(question: Question, covered: np.ndarray) -> tuple[int, int] | None:
    """The tokens of the first answer, if the window holds all of it; else (0, 0). None if no answer is known."""
    if question.answers is None:
        return None
    if not question.answers:
        return 0, 0
    answer = question.answers[0]
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    end = answer.start + len(answer.text.rstrip())
    inside = np.flatnonzero((covered[:, 0] < end) & (covered[:, 1] > begin))
    context = np.flatnonzero(covered[:, 0] >= 0)
    if not len(inside) or covered[context[0], 0] > begin or covered[context[-1], 1] < end:
        return 0, 0
    return int(inside[0]), int(inside[-1])
