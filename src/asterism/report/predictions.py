"""Predictions of a fine-tuned run next to what is right, in the text that they are about.

A run folder holds what the model says about each validation example and where that stands in the data. The texts and
the right answers are read from the data, if these still are what the run was trained on.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from asterism.errors import AsterismError
from asterism.presence import pair_of
from asterism.report.reading import MOST_BYTES, MOST_TEXT, JsonObjects, number, plain
from asterism.system import sha256_of
from asterism.training.data.records.formats import Lines, format_of
from asterism.training.data.records.record import source_of
from asterism.training.tasks.scores.answers import exact_match

MOST_PREDICTED = 2**24
"""How many bytes of predictions are read: they are read twice."""
Segment = dict[str, Any]
"""A stretch of a text: `text` with its `marks`, or how many characters are `skipped`."""


class Fields(NamedTuple):
    """How records of a task are read: their formats, the fields of the text, of a question, and of what is right."""

    formats: tuple[str, ...]
    text: str
    question: str | None
    right: tuple[str, ...]
    predicted: tuple[str, ...]


_PAIRS = ("jsonl", "csv", "text")
TASKS = {
    "classify": Fields(("jsonl", "csv"), "text", None, ("label", "labels"), ("label", "labels")),
    "tag": Fields(("jsonl", "conll"), "tokens", None, ("tags",), ("tags",)),
    "qa": Fields(("jsonl", "json"), "context", "question", ("answers",), ("answer",)),
    "summarize": Fields(_PAIRS, "document", "question", ("summary",), ("summary",)),
    "translate": Fields(_PAIRS, "source", None, ("target",), ("target",)),
    "generate": Fields(_PAIRS, "input", "question", ("output",), ("output",)),
    "complete": Fields(_PAIRS, "prompt", None, ("completion",), ("completion",)),
    "instruct": Fields(("jsonl",), "messages", None, ("answer",), ("answer",)),
}
WRITTEN = ("summarize", "translate", "generate", "complete", "instruct")
"""Tasks whose answers are texts: of these none is simply right or wrong."""


@dataclass
class Predictions:
    """Predictions that a page shows, and how many there are.

    right, wrong  how many are; None where nobody knows
    remarks       sentences on what is left out
    """

    total: int = 0
    right: int | None = None
    wrong: int | None = None
    shown: list[dict[str, Any]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    file: str = ""

    def as_json(self) -> dict[str, Any]:
        """The predictions as the document has them."""
        return vars(self)


def read_predictions(path: Path, settings: Mapping[str, Any], sha256: str, most: int) -> Predictions:
    """At most so many of the predictions in a file: half of them wrong ones, if there are so many."""
    lines = JsonObjects(path, MOST_PREDICTED)
    found = Predictions(file=str(path))
    places = {place for line in lines if isinstance(place := line.get("record"), str)}
    records = _Data(settings, sha256).read(places, found.remarks) if places else {}
    judged: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    kept: dict[bool | None, list[tuple[int, dict[str, Any]]]] = {True: [], False: [], None: []}
    for at, line in enumerate(lines):
        record = records.get(str(line.get("record")), {})
        right = _is_right(settings["task"], line, record)
        judged[right] += 1
        if len(kept[right]) < most:
            kept[right].append((at, _shown(settings["task"], line, record, right)))
    found.total = sum(judged.values())
    if judged[None] < found.total:
        found.right, found.wrong = judged[True], judged[False]
    wrong = kept[False][: max(most // 2, most - len(kept[True]) - len(kept[None]))]
    rest = sorted([*kept[True], *kept[None]], key=lambda one: one[0])[: most - len(wrong)]
    found.shown = [one for _, one in sorted([*wrong, *rest], key=lambda one: one[0])]
    if len(found.shown) < found.total:
        left = found.total - len(found.shown)
        known = "that were read " if lines.is_cut else ""
        found.remarks.append(f"{left:,} of {found.total:,} predictions {known}are not shown: {path} holds all of them.")
    if lines.remark is not None:
        found.remarks.append(lines.remark)
    return found


# --- what is right ---------------------------------------------------------------------------------------------------


class _Data:
    """The data of a run, of which records are read by their places."""

    def __init__(self, settings: Mapping[str, Any], sha256: str) -> None:
        self.task, self.sha256 = settings["task"], sha256
        self.paths = [path for path in (settings["data"], settings.get("validation")) if isinstance(path, str)]
        self.by_modality = settings.get("modality") is not None

    def read(self, places: set[str], remarks: list[str]) -> dict[str, dict[str, Any]]:
        """The fields of the records at these places; what keeps them from being read is added to `remarks`."""
        if self.task not in TASKS or self.by_modality:
            return {}
        files = [Path(one) for path in self.paths for one in (pair_of(path) or (path,))]
        named = " and ".join(plain(str(file), 200) for file in files)
        what = "texts and right answers are left out"
        try:
            if not all(file.is_file() for file in files):
                remarks.append(f"The data are no longer at {named}: {what}.")
                return {}
            if sum(file.stat().st_size for file in files) > MOST_BYTES:
                remarks.append(f"{named} has more than {MOST_BYTES // 2**20} MiB: {what}.")
                return {}
            if _hash(files) != self.sha256:
                remarks.append(f"{named} changed since the run began, by its SHA-256: {what}.")
                return {}
            return {place: fields for path in self.paths for place, fields in self._records(path) if place in places}
        except (AsterismError, OSError, ValueError) as error:
            remarks.append(f"{named} cannot be read ({plain(str(error), 200)}): {what}.")
            return {}

    def _records(self, path: str) -> Iterable[tuple[str, dict[str, Any]]]:
        names = TASKS[self.task]
        kind = format_of(path, names.formats)
        if isinstance(kind, Lines):
            kind = Lines((names.text, names.right[0]))
        for record in kind.read(source_of(path)):
            yield record.place, record.fields


def _hash(files: Sequence[Path]) -> str:
    """The identity of the data, as the corpus of the run has it."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(sha256_of(path))
    return digest.hexdigest()


