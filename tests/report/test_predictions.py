import pytest
from run_folders import tuned, write_lines

from asterism.report import predictions as module
from asterism.report.described import describe
from asterism.report.predictions import marked

TEXTS = [{"text": f"document {number}", "label": "ab"[number % 2]} for number in range(8)]


def said(data, number, **fields):
    return {"record": f"{data}, line {number + 1}", **{f"predicted_{name}": value for name, value in fields.items()}}


@pytest.fixture
def data(tmp_path):
    return write_lines(tmp_path / "data.jsonl", TEXTS)


def shown(folder, most=60):
    return describe(folder, most).document["predictions"]


def test_right_and_wrong_in_their_texts(tmp_path, data):
    made = [said(data, number, label="a", probabilities={"a": 0.75, "b": 0.25}) for number in range(8)]
    found = shown(tuned(tmp_path / "run", "classify", data, made))
    assert (found["total"], found["right"], found["wrong"], found["remarks"]) == (8, 4, 4, [])
    assert [one["right"] for one in found["shown"]] == [True, False] * 4
    first = found["shown"][1]
    assert (first["predicted"], first["expected"], first["figures"]) == ("a", "b", {"a": 0.75, "b": 0.25})
    assert first["text"] == [{"text": "document 1", "marks": [], "read": True}]


def test_of_many_half_are_wrong_ones_and_the_rest_is_pointed_to(tmp_path, data):
    made = [said(data, number, label="a" if number else "b") for number in range(8)]
    found = shown(tuned(tmp_path / "run", "classify", data, made), most=4)
    assert [one["right"] for one in found["shown"]] == [False, False, True, True]
    assert (found["right"], found["wrong"]) == (3, 5)
    assert "4 of 8 predictions are not shown" in found["remarks"][0] and "predictions.jsonl" in found["remarks"][0]


def test_several_labels_in_any_order(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"text": "x", "labels": ["a", "b"]}] * 2)
    made = [said(data, 0, labels=["b", "a"]), said(data, 1, labels=[])]
    found = shown(tuned(tmp_path / "run", "classify", data, made))
    assert [(one["right"], one["predicted"]) for one in found["shown"]] == [(True, "b, a"), (False, "none")]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (lambda path: path.unlink(), "The data are no longer at"),
        (lambda path: path.write_text("{}\n"), "changed since the run began"),
        (lambda path: path.write_bytes(b"x" * 2000), "has more than"),
    ],
)
def test_without_the_data_nothing_is_right_or_wrong(tmp_path, data, change, remark, monkeypatch):
    folder = tuned(tmp_path / "run", "classify", data, [said(data, 0, label="a")])
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    change(data)
    found = shown(folder)
    assert found["total"] == 1 and found["right"] is None and found["shown"][0]["text"] == []
    assert remark in found["remarks"][0]


def test_answers_are_marked_in_what_was_read(tmp_path):
    context = "nothing here . the coin is in the attic . nothing there"
    answers = [{"text": "attic", "answer_start": context.index("attic")}]
    data = write_lines(tmp_path / "data.jsonl", [{"context": context, "question": "where?", "answers": answers}] * 3)
    at = context.index("coin")
    made = [
        {**said(data, 0, answer="The attic", answer_start=context.index("the attic"), score=3.5), "read": [[15, 41]]},
        {**said(data, 1, answer="coin", answer_start=at), "read": "odd"},
        said(data, 2, answer="", answer_start=None),
    ]
    right, wrong, none = shown(tuned(tmp_path / "run", "qa", data, made))["shown"]
    assert (right["right"], wrong["right"], none["right"]) == (True, False, False)
    assert none["predicted"] == "no answer" and right["question"] == "where?" and right["figures"] == {"score": 3.5}
    assert (right["read"], right["characters"], wrong["read"]) == (26, len(context), None)
    assert [one["text"] for one in right["text"] if "answer" in one.get("marks", ())] == ["the ", "attic"]
    assert [one["text"] for one in right["text"] if "expected" in one.get("marks", ())] == ["attic"]
    unread = [one["text"] for one in right["text"] if "text" in one and not one["read"]]
    assert unread == ["nothing here . ", " nothing there"]


def test_words_with_other_tags_than_the_right_ones(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"tokens": ["a", "b", "c"], "tags": ["O", "X", "X"]}])
    found = shown(tuned(tmp_path / "run", "tag", data, [said(data, 0, tags=["O", "X", "O"])]))
    assert [(one["marks"], one.get("tag")) for one in found["shown"][0]["text"]] == [
        ([], None),
        (["right"], "X"),
        (["wrong"], "O, right: X"),
    ]


def test_written_texts_are_neither_right_nor_wrong(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"document": "long", "summary": "short"}])
    found = shown(tuned(tmp_path / "run", "summarize", data, [said(data, 0, summary="shrt") | {"summary": "short"}]))
    assert found["right"] is None
    assert (found["shown"][0]["predicted"], found["shown"][0]["expected"]) == ("shrt", "short")


def test_other_tasks_are_shown_as_they_are(tmp_path, data):
    found = shown(tuned(tmp_path / "run", "promoter", data, [said(data, 0, labels=["x"], probabilities={"x": 0.9})]))
    assert "probabilities" in found["shown"][0]["predicted"]


def test_records_that_are_anything(tmp_path, data):
    odd = [{}, {"record": 3}, {"record": [1]}, {"predicted_label": {"a": 1}}, said(data, 0, label=None)]
    assert shown(tuned(tmp_path / "run", "classify", data, odd))["total"] == 5


# --- texts with marks ------------------------------------------------------------------------------------------------


def whole(segments):
    return sum(len(one["text"]) if "text" in one else one["skipped"] for one in segments)


def test_a_long_text_shows_its_beginning_and_what_is_marked():
    text = "".join(chr(97 + number % 26) for number in range(20_000))
    segments = marked(text, [(15_000, 15_010, "answer")], None, most=1000)
    assert whole(segments) == len(text)
    assert sum(len(one.get("text", "")) for one in segments) <= 1000 + 10
    assert [one["text"] for one in segments if one.get("marks")] == [text[15_000:15_010]]
    assert segments[0]["text"] == text[:500]


def test_only_what_was_read_is_shown_and_the_rest_is_counted():
    text = "x" * 100 + "y" * 100 + "z" * 5000
    segments = marked(text, [], [(100, 200)])
    assert segments == [
        {"skipped": 100, "unit": "characters"},
        {"text": "y" * 100, "marks": [], "read": True},
        {"skipped": 5000, "unit": "characters"},
    ]


@pytest.mark.parametrize("marks", [[(-5, 3, "a")], [(7, 3, "a")], [(50, 60, "a")], [(2, 10**9, "a")]])
def test_marks_outside_of_the_text(marks):
    assert whole(marked("abcdefghij", marks, None)) == 10


@pytest.mark.model
def test_every_task_is_known_or_its_answers_are_columns_of_numbers():
    """Who adds a task decides what its page shows; these have no texts, and nothing that is simply right."""
    from asterism.training.settings.registry import TASKS

    assert set(module.TASKS) == set(TASKS) - {"multilabel", "promoter", "chromatin"}
    assert set(module.WRITTEN) <= set(module.TASKS)
