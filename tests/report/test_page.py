import re
from html.parser import HTMLParser

import pytest
from refusals import refusing
from run_folders import causal, finished, tuned, write_lines, write_run

from asterism.errors import AsterismError
from asterism.report import describe_runs, is_page, make_page
from asterism.report import page as module

HOSTILE = "</script><script>alert(1)</script><img src=//evil onerror=alert(2)>\"'`{{ 7*7 }}{% x %}"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.open = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "input", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture
def hostile(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"text": HOSTILE, "label": HOSTILE}, {"text": "x", "label": "b"}])
    made = [{"record": f"{data}, line {number}", "predicted_label": HOSTILE} for number in (1, 2)]
    folder = tuned(tmp_path / "<b>&run", "classify", data, made)
    write_lines(folder / "samples.jsonl", [{"step": 1, "prompt": HOSTILE, "text": HOSTILE, "expected": HOSTILE}])
    write_lines(folder / "history.jsonl", [{"step": 1, "seconds": 1, HOSTILE: 2.0, f"validation_{HOSTILE}": 1.0}])
    return folder


def test_texts_of_users_are_text(hostile):
    page = make_page(describe_runs([hostile, hostile]))
    elements = Elements(page)
    assert not elements.open  # every element that begins also ends
    assert {tag for tag, _ in elements.found} & {"img", "link", "iframe", "object", "base", "form"} == set()
    assert [attributes for tag, attributes in elements.found if tag == "script"] == [
        {"type": "application/json", "id": "values"},
        {},
    ]
    assert HOSTILE in elements.text and "<b>&run" in elements.text
    handlers = {name for _, attributes in elements.found for name in attributes if name.startswith("on")}
    assert not handlers and "49" not in re.findall(r"\{\{.{9}", page)


def test_samples_that_anybody_wrote_are_text(hostile):
    masked = {"step": 1, "between": [HOSTILE, HOSTILE], "read": [HOSTILE], "guessed": [HOSTILE], "expected": ["a"]}
    picture = {"step": 2, "picture": f"data:image/png;base64,{HOSTILE}", "shown": [HOSTILE], "heard": HOSTILE}
    for learns in ({"objective": "mlm"}, {"modality": "genome()"}):
        config = causal(**learns)
        folder = write_run(hostile.parent / config.objective, config)
        bases = {"step": 3, "bases": HOSTILE, "guessed": HOSTILE[::-1]}
        write_lines(folder / "samples.jsonl", [masked, picture, bases])
        elements = Elements(make_page(describe_runs([folder])))
        assert not elements.open and {tag for tag, _ in elements.found} & {"img", "audio", "iframe", "object"} == set()
        assert "The picture is damaged and left out." in elements.text
        assert HOSTILE in elements.text or config.objective == "causal"


def test_nothing_is_loaded_and_only_its_own_script_may_run(hostile):
    page = make_page(describe_runs([hostile]))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert "default-src &#39;none&#39;" in policy and "unsafe" not in policy
    loading = {"src", "srcset", "action", "data", "style", "background"}
    for tag, attributes in Elements(page).found:
        assert not loading & set(attributes), tag
        assert attributes.get("href", "#").startswith("#")


def test_a_page_of_one_run_and_of_several(tmp_path):
    finished(tmp_path / "a")
    write_run(tmp_path / "b", causal(seed=3, context=16))
    one = Elements(make_page(describe_runs([tmp_path / "a"]))).text
    assert "Report of a" in one and "2.5000" in one and "zlib" in one and "Compared" not in one
    page = make_page(describe_runs([tmp_path / "a", tmp_path / "b"]))
    several = Elements(page).text
    assert "Report of 2 runs" in several and "Settings that differ" in several
    assert re.findall(r'<figure class="chart" data-axis="(\w+)"', page) == ["step", "seconds", "FLOPs"] * 2
    assert "bits per byte, validation" in several and "by FLOPs" in several


def test_what_unlike_runs_do_not_have_is_left_out_or_a_dash(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"text": "x", "label": "b"}])
    unlike = [write_run(tmp_path / "bytes"), tuned(tmp_path / "labels", "classify", data, [])]
    text = Elements(make_page(describe_runs(unlike))).text
    assert "null" not in text
    compared = text[text.index("learns") : text.index("Objective: causal")]
    assert "not known" not in compared and "modality" in compared and "–" in compared
    head, *_ = compared.partition("causal")
    assert "parameters" in head and "FLOPs" not in head  # the second run alone has parameters, and none has FLOPs


def test_losses_of_different_objectives_share_no_chart(tmp_path):
    finished(tmp_path / "a")
    write_run(tmp_path / "b", causal(objective="prefix_lm"))
    text = Elements(make_page(describe_runs([tmp_path / "a", tmp_path / "b"]))).text
    assert "bits per byte, validation" in text and "loss (nats), training" not in text


def test_a_page_shows_less_until_it_is_small_enough(tmp_path, monkeypatch):
    texts = [{"document": "x" * 3000, "summary": "y"}] * 60
    data = write_lines(tmp_path / "data.jsonl", texts)
    made = [{"record": f"{data}, line {number + 1}", "predicted_summary": "z" * 3000} for number in range(60)]
    runs = describe_runs([tuned(tmp_path / "run", "summarize", data, made)])
    whole = make_page(runs)
    assert "To keep this page small" not in whole and whole.count('<li class="unknown">') == 60
    monkeypatch.setattr(module, "LARGEST_PAGE", 200_000)
    small = make_page(runs)
    assert len(small) <= 200_000 and "To keep this page small" in small and 0 < small.count('<li class="unknown">') < 60
    monkeypatch.setattr(module, "LARGEST_PAGE", 1000)
    with refusing(AsterismError, "report-too-large", "1 run"):
        make_page(runs)


def test_a_page_is_known_by_its_mark(tmp_path):
    (tmp_path / "page.html").write_text(make_page(describe_runs([finished(tmp_path / "run")])))
    (tmp_path / "other.html").write_text("<!DOCTYPE html><p>hello")
    assert is_page(tmp_path / "page.html")
    assert not is_page(tmp_path / "other.html") and not is_page(tmp_path / "none.html") and not is_page(tmp_path)
