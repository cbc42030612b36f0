"""Texts that answer a question about a document: it stands before all that is read of the document."""

import json
import random
import re

import pytest
from refusals import refusing
from small_encoders import write_lines
from small_tasks import read_examples
from small_writers import DIGITS, digit_tokenizer, save_tiny_bart

from asterism.errors import DataError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, open_run, predict, train
from asterism.training.data.records.record import Record
from asterism.training.run.integrity import seal
from asterism.training.tasks.kinds.generation import GENERATION
from asterism.training.tasks.kinds.summarization import SUMMARIZATION
from asterism.training.tasks.kinds.translation import TRANSLATION

pytestmark = pytest.mark.model
for package in ("rouge_score", "sacrebleu"):  # the extra `seq2seq`
    pytest.importorskip(package)

WORDS = "one two three four five six seven eight nine"
DRAW = random.Random(0)
ROWS = [
    {"document": f"{one} {two}", "question": three, "summary": three}
    for one, two, three in (DRAW.choices(DIGITS[:10], k=3) for _ in range(60))
]
"""The summary is the question, about which the document says nothing."""


def task(kind=SUMMARIZATION, **settings):
    fixed = {"length": 12, "target_length": 8, "cuts_targets": True, "asks": True, "start": 2}
    return kind.task(**{**fixed, **settings})


def asked(reading, question="six short", document=WORDS):
    record = Record("here", {reading.examples.names[0]: document, "question": question})
    return reading.examples.example(record, labelled=False)


def read(reading, example):
    tokenizer = digit_tokenizer()
    (rows,) = reading.rows.features([example], tokenizer)
    return [tokenizer.decode(row.inputs["input_ids"]) for row in rows]


@pytest.mark.parametrize("kind", (SUMMARIZATION, GENERATION))
@pytest.mark.parametrize(
    ("reader", "rows"),
    [
        ("cut()", ["one two three four five six seven"]),
        ("selected(k=2)", ["one two three four five six"]),
        ("selected(k=1)", ["one two three four five six seven"]),
    ],
)
def test_the_question_stands_before_what_is_read(kind, reader, rows):
    assert read(task(kind, reader=reader), asked(task(kind))) == [f"<s> six short </s> {row} </s>" for row in rows]


def test_windows_are_selected_by_the_question():
    example = asked(task(), question="nine")
    assert read(task(reader="selected(k=2)"), example) == ["<s> nine </s> one two three four nine </s>"]
    assert read(task(reader="selected(k=2)"), asked(task(), "six"))[0].endswith(
        "one two three four five six seven eight </s>"
    )


def test_a_prefix_stands_before_the_question():
    reading = task(source_prefix="short : ")
    (row,) = read(reading, asked(reading, question="six"))
    assert row == "<s> short : six </s> one two three four five six </s>"
    (encoded,) = reading.rows.encoded([asked(reading, question="six")], digit_tokenizer())
    assert (encoded.question, encoded.text) == ("six", WORDS)


def test_parts_and_what_they_said_are_read_behind_the_question():
    reading, tokenizer = task(reader="iterated()"), digit_tokenizer()
    example = asked(reading, question="six")
    (parts,) = reading.rows.features([example], tokenizer)
    assert [row.row for row in parts] == [((0, 8),), ((8, 9),)]
    (again,) = reading.rows.again(example, parts, ["two", "three"], tokenizer)
    assert tokenizer.decode(again.inputs["input_ids"]) == "<s> six </s> two three </s>"


def test_whether_something_is_asked_is_what_the_training_examples_say(tmp_path):
    for rows, asks in ((ROWS, True), ([{"document": "one", "summary": "one"}], False)):
        examples = read_examples(SUMMARIZATION, write_lines(tmp_path / f"{asks}.jsonl", rows))
        made = SUMMARIZATION.of(examples, length=12, target_length=8, cuts_targets=True, start=2)
        assert (
            made.rows.asks == made.examples.asks == asks
            and SUMMARIZATION.from_record(json.loads(json.dumps(made.record()))) == made
        )
    assert asked(task(asks=False)).question is None
    translated = read_examples(
        TRANSLATION, write_lines(tmp_path / "t.jsonl", [{"source": "a", "target": "b", "question": "c"}])
    )
    assert translated[0].question is None


def test_a_question_that_is_missing_is_refused(tmp_path):
    mixed = read_examples(
        SUMMARIZATION, write_lines(tmp_path / "mixed.jsonl", [*ROWS[:2], {"document": "one", "summary": "one"}])
    )
    made = SUMMARIZATION.of(mixed, length=12, target_length=8, cuts_targets=True, start=2)
    with refusing(DataError, "missing-field", "mixed.jsonl, line 3", "'question'", "document, sum"):
        list(made.rows.features(mixed, digit_tokenizer()))
    with refusing(DataError, "missing-field", "here", "'question'"):
        made.examples.example(Record("here", {"document": "one"}), labelled=False)
    with refusing(DataError, "bad-field", "'question'", "is empty"):
        read_examples(SUMMARIZATION, write_lines(tmp_path / "empty.jsonl", [{**ROWS[0], "question": " "}]))


def test_what_is_asked_is_learned_from_the_question(tmp_path):
    with quiet_transformers():
        bart = save_tiny_bart(tmp_path / "bart")
    data = write_lines(tmp_path / "data.jsonl", ROWS)
    values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 100}
    config = FineTuneConfig(
        **{
            "task": "summarize",
            "model": str(bart),
            "data": str(data),
            "target_length": 3,
            "length": 16,
            "epochs": 99.0,
        },
        **values,
    )
    assert train(config, tmp_path / "run", progress=False).scores["rouge1"] == 1.0
    opened = open_run(tmp_path / "run")
    rows = [{"document": "one two", "question": word} for word in DIGITS[:10]]
    assert [row["predicted_summary"] for row in predict(opened, rows)] == list(DIGITS[:10])
    with pytest.raises(DataError, match=re.escape("rows[0]: field 'question' is missing")):
        list(predict(opened, [{"document": "one two"}]))


def test_a_run_of_an_earlier_version_reads_no_question(tmp_path):
    with quiet_transformers():
        bart = save_tiny_bart(tmp_path / "bart")
    data = write_lines(tmp_path / "data.jsonl", ROWS)
    config = FineTuneConfig(task="summarize", model=str(bart), data=str(data), target_length=3, steps=1)
    train(config, tmp_path / "run", progress=False)
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    del record["decided"]["asks"]
    path.write_text(json.dumps(seal(record)))
    (row,) = predict(open_run(tmp_path / "run"), [{"document": "one two"}])
    assert set(row) == {"document", "predicted_summary"}
