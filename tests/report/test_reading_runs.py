import json
import os

import pytest

from asterism.report import reading
from asterism.report.reading import JsonObjects, number, numbers, plain


def test_lines_that_are_damaged_are_counted_and_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\nnot json\n[1]\n\xff\n{"a": 2}\n{"a": 3')
    lines = JsonObjects(path)
    assert list(lines) == [{"a": 1}, {"a": 2}]
    assert lines.damaged == 3 and lines.remark == "x.jsonl: 3 lines are damaged and left out."
    assert list(lines) == [{"a": 1}, {"a": 2}] and lines.damaged == 3  # read again, counted anew


def test_a_line_that_is_too_long_is_left_out_and_those_behind_it_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_LINE", 20)
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"a": "x" * 70}) + '\n{"a": 2}\n')
    lines = JsonObjects(path)
    assert list(lines) == [{"a": 2}] and lines.damaged == 1


def test_reading_stops_where_a_file_is_huge(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 50)
    lines = JsonObjects(path, most=100)
    assert len(list(lines)) == 11 and lines.is_cut and "Only the first" in lines.remark


def test_what_is_no_file_says_so(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("none", "none is missing."), ("pipe", "pipe is not a file."), (".", "is not a file.")):
        lines = JsonObjects(tmp_path / name)
        assert list(lines) == [] and reason in lines.remark


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, "1", [], 10**400, -1e308])
def test_what_is_no_finite_number_is_none(value):
    assert number(value) is None


def test_numbers_of_an_object():
    assert numbers({"a": 1, "b": float("nan"), "c": 0.5}) == {"a": 1, "c": 0.5}
    assert numbers([1]) == {}


def test_texts_are_plain_and_bounded():
    assert plain("a\x00b\u202ec\ud800\nd\te") == "a\ufffdb\ufffdc\ufffd\nd\te"
    assert plain("x" * 10, 4) == "xxxx … (6 more characters)"
    assert plain({"a": [1]}) == '{"a": [1]}'