def _is_right(task: str, line: Mapping[str, Any], record: Mapping[str, Any]) -> bool | None:
    """Whether a prediction is right; None where nobody knows."""
    there, said = _expected(task, record), _said(task, line)
    if task in WRITTEN or there is None or said is None:
        return None
    if task == "qa":
        return isinstance(said, str) and exact_match(said, there) == 1
    if task == "classify" and isinstance(said, list):
        return sorted(map(str, said)) == sorted(map(str, there if isinstance(there, list) else [there]))
    return bool(said == there or str(said) == str(there))


def _said(task: str, line: Mapping[str, Any]) -> Any:
    names = TASKS[task].predicted if task in TASKS else ()
    return next((line[f"predicted_{name}"] for name in names if f"predicted_{name}" in line), None)


def _expected(task: str, record: Mapping[str, Any]) -> Any:
    """The right answer of a record, as predictions have theirs; of a question all that are right."""
    names = TASKS[task].right if task in TASKS else ()
    found = next((record[name] for name in names if name in record), None)
    if task != "qa":
        return found
    if isinstance(found, dict):
        found = found.get("text")
    elif isinstance(found, list):
        found = [one.get("text") for one in found if isinstance(one, dict)]
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else None


# --- what is shown ---------------------------------------------------------------------------------------------------


def _shown(task: str, line: Mapping[str, Any], record: Mapping[str, Any], right: bool | None) -> dict[str, Any]:
    """A prediction as a page has it. `text` are segments; `figures` are the numbers that the model gave."""
    there, said = _expected(task, record), _said(task, line)
    if there is None and task in WRITTEN:  # the run folder keeps the text that was wanted
        there = line.get(TASKS[task].right[0])
    names = TASKS.get(task)
    question = record.get(names.question) if names is not None and names.question else None
    shown: dict[str, Any] = {
        "record": _place(line.get("record")),
        "right": right,
        "question": None if question is None else plain(question),
        "predicted": _answer(said if names is not None else _rest(line)),
        "expected": None if there is None else _answer(there),
        "text": [],
        "figures": _figures(line),
    }
    if names is not None and names.text in record:
        document = _conversation(record) if task == "instruct" else record[names.text]
        if task == "tag" and isinstance(document, list):
            shown["text"] = _tagged(document, said, there)
        elif isinstance(document, str):
            read = _stretches(line.get("read"), len(document))
            shown["text"] = marked(document, _marks(task, line, record), read)
            shown["read"] = None if read is None else sum(end - begin for begin, end in read)
            shown["characters"] = len(document)
    return shown


def _conversation(record: Mapping[str, Any]) -> str:
    """The messages of a record before its last answer, as people read them."""
    given = record["messages"]
    messages = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    if messages and messages[-1].get("role") == "assistant":
        del messages[-1]
    return "\n".join(f"{one.get('role')}: {one.get('content')}" for one in messages)


def _place(record: Any) -> str:
    """Where a record stands, without the folders of its file."""
    file, comma, line = plain(record if isinstance(record, str) else "?", 300).rpartition(", ")
    return f"{Path(file).name}{comma}{line}"


def _answer(value: Any) -> str:
    """An answer in one text: of several all, with commas."""
    if isinstance(value, list):
        return plain(", ".join(plain(one, 200) for one in value[:200]) or "none")
    return plain(value) if value not in ("", None) else "no answer"


