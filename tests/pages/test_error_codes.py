"""The page of error codes has every code of the source, and is what documentation/error_codes.py writes."""

import re
from pathlib import Path

import pytest
from error_codes import error_codes, raised
from error_remedies import REMEDIES
from repository import DOCS, ROOT

PAGE = DOCS / "reference" / "error-codes.md"

CASES = {
    'BadError("a-code", "text")': ["text"],
    'BadError("a-code", f"{name} has {len(rows)} rows, got {shown(self.odd)}")': [
        "<name> has <number of rows> rows, got <odd>"
    ],
    'BadError("a-code", f"{x.shape} of {list(q.shape)}, {q.dtype}; {type(q).__name__}")': [
        "<shape of value> of <shape of q>, <dtype of q>; <type>"
    ],
    'BadError("a-code", "one" if here else f"two {three}")': ["one", "two <three>"],
    'BadError("a-code", f"text{nearest(name, KNOWN)}")': ["text"],
    "BadError(\"a-code\", f\"text{'' if here else f' and {more}'}{'a' if one else 'b'}\")": [
        "text[ and <more>][a | b]"
    ],
    'BadError("a-code", f"at most {MOST:,}: {REST}")\nMOST = 1_000\nREST = "ask for less"': [
        "at most 1,000: ask for less"
    ],
    'BadError("a-code", made(1))\ndef made(x):\n    return f"no {x}" if x else "none"': ["no <value>", "none"],
    'BadError("a-code", told)': ["<the reason>"],
    'BadError("a-code", f"a,\\n b")': ["a, b"],
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_a_message_is_read_as_a_template(text, expected, tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "some.py").write_text(f"class BadError(AsterismError): ...\n{text}\n")
    (found,) = raised(tmp_path)
    assert (found.kind, found.code, found.room) == ("BadError", "a-code", "room/")
    assert list(found.messages) == expected


def test_a_class_with_one_code_is_found(tmp_path):
    body = 'def __init__(self, name):\n        super().__init__("one-code", f"no {name}")'
    (tmp_path / "some.py").write_text(f"class AnyError(DataError):\n    {body}\nclass DataError(AsterismError): ...\n")
    assert [(one.kind, one.code, one.messages) for one in raised(tmp_path)] == [
        ("AnyError", "one-code", ("no <name>",))
    ]


def test_what_is_no_error_is_left_out(tmp_path):
    (tmp_path / "some.py").write_text(
        'ValueError("a-code", "text")\nprint("a-code", "text")\nDataError(code, "text")\n'
    )
    assert list(raised(tmp_path)) == []


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == error_codes(), "run `make reference`, and commit what it writes"


def test_every_code_of_the_source_is_on_the_page():
    """By a reading of its own: a class of errors, a parenthesis, and a code."""
    page = set(
        re.findall(r"^\| (?:<a id=\"\S+\"></a>)?`([a-z0-9-]+)`<br>", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    called = re.compile(r"\b[A-Z]\w*Error\(\s*\"([a-z0-9-]+)\",\s")
    source = {
        code for file in (ROOT / "src").rglob("*.py") for code in called.findall(file.read_text(encoding="utf-8"))
    }
    assert len(source) > 600
    assert source <= page


def test_links_of_remedies_lead_to_pages():
    named = {link.partition("#")[0] for text in REMEDIES.values() for link in re.findall(r"\]\((\S+?)\)", text)}
    assert named
    assert all((PAGE.parent / Path(link)).exists() for link in named)


def test_an_unknown_code_of_a_remedy_is_refused(monkeypatch):
    monkeypatch.setitem(REMEDIES, "no-such-code", "do this")
    with pytest.raises(SystemExit, match="no-such-code"):
        error_codes()
