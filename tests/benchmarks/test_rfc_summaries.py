"""What benchmarks/rfc_summaries.py makes of an RFC, a small made-up one, and what it says of it without a model."""

import importlib
import json
import lzma

import pytest
from repository import BENCHMARKS, docs_page

SENTENCES = [
    "This document specifies the Toast Transfer Protocol, which moves toast between kitchens.",
    "A toaster is a host that makes toast, and a plate is a host that keeps it.",
    "Toast that is not eaten within an hour is lost, and nothing brings it back.",
    "The plate answers each slice of toast with a crumb, so that the toaster knows what arrived.",
]
FILLER = " ".join(
    f"Kitchens of size {size} need no more than one plate for every two of their cooks." for size in range(30)
)


def wrapped(text: str, indent: str = "   ") -> str:
    """Lines of at most 60 characters."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 60:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join(indent + one for one in [*lines, line])


BREAK = """


Baker                        Experimental                       [Page 1]
\f
RFC 9999                Toast Transfer Protocol                1 April 2031


"""

ABSTRACT = f"{SENTENCES[0]}  {SENTENCES[3]}"
RFC = f"""\ufeff



Network Working Group                                           A. Baker
Request for Comments: 9999                                     Toast Inc
Category: Experimental                                      1 April 2031


                        Toast Transfer Protocol

Status of This Memo

   This memo defines an Experimental Protocol for kitchens.

Abstract

{wrapped(ABSTRACT)}

Table of Contents

   1. Introduction ....................................................2
      1.1. Terms ......................................................2
   2. Crumbs ..........................................................3

Index of Toast ........................................................4
{BREAK}1.  Introduction

{wrapped("It is early. Nobody has eaten.")}

{wrapped(FILLER)}

1.1.  Terms

   A toaster is a host that makes toast, and
{BREAK}   a plate is a host that keeps it.  {SENTENCES[2]}

             +---------+          +-------+
             | toaster | -------> | plate |
             +---------+          +-------+

                      Figure 1: What is where

2.  Crumbs

{wrapped(SENTENCES[3])}  It may be a well-
   known crumb.

3.  References

   [1]  Baker, A., "Bread", RFC 9998, 2030.

Author's Address

   A. Baker
   EMail: baker@example.org
