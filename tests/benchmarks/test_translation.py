"""The benchmark of translation: which pairs it makes, what it holds out, and what it says of patterns."""

import bz2
import importlib
import json
import lzma

import numpy as np
import pytest
from repository import ROOT, docs_page

from asterism.patterns import as_schedule


@pytest.fixture
def debian(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("debian_pairs")


@pytest.fixture
def translation(debian):
    return importlib.import_module("translation")


def stanza(package: str, language: str, *paragraphs: list[str], md5: str = "0") -> str:
    """A description as the files have it: a short line, and paragraphs that a dot parts."""
    (head,), *rest = paragraphs
    body = "\n .\n".join("\n".join(f" {line}" for line in lines) for lines in rest)
    return f"Package: {package}\nDescription-md5: {md5}\nDescription-{language}: {head}\n{body}\n"


ENGLISH = [
    stanza("ant", "en", ["an ant"], ["It walks", "far, and back."], ["* six legs", "* two eyes"], ["It is small."]),
    stanza("bee", "en", ["a bee"], ["It flies."], ["It stings."]),
    stanza("cow", "en", ["a cow"], ["It is small."], ["GNU make"], ["Never"]),
    stanza("dog", "en", ["a dog"], ["It is SMALL"], ["It barks."]),
    stanza("cat", "en", ["the cat 1"], ["The Cat 2"]),
    stanza("elk", "en", ["an elk"], ["It eats more than it ever could carry away."]),
]
GERMAN = [
    stanza(
        "ant", "de", ["eine Ameise"], ["Sie läuft", "weit und zurück."], ["* je", "* zwei Augen"], ["Sie ist klein."]
    ),
    stanza("bee", "de", ["eine Biene"], ["Sie fliegt und sticht."]),
    stanza("cow", "de", ["eine Kuh"], ["Es ist klein."], ["GNU make"], ["Niemals"]),
    stanza("dog", "de", ["ein Hund"], ["Es ist klein."], ["Er bellt."], md5="of an older text"),
    stanza("cat", "de", ["die Katze 1"], ["Die Katze 2"]),
    stanza("elk", "de", ["ein Elch"], ["Er frisst."]),
    stanza("fox", "de", ["ein Fuchs"], ["Er ist rot."]),
]


@pytest.fixture
def files(tmp_path):
    with lzma.open(tmp_path / "en.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(ENGLISH))
    with bz2.open(tmp_path / "de.bz2", "wt", encoding="utf-8") as file:
        file.write("\n".join(GERMAN))
    return tmp_path / "en.xz", tmp_path / "de.bz2"


def test_pairs_are_paragraphs_of_one_description_that_has_as_many_in_both_languages(debian, files):
    found = debian.pairs(*files, most_words=48)
    assert sorted(found) == [
        ("It is small.", "Es ist klein."),  # of two German texts, each once, the first in the alphabet
        ("It walks far, and back.", "Sie läuft weit und zurück."),
        ("The Cat 2", "Die Katze 2"),  # and not the cat 1, which has its words
        ("a cow", "eine Kuh"),
        ("an ant", "eine Ameise"),
        ("an elk", "ein Elch"),
    ]
    assert found == debian.pairs(*files, most_words=48) != sorted(found)
    assert ("It walks far, and back.", "Sie läuft weit und zurück.") not in debian.pairs(*files, most_words=4)


def test_the_most_frequent_translation_stays(debian, tmp_path):
    german = ["Die Tests.", "Das sind Tests.", "Das sind Tests."]
    paths = [tmp_path / "en.bz2", tmp_path / "de.bz2"]
    for path, language, texts in zip(paths, ("en", "de"), (["The tests."] * 3, german), strict=True):
        with bz2.open(path, "wt") as file:
            some = [
                stanza(f"p{number}", language, [f"{language} {number}"], [text]) for number, text in enumerate(texts)
            ]
            file.write("\n".join(some))
    assert ("The tests.", "Das sind Tests.") in debian.pairs(*paths, most_words=9)


def test_nothing_near_a_held_out_text_is_trained_on(debian):
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(40)]
    texts = [" ".join(random.choice(words, 6)) for _ in range(30)]
    others = [f"x{number} {number} y z{number}" for number in range(30)]
    made = [debian.Pair(*both) for both in zip(texts, others, strict=True)]
    one_word_more = [debian.Pair(f"{pair.source} more", f"u{n} v{n} t{n}") for n, pair in enumerate(made[:12])]
    only_the_target = [debian.Pair(f"s{n} r{n} q{n} p{n}", pair.target.upper()) for n, pair in enumerate(made[:12])]
    splits = debian.split([*made, *one_word_more, *only_the_target], validation=4, test=8)
    assert (splits.test, splits.validation) == (made[:8], made[8:12])
    assert splits.near == 24 and splits.train == made[12:]
    # the same, pair by pair, by a count of its own
    for held_out in (*splits.test, *splits.validation):
        for pair in splits.train:
            for one, other in zip(held_out, pair, strict=True):
                a, b = (
                    set(zip(["", *text.lower().split()], [*text.lower().split(), ""], strict=True))
                    for text in (one, other)
                )
                assert len(a & b) / len(a | b) < 0.5


def test_texts_are_asked_for_the_nearest(debian, translation):
    near = debian.Near(["the red fox", "the blue whale eats"])
    assert near.nearest("The blue whale eats!") == (1.0, 1)
    assert near.nearest("no such thing here") == (0.0, -1)
    assert near.nearest("the red fox runs") == (pytest.approx(3 / 6), 0)
    train = ["a tool for mail", "a tool for maps", "games for children"]
    assert list(translation.nearest(train, ["maps", "children with games", "a mail tool", "zebra"])) == [1, 2, 0, 0]


def test_what_is_written_is_what_is_read(debian, tmp_path):
    pairs = [debian.Pair("a »b«", "ä\u2028ö"), debian.Pair("c", "d")]
    debian.write(pairs, tmp_path / "x.jsonl")
    assert debian.read(tmp_path / "x.jsonl") == pairs


def test_sparse_encoders_read_about_as_many_keys(translation):
    lengths = [8, 22, 30]
    found = {}
    for name, text in translation.encoders().items():
        # counted query by query, which asks the rule nothing but single pairs
        patterns = as_schedule(text).patterns
        each = [
            sum(bool(pattern.allows(np.array(q), np.array(k), n, head)) for q in range(n) for k in range(n))
            for pattern in patterns
            for n in lengths
            for head in range(pattern.heads)
            for _ in range(4 // pattern.heads)
        ]
        found[name] = translation.keys_per_token(text, lengths)
        assert found[name] == pytest.approx(sum(each) / 4 / len(patterns) / sum(lengths))
    dense, narrow = found.pop("dense"), found.pop("strided sequential narrow")
    assert narrow < 0.7 * found["strided union"]
    assert dense == pytest.approx(sum(n * n for n in lengths) / sum(lengths))
    assert max(found.values()) < 1.15 * min(found.values()) < 0.5 * dense


def test_what_theory_says_of_the_forms(translation):
    found = {name: translation.theory(text) for name, text in translation.encoders().items()}
    assert all(one["universal"] for one in found.values()), found
    assert found["dense"]["layers_to_reach_all"] == 1


def test_differences_are_marked_where_they_are_sure(debian, translation):
    texts = [f"Dieses Paket enthält Werkzeug {number} für {number * 7} Dateien." for number in range(20)]
    pairs = [debian.Pair(text.upper(), text) for text in texts]
    worse, like = ([text if n % 10 != bad else "nichts davon" for n, text in enumerate(texts)] for bad in (3, 4))
    found = translation.compared({"first": worse, "like": like, "right": texts, "wrong": ["-"] * 20}, pairs)
    assert found["first"]["bleu_p"] is None and found["right"]["bleu_ci"] == found["wrong"]["chrf_ci"] == 0
    assert found["like"]["chrf_p"] > translation.SURE > max(found["wrong"]["bleu_p"], found["wrong"]["chrf_p"])
    assert found["first"]["bleu_ci"] > 1
    score = {"bleu": 12.34, "chrf": 50.0}
    sure = {"bleu_ci": 1.66, "bleu_p": 0.01, "chrf_ci": 2.0, "chrf_p": 0.2}
    assert list(translation._scores(score, sure)) == ["12.3 ± 1.7*", "50.0 ± 2.0"]
    assert list(translation._scores(score, {})) == ["12.3", "50.0"]
    assert translation.scores(texts, pairs)["bleu"] == pytest.approx(100)


def test_the_page_has_the_figures_of_the_results(translation, capsys):
    page, results = docs_page("translation.md").read_text(), ROOT / "benchmarks" / "results"
    translation.report(json.loads((results / "translation.json").read_text()))
    table, rest = capsys.readouterr().out.split("\n\n", 1)
    assert table in page and len(table.splitlines()) == 2 + 9 + 2
    assert all(line.strip() in page for line in rest.splitlines()[:2])
    importlib.import_module("copying").show(record := json.loads((results / "copying.json").read_text()))
    assert capsys.readouterr().out.strip() in page
    assert {row["exact_match"] for row in record["rows"]} == {1.0}
