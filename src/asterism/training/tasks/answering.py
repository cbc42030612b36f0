"""Extractive question answering: the answer to a question is a span of its context.

Files: SQuAD's JSON, 1.1 or 2.0 (`data`, `paragraphs`, `qas`, `is_impossible`); or JSONL with the fields `context`,
`question` and `answers`, which is {"text": [...], "answer_start": [...]} or a list of {"text", "answer_start"}, and
perhaps `id`. `answer_start` counts characters of the context from 0. A question without answers has none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.training.data.records.formats import read_records
from asterism.training.data.records.record import Record

FORMATS = ("jsonl", "json")


@dataclass(frozen=True)
class Answer:
    """A span of a context: its text, and the number of its first character."""

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


def read_questions(path: Path) -> list[ContextQuestion]:
    """All questions of a file. Raises DataError for anything that is not as in the module docstring.

    In particular for an answer that does not stand in its context where it is said to stand.
    """
    return [read_question(record, labelled=True) for record in read_records(path, FORMATS)]


def read_question(record: Record, *, labelled: bool) -> ContextQuestion:
    """The question of a record, and its answers if it is `labelled`. Raises DataError."""
    context, question = record.text("context"), record.text("question")
    if not labelled:
        return ContextQuestion(record, context, question, None)
    return ContextQuestion(
        record, context, question, tuple(_answer(record, context, *pair) for pair in _answer_pairs(record))
    )


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
            "answers", f"says {text!r:.60} is at character {start:,}, but there is {found!r:.60}; {where}"
        )
    return Answer(text, start)
