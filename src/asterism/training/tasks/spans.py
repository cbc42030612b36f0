"""Answering by spans: a context read in one window or several, and the best span over all of them.

A window is the question followed by a stretch of the context. Without a stride the context is read once, and what is
beyond the window is cut off; with one, windows follow each other, each sharing `stride` tokens of the context with the
one before, until all of it is read. The first token of a window stands for "no answer here": a window is trained to
point at it when it does not hold the whole answer (Devlin 2019, section 4.3).
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.training.tasks.answering import Question
from asterism.training.tasks.scores import answer_f1, exact_match
from asterism.training.tasks.task import Feature, Logits, Task, inputs_of

Span = tuple[float, int, int]
"""Score, first and last token."""


class Answering(Task[Question]):
    """Which span of its context answers a question.

    length             how many tokens a window has, the question included
    stride             how many tokens of the context consecutive windows share; None: one window, cut off
    max_answer_length  how many tokens an answer may have
    """

    architecture: ClassVar[str] = "AutoModelForQuestionAnswering"
    outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    per_token: ClassVar[bool] = True
    headline = "f1"

    def __init__(
        self, questions: Sequence[Question], *, length: int, stride: int | None = None, max_answer_length: int = 30
    ) -> None:
        """Questions may be left without an answer if some of the training questions have none."""
        self.length = length
        self.stride = stride
        self.max_answer_length = max_answer_length
        self.may_have_none = any(not question.answers for question in questions)
        if not any(question.answers for question in questions):
            raise DataError("data: none of the training questions has an answer")

    def model_fields(self) -> dict[str, Any]:
        """Nothing: a start and an end need no names."""
        return {}

    def features(self, examples: Sequence[Question], tokenizer: PreTrainedTokenizerFast) -> list[Feature]:
        """A feature for each window. The target is the first and last token of the first answer, or (0, 0).

        `tokens` is int32 [N, 2]: the characters of the context that each token covers, (-1, -1) for the question.
        """
        features = []
        for number, question in enumerate(examples):
            for window in self._windows(question, tokenizer):
                covered = np.array(window.offsets, dtype=np.int32)
                covered[[part != 1 for part in window.sequence_ids]] = -1
                target = _target(question, covered)
                features.append(Feature(number, inputs_of(window, tokenizer), target, covered))
        return features

    def _windows(self, question: Question, tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoding]:
        asked = len(tokenizer(question.question, add_special_tokens=False)["input_ids"])
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

    def notes(self, examples: Sequence[Question], features: Sequence[Feature]) -> list[str]:
        """How many answers no window holds."""
        held = {feature.example for feature in features if feature.target != (0, 0)}
        answered = [number for number, question in enumerate(examples) if question.answers]
        beyond = sum(number not in held for number in answered)
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

    def predict(
        self, examples: Sequence[Question], features: Sequence[Feature], logits: Sequence[Logits]
    ) -> list[dict[str, Any]]:
        """`id`, `answer` (text), `answer_start` (null for none), `score`, and `no_answer_score` if that is allowed.

        Scores are sums of a start and an end logit. The answer is the best span of all windows; none is given if it is
        allowed and scores higher, where its score is the least that any window gives it.
        """
        best: list[tuple[Span, Feature] | None] = [None] * len(examples)
        none = [np.inf] * len(examples)
        for feature, (starts, ends) in zip(features, logits, strict=True):
            span = best_span(starts, ends, feature.tokens[:, 0] >= 0, self.max_answer_length)
            at = feature.example
            none[at] = min(none[at], float(starts[0]) + float(ends[0]))
            kept = best[at]
            if kept is None or span > kept[0]:
                best[at] = span, feature
        return [
            self._prediction(question, *kept, none_score)
            for question, kept, none_score in zip(examples, best, none, strict=True)
        ]

    def _prediction(self, question: Question, span: Span, window: Feature, none_score: float) -> dict[str, Any]:
        score, first, last = span
        begin, end = int(window.tokens[first, 0]), int(window.tokens[last, 1])
        prediction = {"id": question.id, "answer": question.context[begin:end], "answer_start": begin, "score": score}
        if not self.may_have_none:
            return prediction
        if none_score > score:
            prediction |= {"answer": "", "answer_start": None}
        return prediction | {"no_answer_score": none_score}

    def score(self, examples: Sequence[Question], predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
        """`exact_match` and `f1`, from 0 to 1, over all questions; if some have no answer, also for each kind apart."""
        pairs = [
            (prediction["answer"], [answer.text for answer in question.answers])
            for question, prediction in zip(examples, predictions, strict=True)
        ]
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


def _target(question: Question, covered: np.ndarray) -> tuple[int, int]:
    """The tokens of the first answer, if the window holds all of it; else (0, 0)."""
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
