"""Readers: their texts, BM25 by hand, and the rows that they make of documents."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.errors import ConfigurationError
from asterism.training.readers.bm25 import bm25, count_words
from asterism.training.readers.reader import Document, Reader, together
from asterism.training.readers.text import VOCABULARY, parse_reader

TEXTS = (
    "whole()",
    "cut()",
    "cut(length=9)",
    "windows()",
    "windows(length=512, stride=128, pool=max)",
    "selected(k=2)",
    "selected(length=64, k=8, stride=2, k1=0.5, b=0)",
    "selected(length=64, k=8, by=learned)",
    "iterated(length=64, k=3)",
)

# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_a_reader_is_its_text(text):
    reader = parse_reader(text)
    assert parse_reader(str(reader)) == reader
    assert str(reader) == text


def test_every_reader_has_a_text():
    assert (
        {parse_reader(text).name for text in TEXTS}
        == set(VOCABULARY)
        == {*("whole", "cut", "windows", "selected", "iterated")}
    )
    assert parse_reader("selected(length=512, k=4, by=bm25)") == parse_reader(" selected( 512, 4 ) ")
    assert parse_reader("selected(k=4)") == parse_reader("selected()")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "window(stride=4)",
            r"unknown reader 'window'\. Did you mean 'windows'\? Known: whole, cut, windows, ",
        ),
        ("cut", r"cut needs parentheses: write cut\(\)"),
        ("cot", r"unknown reader 'cot'\. Did you mean 'cut'\?"),
        ("", r"cannot read '': write a call such as windows\("),
        ("cut(", r"cannot read 'cut\('"),
        ("cut() | whole()", r"cannot read"),
        ("windows(stride=1+1)", r"cannot read"),
        ("windows(stride=windows())", r"cannot read"),
        ("__import__('os')", r"unknown reader '__import__'"),
        ("os.system('x')", r"cannot read"),
        ("cut(lenght=4)", r"cut has no argument 'lenght'\. Did you mean 'length'\?"),
        ("cut(**{})", r"cannot read"),
        ("cut(1, 2)", r"cut: too many positional arguments; its arguments are length"),
        ("cut(1, length=2)", r"multiple values for argument 'length'"),
        ("whole(length=4)", r"whole\(\) takes no length, got 4; write cut\(length=4\)"),
        ("cut(length=0)", r"cut: length must be a whole number above 0, got 0"),
        ("cut(length=True)", r"cut: length must be a whole number above 0, got True"),
        ("cut(length=4.0)", r"cut: length must be a whole number above 0, got 4\.0"),
        ("cut(length=9999999999)", r"cut: length must be a whole number above 0, got 9999999999"),
        ("windows(stride=-1)", r"windows: stride must be a whole number, 0 or more, got -1"),
        ("windows(pool=median)", r"windows: pool must be one of: mean, max, span, got 'median'"),
        ("selected(k=0)", r"selected: k must be a whole number above 0, got 0"),
        ("selected(k1=-1.0)", r"selected: k1 must be a number, 0 or more, got -1\.0"),
        ("selected(k1=1e999)", r"selected: k1 must be a number, 0 or more, got inf"),
        ("selected(b=1.5)", r"selected: b must be a number from 0 to 1, got 1\.5"),
        (
            "selected(by=model)",
            r"selected: by must be bm25 or learned \(iterated\(\) asks the model itself\), got 'model'",
        ),
        ("iterated(by=bm25)", r"iterated has no argument 'by'"),
        ("(" * 5000, r"cannot read"),
    ],
)
def test_texts_that_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_reader(text)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("reader: ")


# --- BM25 -----------------------------------------------------------------------------------------------------------


def test_bm25_by_hand():
    """Three texts of 4, 2 and 3 words; "a" is in two of them, "b" in one, "z" in none."""
    texts = [Counter(["a", "a", "b", "c"]), Counter(["c", "c"]), Counter(["a", "c", "d"])]
    asked = Counter(["a", "b", "z"])
    rare, common = math.log(1 + (3 - 1 + 0.5) / 1.5), math.log(1 + (3 - 2 + 0.5) / 2.5)
    first = 1.2 * (1 - 0.75 + 0.75 * 4 / 3)  # of average length 3
    expected = [common * 2 / (2 + first) + rare * 1 / (1 + first), 0.0, common * 1 / (1 + 1.2)]
    assert bm25(asked, texts, k1=1.2, b=0.75) == pytest.approx(expected, rel=1e-12)
    assert expected[0] == pytest.approx(0.6609, abs=1e-4) and expected[2] == pytest.approx(0.2136, abs=1e-4)


def test_bm25_at_its_ends():
    texts = [Counter(a=5, b=1), Counter(a=1)]
    both = math.log(1 + 0.5 / 2.5)
    assert bm25(Counter(a=1), texts, k1=0, b=0.75) == pytest.approx([both, both])  # being there is all
    assert bm25(Counter(a=1), texts, k1=2, b=0) == pytest.approx([both * 5 / 7, both * 1 / 3])  # length is nothing
    assert bm25(Counter(a=3), texts, k1=2, b=0) == pytest.approx([3 * both * 5 / 7, 3 * both * 1 / 3])
    assert bm25(Counter(), texts, k1=2, b=0) == [0, 0] and bm25(Counter(a=1), [Counter()], k1=1, b=1) == [0]


def test_a_word_belongs_to_the_part_in_which_it_begins():
    text = "The lamp, the LAMP; über x"
    assert count_words(text, [0, 6], [6, len(text)]) == [Counter(the=1, lamp=1), Counter(the=1, lamp=1, über=1, x=1)]
    assert count_words(text, [0, 4], [14, 18]) == [Counter(the=2, lamp=1), Counter(lamp=2, the=1)]  # they overlap
    assert count_words(" ...", [0], [4]) == [Counter()]


# --- rows -----------------------------------------------------------------------------------------------------------


def document(words: list[str], room: int, question: str | None = None) -> Document:
    """A token per word."""
    starts = np.cumsum([0, *[len(word) + 1 for word in words[:-1]]])
    return Document(len(words), room, " ".join(words), starts, question)


def tokens_of(row) -> list[int]:
    return [token for begin, end in row for token in range(begin, end)]


@st.composite
def readings(draw):
    """A reader, and a document that it can read."""
    name = draw(st.sampled_from([*VOCABULARY]))
    stride, k = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    arguments = {"windows": f"stride={stride}", "selected": f"k={k}, stride={stride}", "iterated": f"k={k}"}
    reader = parse_reader(f"{name}({arguments.get(name, '')})")
    words = draw(st.lists(st.sampled_from(["a", "bb", "c", "the"]), min_size=1, max_size=40))
    room = len(words) if name == "whole" else draw(st.integers(reader.needs, 30))
    return reader, document(words, room, draw(st.sampled_from([None, "the c"])))


@settings(max_examples=300, deadline=None)
@given(readings())
def test_rows_fit_are_in_order_and_cover_what_they_promise(reading):
    reader, read = reading
    rows = reader.rows(read)
    assert rows == reader.rows(read)
    for row in [*rows, *reader.training_rows(read)]:
        tokens = tokens_of(row)
        assert 1 <= len(tokens) <= read.room and tokens == sorted(set(tokens)) and tokens[-1] < read.tokens
        assert all(before[1] < after[0] for before, after in zip(row, row[1:], strict=False))  # they do not touch
    everything = {token for row in rows for token in tokens_of(row)} == set(range(read.tokens))
    if reader.name in ("whole", "windows", "iterated") or read.tokens <= read.room:
        assert everything
    if read.tokens <= read.room:
        assert rows == reader.training_rows(read) == [((0, read.tokens),)]
    if reader.name == "iterated" and len(rows) > 1:
        found = [float(number % 3) for number in range(len(rows))]
        again = reader.again(rows, found)
        best = sorted(range(len(rows)), key=lambda one: -found[one])[: reader.k]
        assert tokens_of(again) == sorted(token for number in best for token in tokens_of(rows[number]))
        assert len(tokens_of(again)) <= read.room


def test_windows_together():
    assert together([(4, 6), (0, 2)]) == ((0, 2), (4, 6))
    assert together([(4, 6), (0, 2), (2, 4)]) == ((0, 6),)
    assert together([(3, 7), (0, 4), (9, 10)]) == ((0, 7), (9, 10))


WORDS = [word for word in "abcde" for _ in range(3)]


def test_the_best_windows_are_read_in_the_order_of_the_document():
    """Five windows of three words; the row has place for two of them."""
    for question, expected in (
        ("e b", ((3, 6), (12, 15))),
        ("b e", ((3, 6), (12, 15))),
        ("d d c e", ((6, 12),)),  # "d" is asked twice; "c" and "e" are equal: the earlier one
        ("zz", ((0, 6),)),  # no word is there: the first windows
    ):
        assert parse_reader("selected(k=2)").rows(document(WORDS, 7, question)) == [expected], question
    overlapping = parse_reader("selected(k=2, stride=1)").rows(document(WORDS, 7, "e"))
    assert overlapping == [((10, 15),)]  # (10, 13) and (12, 15) share a token, which is read once


def test_without_a_question_windows_are_ranked_by_what_the_document_says_often_but_not_everywhere():
    nouns = ("x1", "x2", "storm", "storm", "x3", "storm", "x4", "x5")
    words = [word for noun in nouns for word in ("the", noun)]
    (row,) = parse_reader("selected(k=2)").rows(document(words, 8))
    assert {words[token] for token in tokens_of(row)} >= {"storm"}
    assert tokens_of(row)[:4] == [4, 5, 6, 7]


def test_what_a_model_learns_from_before_it_reads_twice():
    reader = parse_reader("iterated(k=2)")
    read = document(WORDS, 7, "c e")
    together_, *alone = reader.training_rows(read)
    assert together_ == ((6, 9), (12, 15))
    assert alone == [((0, 3),), ((3, 6),), ((6, 9),), ((12, 15),)]  # the best two, and two of the others
    assert reader.rows(read) == [((begin, begin + 3),) for begin in range(0, 15, 3)]


def test_readers_are_values():
    assert len({parse_reader("cut(length=4)"), parse_reader("cut(4)")}) == 1
    with pytest.raises(AttributeError):
        parse_reader("cut()").length = 3  # type: ignore[misc]
    assert all(isinstance(parse_reader(f"{name}()"), Reader) for name in VOCABULARY)
