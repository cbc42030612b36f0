"""Extractive question answering: the answer to a question is a span of its context.

Files: SQuAD's JSON, 1.1 or 2.0 (`data`, `paragraphs`, `qas`, `is_impossible`); or JSONL with the fields `context`,
`question` and `answers`, which is {"text": [...], "answer_start": [...]} or a list of {"text", "answer_start"}, and
perhaps `id`. `answer_start` counts characters of the context from 0. A question without answers has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asterism.errors import DataError
from asterism.training.data.records import Record, read_json, read_json_lines, suffix


@dataclass(frozen=True)
class Answer:
    """A span of a context: its text, and the number of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context, and the answers that are right; none if the context does not answer it."""

    record: Record
    id: str
    context: str
    question: str
    answers: tuple[Answer, ...]


def read_questions(path: Path) -> list[Question]:
    """All questions of a file. Raises DataError for anything that is not as in the module docstring.

    In particular for an answer that does not stand in its context where it is said to stand.
    """
    is_squad = suffix(path, (".json", ".jsonl")) == ".json"
    questions = [_question(record) for record in (_squad_records(path) if is_squad else read_json_lines(path))]
    if not questions:
        raise DataError(f"data: {path} holds no question")
    return questions


def _squad_records(path: Path) -> Iterator[Record]:
    """The questions of a SQuAD document in the flat form."""
    for article in _children(read_json(path), "data"):
        for paragraph in _children(article, "paragraphs"):
            context = paragraph.text("context")
            for question in _children(paragraph, "qas"):
                fields = {**question.fields, "context": context}
                if fields.get("is_impossible"):
                    fields["answers"] = []
                yield Record(question.place, fields)


def _children(record: Record, field: str) -> Iterator[Record]:
    values = record.get(field)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise record.error(field, "must be a list of JSON objects")
    for number, value in enumerate(values):
        yield Record(f"{record.place}, {field}[{number}]", value)


def _question(record: Record) -> Question:
    context, question = record.text("context"), record.text("question")
    answers = tuple(_answer(record, context, *pair) for pair in _answer_pairs(record))
    return Question(record, str(record.fields.get("id", record.place)), context, question, answers)


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
