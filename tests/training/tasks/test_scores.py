"""Scores against cases worked by hand."""

import pytest

from asterism.training.tasks.scores.answers import answer_f1, exact_match, normalise_answer
from asterism.training.tasks.scores.labels import accuracy, are_bio, bio_spans, count, macro_f1, micro_f1


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's  hat!", "cats hat"),
        ("an apple, a day", "apple day"),
        ("A", ""),
        ("theatre another", "theatre another"),
        ("the-end", "theend"),
        ("1,000.5", "10005"),
        ("\u201cquoted\u201d", "\u201cquoted\u201d"),
        ("\tcaf\u00c9\n", "caf\u00e9"),
        ("a\u2014b", "\u2014b"),
    ],
)
def test_normalised_answers(text, normal):
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("predicted", "golds", "exact", "f1"),
    [
        ("the Cellar.", ["cellar"], 1, 1),
        ("in the cellar", ["cellar"], 0, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("old wine cellar", ["wine cellar", "the cellar"], 0, 0.8),
        ("attic", ["cellar"], 0, 0),
        ("", ["cellar"], 0, 0),
        ("", [], 1, 1),
        ("cellar", [], 0, 0),
        ("the", [], 1, 1),
        ("b b b", ["b b c"], 0, 2 / 3),
        ("b", ["b b b"], 0, 0.5),
        ("x", ["the", "x"], 1, 1),
        ("the", ["the"], 1, 1),
    ],
)
def test_answers(predicted, golds, exact, f1):
    assert exact_match(predicted, golds) == exact
    assert answer_f1(predicted, golds) == pytest.approx(f1)


def test_labels():
    predicted, there = ["a", "a", "b", "c"], ["a", "b", "b", "a"]
    assert accuracy(predicted, there) == 0.5
    single = [[label] for label in predicted], [[label] for label in there]
    # a: 1 right of 2 and 2; b: 1 right of 1 and 2; c: 0 of 1 and 0.
    assert macro_f1(*single) == pytest.approx((0.5 + 2 / 3 + 0) / 3)
    assert micro_f1(*single) == 0.5


def test_several_labels():
    predicted, there = [["a", "b"], [], ["c"]], [["a"], ["b"], ["c"]]
    counts = count(predicted, there)
    assert (counts.predicted, counts.there, counts.right) == (3, 3, 2)
    assert (counts.precision, counts.recall, counts.f1) == (2 / 3, 2 / 3, pytest.approx(2 / 3))
    assert macro_f1(predicted, there) == pytest.approx((1 + 0 + 1) / 3)


def test_nothing_predicted_where_nothing_is_to_be_found():
    nothing = count([[]], [[]])
    assert (nothing.precision, nothing.recall, nothing.f1) == (1, 1, 1)
    missed, invented = count([[]], [["a"]]), count([["a"]], [[]])
    assert (missed.precision, missed.recall, missed.f1) == (0, 0, 0)
    assert (invented.precision, invented.recall, invented.f1) == (0, 0, 0)


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O O", set()),
        ("B-X", {("X", 0, 1)}),
        ("B-X I-X O B-Y", {("X", 0, 2), ("Y", 3, 4)}),
        ("B-X B-X", {("X", 0, 1), ("X", 1, 2)}),
        ("O I-X I-X", {("X", 1, 3)}),
        ("B-X I-Y I-Y", {("X", 0, 1), ("Y", 1, 3)}),
        ("I-X O I-X", {("X", 0, 1), ("X", 2, 3)}),
        ("B-A-B I-A-B", {("A-B", 0, 2)}),
        ("", set()),
    ],
)
def test_spans_of_bio_tags(tags, spans):
    assert bio_spans(tags.split()) == spans


def test_which_tags_mark_spans():
    assert are_bio(["O", "B-X", "I-X"])
    assert not are_bio(["O", "NOUN"])
    assert not are_bio(["B-"])