def _rest(line: Mapping[str, Any]) -> str:
    """All that a model says about an example of a task that is shown as it is."""
    said = {name.removeprefix("predicted_"): value for name, value in line.items() if name.startswith("predicted_")}
    return plain(said, 600)


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The probabilities, the most likely first, and scores of a prediction."""
    found = {}
    each = line.get("predicted_probabilities")
    if isinstance(each, dict):
        known = [(plain(str(name), 60), value) for name, value in each.items() if number(value) is not None]
        found = dict(sorted(known, key=lambda one: -one[1])[:5])
    for name in ("predicted_score", "predicted_no_answer_score"):
        if (value := number(line.get(name))) is not None:
            found[name.removeprefix("predicted_").replace("_", " ")] = value
    return found


def _tagged(tokens: Sequence[Any], said: Any, there: Any) -> list[Segment]:
    """The words with their tags, 300 of them at most: those that were found, and those that should have been."""
    predicted = said if isinstance(said, list) else []
    right = there if isinstance(there, list) else []
    segments: list[Segment] = []
    for at, token in enumerate(tokens[:300]):
        tag = predicted[at] if at < len(predicted) else None
        wanted = right[at] if at < len(right) else tag
        one: Segment = {"text": plain(token, 100), "marks": []}
        if tag != wanted:
            one |= {"marks": ["wrong"], "tag": f"{plain(tag, 40)}, right: {plain(wanted, 40)}"}
        elif tag not in (None, "O"):
            one |= {"marks": ["right"], "tag": plain(tag, 40)}
        segments.append(one)
    return [*segments, {"skipped": len(tokens) - 300, "unit": "words"}] if len(tokens) > 300 else segments


def _marks(task: str, line: Mapping[str, Any], record: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Stretches of a context that are to be marked: the answer that was given, and the first that is right."""
    if task != "qa":
        return []
    marks, said, begin = [], line.get("predicted_answer"), line.get("predicted_answer_start")
    if isinstance(said, str) and said and isinstance(begin, int):
        marks.append((begin, begin + len(said), "answer"))
    answers = record.get("answers")
    if isinstance(answers, dict):
        pairs = zip(answers.get("text") or (), answers.get("answer_start") or (), strict=False)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
    for one in answers[:1] if isinstance(answers, list) else ():
        text, start = (one.get("text"), one.get("answer_start")) if isinstance(one, dict) else (None, None)
        if isinstance(text, str) and isinstance(start, int):
            marks.append((start, start + len(text), "expected"))
    return marks


def _stretches(value: Any, length: int) -> list[tuple[int, int]] | None:
    """The stretches of a document that were read, in order and apart; None if that was not recorded."""
    if not isinstance(value, list):
        return None
    pairs = [one for one in value if isinstance(one, list) and len(one) == 2 and all(type(end) is int for end in one)]
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((max(0, begin), min(end, length)) for begin, end in pairs):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def marked(
    text: str, marks: Sequence[tuple[int, int, str]], read: Sequence[tuple[int, int]] | None, most: int = MOST_TEXT
) -> list[Segment]:
    """A text in segments, at most `most` characters of it: what was read, or else its beginning, and around marks.

    What is left out between is a segment of its own, which counts its characters.
    """
    length = len(text)
    inside = [(max(0, begin), min(end, length), name) for begin, end, name in marks if 0 <= begin < min(end, length)]
    around = [(max(0, begin - 200), min(length, end + 200)) for begin, end, _ in inside]
    wanted = [(0, length)] if read is None and length <= most else list(read or [(0, min(length, most // 2))])
    keep = _stretches([list(one) for one in [*wanted, *around]], length) or []
    ends = [*keep, *(read or ()), *(one[:2] for one in inside)]
    cuts = sorted({0, length, *(end for one in ends for end in one)})
    segments: list[Segment] = []
    room = most
    for begin, end in zip(cuts, cuts[1:], strict=False):
        is_marked = any(first <= begin and end <= last for first, last, _ in inside)
        is_kept = any(first <= begin and end <= last for first, last in keep)
        if not is_kept or (room <= 0 and not is_marked):
            _skip(segments, end - begin)
            continue
        shown = end if is_marked else min(end, begin + room)
        was_read = read is None or any(first <= begin and end <= last for first, last in read)
        names = [name for first, last, name in inside if first <= begin and end <= last]
        segments.append({"text": plain(text[begin:shown], shown - begin), "marks": names, "read": was_read})
        room -= shown - begin
        if shown < end:
            _skip(segments, end - shown)
    return segments


def _skip(segments: list[Segment], characters: int) -> None:
    if segments and "skipped" in segments[-1]:
        segments[-1]["skipped"] += characters
    elif characters:
        segments.append({"skipped": characters, "unit": "characters"})
