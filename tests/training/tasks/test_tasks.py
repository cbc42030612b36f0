"""Tasks: what readers accept and refuse, features, windows, the best span, and predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refusing
from small_encoders import word_tokenizer, write_lines
from small_tasks import read_documents, read_questions, read_tagged
from tokenizers import normalizers

from asterism.errors import DataError
from asterism.training.tasks.kinds.answering import ANSWERING, best_span
from asterism.training.tasks.kinds.classification import CLASSIFICATION
from asterism.training.tasks.kinds.tagging import TAGGING

pytestmark = pytest.mark.model

CONTEXT = "the lamp is in the cellar . the book is in the attic . anna is at the garden ."


def question(answer: str | None = "attic", context: str = CONTEXT, **fields):
    there = {"text": [answer], "answer_start": [context.index(answer)]} if answer else {"text": [], "answer_start": []}
    return {"context": context, "question": "where is the book", "answers": there, **fields}


# --- files ----------------------------------------------------------------------------------------------------------


def test_documents_of_jsonl_and_csv_are_the_same(tmp_path):
    records = [{"text": 'the "red", lamp\nis good', "label": "1"}, {"text": "the book", "label": "0"}]
    lines = write_lines(tmp_path / "one.jsonl", [records[0] | {"label": 1}, records[1]])
    table = tmp_path / "one.csv"
    table.write_text('text,label\n"the ""red"", lamp\nis good",1\nthe book,0\n')
    for path in (lines, table):
        documents = read_documents(path)
        assert [(one.text, one.labels, one.several) for one in documents] == [
            (record["text"], (record["label"],), False) for record in records
        ]
    assert read_documents(table)[0].record.place == f"{table}, line 3"


def test_documents_with_several_labels(tmp_path):
    lines = write_lines(tmp_path / "m.jsonl", [{"text": "x", "labels": ["b", "a", "b"]}, {"text": "y", "labels": []}])
    table = tmp_path / "m.csv"
    table.write_text("text,labels\nx,b; a;b\ny,\n")
    for path in (lines, table):
        assert [one.labels for one in read_documents(path)] == [("b", "a"), ()]


def test_tagged_documents_of_jsonl_and_conll_are_the_same(tmp_path):
    lines = write_lines(
        tmp_path / "t.jsonl",
        [{"tokens": ["anna", "of", "rome"], "tags": ["B-PER", "O", "B-LOC"]}, {"tokens": ["ben"], "tags": ["B-PER"]}],
    )
    columns = tmp_path / "t.conll"
    columns.write_text("-DOCSTART- -X- O O\n\nanna NNP B-PER\nof IN O\nrome NNP B-LOC\n\n\nben\tB-PER")
    seen = [[(one.tokens, one.tags) for one in read_tagged(path)] for path in (lines, columns)]
    assert seen[0] == seen[1]


def test_questions_of_squad_and_its_flat_form_are_the_same(tmp_path):
    answered, not_answered = question(id="1"), question(None, id="2")
    flat = write_lines(tmp_path / "q.jsonl", [answered, not_answered])
    as_list = [dict(zip(("text", "answer_start"), pair, strict=True)) for pair in [("attic", CONTEXT.index("attic"))]]
    listed = write_lines(tmp_path / "l.jsonl", [answered | {"answers": as_list}, not_answered | {"answers": []}])
    squad = tmp_path / "q.json"
    asked = [
        {"id": "1", "question": "where is the book", "answers": as_list},
        {"id": "2", "question": "where is the book", "is_impossible": True, "plausible_answers": as_list},
    ]
    squad.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]}))
    seen = [
        [(one.record.fields["id"], one.context, one.question, one.answers) for one in read_questions(p)]
        for p in (flat, listed, squad)
    ]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0][3][0].text == "attic" and seen[0][1][3] == ()


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (read_documents, "x.jsonl", "", r"x\.jsonl holds no record"),
        (read_documents, "x.jsonl", " \n\n", r"x\.jsonl holds no record"),
        (read_documents, "x.tsv", "x", r"x\.tsv: the name must end in one of \.jsonl, \.csv"),
        (read_documents, "x.jsonl", '{"text": "x"', r"x\.jsonl, line 1: cannot be read as JSON"),
        (read_documents, "x.jsonl", '\n["x"]', r"x\.jsonl, line 2: must be a JSON object"),
        (read_documents, "x.jsonl", '{"text": "x", "lable": 1}', r"line 1: field 'label' is missing.*mean 'lable'"),
        (read_documents, "x.jsonl", '{"label": 1}', r"line 1: field 'text' is missing; there are: label"),
        (read_documents, "x.jsonl", '{"text": " ", "label": 1}', r"line 1: field 'text' is empty"),
        (read_documents, "x.jsonl", '{"text": 3, "label": 1}', r"line 1: field 'text' must be text, got 3"),
        (read_documents, "x.jsonl", '{"text": "x", "label": 1.5}', r"field 'label' must be one label, got 1\.5"),
        (read_documents, "x.jsonl", '{"text": "x", "label": true}', r"field 'label' must be one label, got True"),
        (read_documents, "x.jsonl", '{"text": "x", "labels": [[1]]}', r"field 'labels' must be a list of labels"),
        (
            read_documents,
            "x.jsonl",
            '{"text": "x", "label": 1}\n{"text": "x", "labels": []}',
            r"line 2: field 'labels' cannot be mixed with 'label'",
        ),
        (read_documents, "x.csv", "text,label\nx,1,2\n", r"line 2: the row does not have the 2 fields of line 1"),
        (read_documents, "x.csv", "text,label\nx\n", r"line 2: the row does not have the 2 fields of line 1"),
        (read_documents, "x.csv", 'text,label\n"x,1\n', r"line 2: cannot be read as CSV"),
        (read_documents, "x.csv", "text,label\n", r"x\.csv holds no record"),
        (read_tagged, "x.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', r"field 'tags' has 1 entries for 2 tokens"),
        (read_tagged, "x.jsonl", '{"tokens": [], "tags": []}', r"line 1: field 'tokens' is empty"),
        (
            read_tagged,
            "x.jsonl",
            '{"tokens": "a b", "tags": []}',
            r"field 'tokens' must be a list of texts, got \"a b\"",
        ),
        (read_tagged, "x.jsonl", '{"tokens": ["a"]}', r"line 1: field 'tags' is missing"),
        (read_tagged, "x.conll", "a B-X\nb\n", r"line 2: field 'tags' is missing: the line is 'b' alone"),
        (read_tagged, "x.conll", "-DOCSTART- O\n\n", r"x\.conll holds no record"),
        (read_questions, "x.json", '{"version": 2}', r"x\.json: field 'data' is missing"),
        (read_questions, "x.json", '{"data": []}', r"x\.json holds no record"),
        (
            read_questions,
            "x.json",
            '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"question": "q"}]}]}]}',
            r"x\.json, data\[0\], paragraphs\[0\], qas\[0\]: field 'answers' is missing",
        ),
        (
            read_questions,
            "x.jsonl",
            json.dumps(question() | {"answers": {"text": ["attic"], "answer_start": [3]}}),
            r"line 1: field 'answers' has 'attic' at character 3, but the text there is ' lamp'; it is at 47",
        ),
        (
            read_questions,
            "x.jsonl",
            json.dumps(question() | {"answers": {"text": ["moon"], "answer_start": [-4]}}),
            r"has 'moon' at character -4, but the text there is ''; it is nowhere in the context",
        ),
        (
            read_questions,
            "x.jsonl",
            json.dumps(question() | {"answers": {"text": ["attic"], "answer_start": []}}),
            r"field 'answers' must be .*two lists of one length",
        ),
        (read_questions, "x.jsonl", json.dumps(question() | {"question": ""}), r"field 'question' is empty"),
        (
            read_questions,
            "x.jsonl",
            json.dumps(question() | {"answers": [{"text": "attic"}]}),
            r"has an answer of text 'attic' and answer_start None",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, read, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*none\.jsonl"):
        read_documents(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xff"}')
    with refusing(DataError, "not-utf8", "bytes.jsonl", "1", "10"):
        read_documents(tmp_path / "bytes.jsonl")
    with pytest.raises(DataError, match="cannot read .*Is a directory"):
        (tmp_path / "folder.jsonl").mkdir()
        read_documents(tmp_path / "folder.jsonl")


# --- features and predictions ---------------------------------------------------------------------------------------


def rows(task, examples):
    """The features of all examples in one list."""
    return [row for some in task.rows.features(examples, word_tokenizer()) for row in some]


def predict(task, examples, logits):
    """The predictions for all examples, given the logits of all their rows in one list."""
    each = list(task.rows.features(examples, word_tokenizer()))
    left = iter(logits)
    predictions = [
        task.answers.predict(one, some, [next(left) for _ in some]) for one, some in zip(examples, each, strict=True)
    ]
    assert next(left, None) is None
    return predictions


def score(task, examples, predictions):
    return task.answers.score(
        [one[task.answers.answer] for one in predictions], [task.examples.gold(one) for one in examples]
    )


def documents(tmp_path, *records):
    return read_documents(write_lines(tmp_path / "documents.jsonl", records))


def test_classification_from_files_to_scores(tmp_path):
    examples = documents(tmp_path, {"text": "the lamp", "label": "b"}, {"text": "the red book", "label": "a"})
    task = CLASSIFICATION.of(examples, length=4)
    features = rows(task, examples)
    assert task.answers.model_fields()["id2label"] == {0: "a", 1: "b"}
    assert [len(one.inputs["input_ids"]) for one in features] == [4, 4]  # the second is cut off
    assert task.rows.targets(features, 4)["labels"].tolist() == [1, 0]
    predictions = predict(task, examples, [(np.array([0.0, 1.0]),), (np.array([-1.0, 3.0]),)])
    assert [one["label"] for one in predictions] == ["b", "b"]
    assert predictions[0]["probabilities"]["b"] == 0.7311  # 1 / (1 + exp(-1)), the digits that hold
    assert score(task, examples, predictions) == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}


def test_several_labels_from_files_to_scores(tmp_path):
    examples = documents(tmp_path, {"text": "lamp", "labels": ["b", "a"]}, {"text": "book", "labels": []})
    task = CLASSIFICATION.of(examples, length=8)
    features = rows(task, examples)
    assert task.rows.targets(features, 3)["labels"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    predictions = predict(task, examples, [(np.array([2.0, -2.0]),), (np.array([-1.0, -1.0]),)])
    assert [one["labels"] for one in predictions] == [["a"], []]
    assert score(task, examples, predictions) == {"micro_f1": pytest.approx(2 / 3), "macro_f1": 0.5}


def test_labels_that_training_does_not_have(tmp_path):
    examples = documents(tmp_path, {"text": "lamp", "label": "good"}, {"text": "book", "label": "bad"})
    other = documents(tmp_path, {"text": "lamp", "label": "goood"})
    task = CLASSIFICATION.of(examples, length=8)
    with pytest.raises(DataError, match=r"line 1: field 'label' is 'goood', .*\(bad, good\)\. Did you mean 'good'\?"):
        rows(task, other)
    with refusing(DataError, "too-few-labels", "2", "good"):
        CLASSIFICATION.of(examples[:1], length=8)


def test_a_document_without_a_token(tmp_path):
    examples = documents(tmp_path, {"text": "lamp", "label": "a"}, {"text": "\u200b", "label": "b"})
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    with refusing(DataError, "empty-document", "line 2"):
        list(CLASSIFICATION.of(examples, length=8).rows.features(examples, tokenizer))


def test_tagging_from_files_to_scores(tmp_path):
    records = [
        {"tokens": ["anna", "lives-in", "rome"], "tags": ["B-PER", "O", "B-LOC"]},
        {"tokens": ["the", "book", "of", "ben"], "tags": ["O", "O", "O", "B-PER"]},
    ]
    examples = read_tagged(write_lines(tmp_path / "t.jsonl", records))
    task = TAGGING.of(examples, length=6)
    features = rows(task, examples)
    # [CLS] anna lives - in rome(cut) [SEP]; tags are numbered B-LOC, B-PER, O.
    assert task.rows.targets(features, 7)["labels"].tolist() == [
        [-100, 1, 2, -100, -100, -100, -100],
        [-100, 2, 2, 2, 1, -100, -100],
    ]
    logits = [(np.eye(3)[[2, 1, 1, 0, 0, 2]],), (np.eye(3)[[2, 2, 2, 2, 1, 2]],)]
    predictions = predict(task, examples, logits)
    likely = round(np.e / (np.e + 2), 4)
    assert predictions == [
        {"tags": ["B-PER", "B-PER", "O"], "probabilities": [likely, likely, None]},  # of rome nothing was read
        {"tags": ["O", "O", "O", "B-PER"], "probabilities": [likely] * 4},
    ]
    scores = score(task, examples, predictions)
    assert scores["token_accuracy"] == 5 / 7
    assert scores["entity_precision"] == scores["entity_recall"] == pytest.approx(2 / 3)


def test_tags_that_mark_no_spans_are_scored_by_token(tmp_path):
    examples = read_tagged(write_lines(tmp_path / "t.jsonl", [{"tokens": ["the", "book"], "tags": ["DET", "NOUN"]}]))
    task = TAGGING.of(examples, length=8)
    assert task.answers.metric == "token_accuracy"
    assert score(task, examples, [{"tags": ["DET", "DET"]}]) == {
        "token_accuracy": 0.5,
        "token_macro_f1": pytest.approx(1 / 3),
    }


def questions(tmp_path, *records):
    return read_questions(write_lines(tmp_path / "questions.jsonl", records))


def pointing(features, text, context=CONTEXT, strength=5.0):
    """Logits that point at the first and last token of the last place where `text` stands."""
    begin = context.rindex(text)
    logits = []
    for feature in features:
        covered = feature.tokens
        starts, ends = np.zeros(len(covered)), np.zeros(len(covered))
        starts[(covered[:, 0] == begin)] = strength
        ends[(covered[:, 1] == begin + len(text))] = strength
        logits.append((starts, ends))
    return logits


def test_windows_cover_the_context_and_point_at_whole_answers_only(tmp_path):
    examples = questions(tmp_path, question("in the attic"))
    features = rows(ANSWERING.of(examples, length=14, reader="windows(stride=3)"), examples)
    assert len(features) > 2
    stretches = [one.tokens[one.tokens[:, 0] >= 0] for one in features]
    for before, after in zip(stretches, stretches[1:], strict=False):
        assert np.array_equal(before[-3:], after[:3])  # the stride is what they share
    assert stretches[0][0, 0] == 0 and stretches[-1][-1, 1] == len(CONTEXT)
    begin, end = examples[0].answers[0].start, examples[0].answers[0].start + len("in the attic")
    kinds = set()
    for one, stretch in zip(features, stretches, strict=True):
        assert len(one.inputs["input_ids"]) <= 14
        starts, ends = (stretch[:, 0] == begin).any(), (stretch[:, 1] == end).any()
        kinds.add((bool(starts), bool(ends)))
        first, last = one.target
        if starts and ends:
            assert CONTEXT[one.tokens[first, 0] : one.tokens[last, 1]] == "in the attic"
        else:
            assert one.target == (0, 0)
    assert len(kinds) == 4  # no part, only its beginning, only its end, all of it


def test_all_readers_agree_when_the_context_fits(tmp_path):
    examples = questions(tmp_path, question(), question("cellar"))
    readers = ("whole()", "cut()", "windows(stride=5)", "selected(k=3)", "iterated(k=3)")
    whole, *others = (rows(ANSWERING.of(examples, length=40, reader=reader), examples) for reader in readers)
    for same in others:
        assert len(whole) == len(same) == 2
        for one, other in zip(whole, same, strict=True):
            assert one.target == other.target and np.array_equal(one.tokens, other.tokens)
            assert all(np.array_equal(one.inputs[name], other.inputs[name]) for name in one.inputs)


def test_the_best_window_answers(tmp_path):
    examples = questions(tmp_path, question("in the attic"))
    task = ANSWERING.of(examples, length=14, reader="windows(stride=3)")
    features = rows(task, examples)
    (prediction,) = predict(task, examples, pointing(features, "in the attic"))
    assert prediction["answer"] == "in the attic" and prediction["answer_start"] == CONTEXT.index("in the attic")
    assert score(task, examples, [prediction]) == {"exact_match": 1, "f1": 1}
    short = ANSWERING.of(examples, length=14, reader="windows(stride=3)", max_answer_length=2)
    (prediction,) = predict(short, examples, pointing(features, "in the attic"))
    assert prediction["answer"] != "in the attic" and len(prediction["answer"].split()) <= 2


def test_no_answer_is_given_when_it_scores_higher_in_every_window(tmp_path):
    examples = questions(tmp_path, question(), question(None))
    task = ANSWERING.of(examples, length=14, reader="windows(stride=3)")
    features = rows(task, examples)
    logits = pointing(features, "attic")
    for starts, ends in logits:
        starts[0] = ends[0] = 5.5
    assert [one["answer"] for one in predict(task, examples, logits)] == ["", ""]
    first = next(number for number, one in enumerate(features) if one.target != (0, 0))
    logits[first][0][0] = 0.0
    predictions = predict(task, examples, logits)
    assert [one["answer"] for one in predictions] == ["attic", ""] and predictions[1]["answer_start"] is None
    scores = score(task, examples, predictions)
    assert scores["exact_match"] == scores["has_answer_f1"] == scores["no_answer_exact_match"] == 1
    assert score(task, examples, predictions[::-1])["exact_match"] == 0
    never = ANSWERING.of(examples[:1], length=14, reader="windows(stride=3)")  # the training questions all have answers
    (prediction,) = predict(never, examples[:1], logits[: len(logits) // 2])
    assert prediction["answer"] != ""


def test_questions_that_leave_no_room(tmp_path):
    examples = questions(tmp_path, question())
    for length, reader, message in (
        (7, "cut()", r"line 1: the text around the document takes 7 tokens, which leaves 0 of length 7, but"),
        (10, "windows(stride=3)", r"leaves 3 of length 10, but reader windows\(stride=3, pool=span\) needs 4"),
    ):
        with pytest.raises(DataError, match=message):
            rows(ANSWERING.of(examples, length=length, reader=reader), examples)
    with refusing(DataError, "no-answers"):
        ANSWERING.of(questions(tmp_path, question(None)), length=20)


def test_the_best_span_against_all_spans():
    random = np.random.default_rng(0)
    for _ in range(50):
        count = int(random.integers(1, 12))
        starts, ends = random.integers(-3, 4, (2, count + 2)).astype(np.float32)
        allowed = np.array([False, *[True] * count, False])
        longest = int(random.integers(1, 6))
        pairs = [(i, j) for i in range(1, count + 1) for j in range(i, min(i + longest, count + 1))]
        best = max(float(starts[i] + ends[j]) for i, j in pairs)
        score, first, last = best_span(starts, ends, allowed, longest)
        assert score == best and (first, last) == next((i, j) for i, j in pairs if starts[i] + ends[j] == best)
