import base64

import pytest
from run_folders import write_lines

from asterism.report.samples import read_samples

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and more").decode()


def sample(folder, line, learns="causal"):
    (found,) = read_samples(write_lines(folder / "samples.jsonl", [{"step": 3, **line}]), learns, {})
    return found


def test_places_of_a_masked_text(tmp_path):
    line = {"between": ["a ", " c ", "", ""], "read": ["[MASK]", "x", "[MASK]"]}
    line |= {"guessed": ["b", "x", ""], "expected": ["b", "d", ""]}
    found = sample(tmp_path, line, "mlm")
    assert (found["right"], found["of"], found["texts"]) == (2, 3, {})
    assert [one["text"] for one in found["places"]] == ["a ", "b", " c ", "x", "", "", ""]
    assert [one["marks"] for one in found["places"][1::2]] == [["right"], ["wrong"], ["right"]]
    assert [one["read"] for one in found["places"][1::2]] == [None, "x", None]
    assert found["places"][3]["expected"] == "d"


@pytest.mark.parametrize("between", [None, [], ["a"], ["a", "b", "c", "d"], "abc", [1, {}, None]])
def test_places_that_are_anything(tmp_path, between):
    line = {"between": between, "read": ["a", 3], "guessed": [[], None], "expected": ["x", {}]}
    found = sample(tmp_path, line, "mlm")
    assert ("places" in found) == (between == [1, {}, None])


def test_denoising_has_an_input_and_what_was_wanted(tmp_path):
    found = sample(tmp_path, {"prompt": "a <X> c", "text": "<X> q", "expected": "<X> b"}, "span_corruption")
    assert found["texts"] == {"input": "a <X> c", "written": "<X> q", "wanted": "<X> b"}


def test_bases_are_right_or_wrong(tmp_path):
    found = sample(tmp_path, {"bases": "ACGTN", "guessed": "ACTTA"})
    assert [(one["text"], one["guessed"], *one["marks"]) for one in found["bases"]] == [
        ("AC", "AC", "right"),
        ("G", "T", "wrong"),
        ("T", "T", "right"),
        ("N", "A", "wrong"),
    ]
    assert (found["right"], found["of"]) == (3, 5)


def test_files_are_shown_only_if_they_are_what_they_say(tmp_path):
    good = f"data:image/png;base64,{PNG}"
    assert sample(tmp_path, {"picture": good, "shown": ["original"]})["picture"] == good
    gif = base64.b64encode(b"GIF89a").decode()
    wrong = [
        "http://elsewhere/x.png",
        f"data:text/html;base64,{PNG}",
        f"data:image/png;base64,{gif}",
        good + '" x="',
        7,
    ]
    for value in wrong:
        found = sample(tmp_path, {"picture": value})
        assert "picture" not in found and "damaged" in found["remark"]