"""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def rfc(script):
    return script("rfc")


def row(**changes) -> dict:
    status = "  This memo defines an Experimental Protocol for the Internet community."
    given = {"id": "rfc9999", "title": "Toast Transfer Protocol", "abstract": ABSTRACT + status, "text": RFC}
    return {**given, **changes}


def test_a_document_is_the_body_in_lines(rfc):
    found = rfc.document_of(row())
    lines = found["document"].split("\n")
    assert found["summary"] == " ".join(ABSTRACT.split())
    assert lines == [
        "Toast Transfer Protocol",
        "1.  Introduction",
        "It is early. Nobody has eaten.",
        FILLER,
        "1.1.  Terms",
        f"{SENTENCES[1]} {SENTENCES[2]}",
        "Figure 1: What is where",
        "2.  Crumbs",
        f"{SENTENCES[3]} It may be a well-known crumb.",
    ]
    assert SENTENCES[0] not in found["document"]  # it stood in the abstract alone


def test_an_rfc_is_left_out_if_its_abstract_cannot_be_removed(rfc):
    assert rfc.document_of(row(text=RFC.replace("Abstract\n", "Aims\n"))) is None
    assert rfc.document_of(row(abstract="Something else is said here, in other words, and at length.")) is None
    assert rfc.document_of(row(abstract="")) is None
    assert rfc.document_of(row(text=RFC.replace(wrapped(FILLER), ""))) is None  # too little is left


def test_a_paragraph_that_ends_with_a_page_is_not_joined(rfc):
    text = f"   One ends here.\n{BREAK}   Another begins.\n\n   A third\n{BREAK}\n   goes on.\n"
    assert [one.text for one in rfc.paragraphs(text)] == ["One ends here.", "Another begins.", "A third goes on."]


def test_splits_are_of_the_name_and_disjoint(rfc, tmp_path):
    names = [f"rfc{number}" for number in range(2000)]
    shares = [sum(rfc.split_of(name) == split for name in names) / 2000 for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    with lzma.open(tmp_path / "rfcs.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row(id=name)) + "\n" for name in names[:40])
        file.write(json.dumps(row(id="lost", abstract="")) + "\n")
    said = rfc.write_splits(tmp_path / "rfcs.jsonl.xz", tmp_path / "data")
    found = {split: [one["id"] for one in rfc.read(tmp_path / "data" / f"{split}.jsonl")] for split in said["left"]}
    assert said["given"] == 41 and sorted(sum(found.values(), [])) == sorted(names[:40])
    assert all(rfc.split_of(name) == split for split, some in found.items() for name in some)
    assert said["repeating"] == 1  # the last sentence of the abstract stands in section 2, too
    assert not rfc.repeats({"document": "Nothing of it.", "summary": ABSTRACT})


def test_baselines_by_hand(rfc):
    found = rfc.document_of(row())
    assert rfc.candidates(found["document"])[0].startswith("Kitchens of size 0")  # no title, heading or scrap
    assert rfc.BASELINES["lead"](found["document"], 2).split("\n") == rfc.candidates(found["document"])[:2]
    assert rfc.oracle(found["document"], found["summary"]) == SENTENCES[3]
    both = f"Title\nOne word stands alone here. {SENTENCES[1]}\n{SENTENCES[3]} {SENTENCES[0]} More is said of it."
    assert set(rfc.oracle(both, found["summary"]).split("\n")) == {SENTENCES[0], SENTENCES[3]}
    text = (
        "T\nThe crumb is a crumb of toast. The crumb of toast is a crumb. Nobody knows why rain falls. It is late now."
    )
    said = rfc.BASELINES["centroid"](text, 2)
    assert "Nobody" not in said and "\n" in said


def test_what_is_copied(script):
    copied = script("rfc_summaries").copied
    assert copied("a b c d e", "x a b c d y") == 0.5 and copied("a b c", "a b c") == 0


def test_the_table_shows_what_there_is(script, capsys):
    scores = dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), 0.125)
    said = {"scores": scores, "words_per_summary": 40.2}
    costs = {"copied": 0.3, "tokens_per_document": 4001.2, "seconds_per_document": 1.25, "peak_bytes": 2**30}
    run = {"steps": 1200, "training_seconds": 90.0, "training_peak_bytes": 2**30}
    record = {
        "date": "2026-11-22",
        "settings": {"seed": 0},
        "baselines": [{"name": "lead", "sentences": 3, **said}, {"name": "oracle", "sentences": None, **said}],
        "trained": {"long": run},
        "rows": [{"model": "long", "reader": "whole()", **said, **costs}],
    }
    script("rfc_summaries").report(record)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| lead, 3 sentences | | 0.125 | 0.125 | 0.125 | 0.125 | 40 | | | | |"
    assert lines[4] == "| `long` | `whole()` | 0.125 | 0.125 | 0.125 | 0.125 | 40 | 0.30 | 4,001 | 1.25 | 1,024 |"
    assert "| long | 1,200 | 1.5 | 1,024 |" in lines and lines[-1] == "2026-11-22, {'seed': 0}"


def test_the_page_shows_the_results(script, capsys):
    record = json.loads((BENCHMARKS / "results" / "rfc-summaries.json").read_text())
    script("rfc_summaries").report(record)
    said, costs, _ = capsys.readouterr().out.split("\n\n")
    page = docs_page("summaries.md").read_text()
    assert said in page and costs in page and len(said.splitlines()) == 15
    assert f"{sum(record['data']['left'].values()):,} are left" in page and record["date"] in page
