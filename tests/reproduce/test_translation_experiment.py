"""Pairs of Debian's descriptions, and the experiments on them: what is held out, equal cost, findings."""

import bz2
import lzma
from dataclasses import replace

import numpy as np
import pytest
from refusals import refusing

from asterism.errors import DataError
from asterism.patterns import as_schedule
from asterism.reproduce.data import debian_pairs as debian
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import sentence_pairs, translation
from asterism.reproduce.experiments.sentence_pairs import SENTENCE_PAIRS
from asterism.reproduce.experiments.translation import ENCODERS, TRANSLATION
from asterism.reproduce.trials import Training
from asterism.theory import certify


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


def test_pairs_are_paragraphs_of_one_description_that_has_as_many_in_both_languages(files):
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


def test_the_most_frequent_translation_stays(tmp_path):
    german = ["Die Tests.", "Das sind Tests.", "Das sind Tests."]
    paths = [tmp_path / "en.bz2", tmp_path / "de.bz2"]
    for path, language, texts in zip(paths, ("en", "de"), (["The tests."] * 3, german), strict=True):
        with bz2.open(path, "wt") as file:
            some = [
                stanza(f"p{number}", language, [f"{language} {number}"], [text]) for number, text in enumerate(texts)
            ]
            file.write("\n".join(some))
    assert ("The tests.", "Das sind Tests.") in debian.pairs(*paths, most_words=9)


def test_nothing_near_a_held_out_text_is_trained_on():
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


def test_texts_are_asked_for_the_nearest():
    near = debian.Near(["the red fox", "the blue whale eats"])
    assert near.nearest("The blue whale eats!") == (1.0, 1)
    assert near.nearest("no such thing here") == (0.0, -1)
    assert near.nearest("the red fox runs") == (pytest.approx(3 / 6), 0)


def test_what_is_written_is_what_is_read(tmp_path):
    pairs = [debian.Pair("a »b«", "ä\u2028ö"), debian.Pair("c", "d")]
    debian.write(pairs, tmp_path / "x.jsonl")
    assert debian.read(tmp_path / "x.jsonl") == pairs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lzma.compress(b" a line of no field\n"), "' a line of no field'"),
        (b"no archive", "format"),
        (lzma.compress(b"x" * 99)[:-9], "end"),
    ],
    ids=["no-field", "no-archive", "cut"],
)
def test_files_that_are_none_are_refused(tmp_path, content, message):
    (tmp_path / "en.xz").write_bytes(content)
    with refusing(DataError, "descriptions-file", str(tmp_path / "en.xz"), message):
        debian.descriptions(tmp_path / "en.xz")


# --- the experiment ---------------------------------------------------------------------------------------------------


def made_up(**bleu: float) -> Results:
    """Scores by encoder, all 10 but for those that are given with _ for a comma and a space."""
    scores = dict.fromkeys(ENCODERS, 10.0) | {name.replace("_", ", "): value for name, value in bleu.items()}
    rows = [{"trial": name, "seed": 0, "figures": {"BLEU": value, "chrF": 40.0}} for name, value in scores.items()]
    plain = {
        f"{score} of {name}": 5.0 for name in (translation.COPY, translation.NEAREST) for score in ("BLEU", "chrF")
    }
    return Results([{"trial": "no model", "seed": 0, "figures": plain}, *rows])


@pytest.mark.parametrize(
    ("bleu", "holds"),
    [
        ({"strided_union": 13, "fixed_union": 12, "random": 8}, [True, True, True, True]),
        ({"strided_multihead": 13, "fixed_union": 12, "star": 9, "random": 9.5}, [False, False, True, True]),
        ({"strided_union": 13, "star": 11, "random": 4}, [True, True, False, False]),
        ({"dense": 20, "strided_sequential_narrow": 19, "fixed_union": 11, "random": 9}, [True, True, False, True]),
    ],
)
def test_what_scores_decide(bleu, holds):
    results = made_up(**bleu)
    assert [finding.holds for finding in TRANSLATION.findings(results)] == holds
    assert len(TRANSLATION.table(results).rows) == len(ENCODERS) + 2
    assert TRANSLATION.draw(results).axes


@pytest.mark.parametrize("experiment", [translation, sentence_pairs])
def test_sparse_encoders_read_about_as_many_keys(experiment):
    found = {}
    for name, text in experiment.ENCODERS.items():
        # counted query by query, which asks the rule nothing but single pairs
        n, patterns = experiment.MEASURED, as_schedule(text).patterns
        each = [
            sum(bool(pattern.allows(np.array(q), np.array(k), n, head)) for q in range(n) for k in range(n))
            for pattern in patterns
            for head in range(pattern.heads)
            for _ in range(4 // pattern.heads)
        ]
        found[name] = experiment.keys(name)
        assert found[name] == pytest.approx(sum(each) / 4 / len(patterns) / n)
    dense, narrow = found.pop("dense"), found.pop("strided, sequential, narrow")
    assert narrow < 0.7 * found["strided, union"]
    assert dense == experiment.MEASURED
    assert max(found.values()) < 1.2 * min(found.values()) < 0.5 * dense


def test_encoders_but_random_are_universal():
    found = {name: certify(text, 40) for name, text in ENCODERS.items()}
    assert {name for name, one in found.items() if not one.yun} <= {"random"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of an experiment with two small files, of which six pairs are scored."""
    monkeypatch.setattr(debian, "TESTED", 6)
    monkeypatch.setattr(debian, "VALIDATED", 2)
    monkeypatch.setattr(translation, "VOCABULARY", 300)
    (data := tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    for name, language, opened in (("en.xz", "en", lzma.open), ("de.bz2", "de", bz2.open)):
        with opened(data / f"Translation-{name}", "wt", encoding="utf-8") as file:
            some = [f"{language}{number} {' '.join(random.choice(list('abcdefgh'), 3))}" for number in range(60)]
            file.write("\n".join(stanza(f"p{number}", language, [text]) for number, text in enumerate(some)))
    return tmp_path


def test_a_small_run_is_scored(folder, monkeypatch):
    baseline, *_, trial = TRANSLATION.trials("laptop")
    assert isinstance(trial, Training)
    assert set(baseline.run(folder)) == {
        f"{score} of {name}" for score in ("BLEU", "chrF") for name in (translation.COPY, translation.NEAREST)
    }
    short = replace(trial, config=replace(trial.config, steps=2, warmup_steps=1, batch_size=4))
    figures = short.run(folder)
    assert 0 <= figures["BLEU"] <= 100 and 0 < figures["chrF"] <= 100
    assert len(debian.read(folder / "data" / translation.TEST)) == 6
    (folder / "data" / translation.TRAIN).unlink()
    monkeypatch.setattr(debian, "TESTED", 60)
    with refusing(DataError, "too-few-pairs", "124 pairs"):
        short.run(folder)


def test_every_text_is_there_with_its_translation_and_with_another():
    pairs = [debian.Pair(f"e{n}", " ".join([f"g{n}"] * (1 + n % 4))) for n in range(11)]
    found = debian.matches([debian.Pair("first", "g0"), *pairs])  # of two that say g0, the second stays
    own = dict(pairs)
    for label in (debian.MATCHING, debian.OTHER):
        some = [(english, german) for english, german, one in found if one == label]
        assert [english for english, _ in some] == list(own)  # so no text tells the label by itself
        assert sorted(german for _, german in some) == sorted(own.values())
        assert {own[english] == german for english, german in some} == {label == debian.MATCHING}
    apart = sorted(abs(len(own[english].split()) - len(german.split())) for english, german, _ in found)
    assert apart[-2] <= 1 and apart[-1] == 3  # only the longest goes with the shortest


def test_a_small_judge_is_scored(folder):
    baseline, *_, trial = SENTENCE_PAIRS.trials("laptop")
    assert isinstance(trial, Training)
    short = replace(trial, config=replace(trial.config, steps=2, warmup_steps=1, batch_size=4))
    assert 0 <= short.run(folder)["accuracy"] <= 1
    assert (folder / "data" / "matches.test.jsonl").read_text().count("\n") == 12
    assert 0 <= baseline.run(folder)["accuracy"] <= 1


def test_common_words_tell_texts_apart(folder):
    data = folder / "data"
    for part, count in (("train", 12), ("test", 4)):
        debian.write([debian.Pair(f"{part}{n} x", f"y {part}{n}") for n in range(count)], data / f"pairs.{part}.jsonl")
    assert SENTENCE_PAIRS.trials("laptop")[0].run(folder) == {"accuracy": 1.0}


def judged(**right: float) -> Results:
    """Shares by encoder, all 0.8 but for those that are given with _ for a comma and a space."""
    shares = {**dict.fromkeys(ENCODERS, 0.8), "shared words": 0.78}
    shares |= {name.replace("_", ", "): value for name, value in right.items()}
    return Results([{"trial": name, "seed": 0, "figures": {"accuracy": one}} for name, one in shares.items()])


@pytest.mark.parametrize(
    ("right", "holds"),
    [
        ({"random": 0.7, "star": 0.75}, [True, True, True, True]),
        ({"random": 0.76, "star": 0.75, "dense": 0.9}, [False, True, False, True]),
        ({"fixed_union": 0.74, "star": 0.75, "dense": 0.77}, [False, False, True, False]),
        ({"strided_sequential_narrow": 0.5, "random": 0.6, "dense": 0.815}, [True, False, True, True]),
    ],
)
def test_what_judgements_decide(right, holds):
    results = judged(**right)
    assert [finding.holds for finding in SENTENCE_PAIRS.findings(results)] == holds
    assert len(SENTENCE_PAIRS.table(results).rows) == len(sentence_pairs.ENCODERS) + 2
    assert SENTENCE_PAIRS.draw(results).axes
    nothing = Results([])
    assert [finding.holds for finding in SENTENCE_PAIRS.findings(nothing)] == [None] * 4
    assert SENTENCE_PAIRS.table(nothing).rows[0][2] == "-"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Package: a\nDescription-md5: 0\nDescription-en: one\n \nPackage: b\nDescription-en: two", "'Package: b'"),
        ("Description-md5: 0\nDescription-en: one", "must have a Package and a Description-md5"),
        ("Package: a\nno field", "'no field'"),
    ],
    ids=["two-in-one", "no-package", "no-field"],
)
def test_stanzas_that_are_none_are_refused(tmp_path, text, message):
    (tmp_path / "en.xz").write_bytes(lzma.compress(text.encode()))
    with refusing(DataError, "descriptions-file", message):
        debian.descriptions(tmp_path / "en.xz")


def test_only_line_feeds_end_lines(tmp_path):
    text = "\ufeffPackage: a\nDescription-md5: 0\nDescription-en: one\u2028two\x0cthree\n\tA line\x85more."
    (tmp_path / "en.xz").write_bytes(lzma.compress(text.encode()))
    ((head, paragraph),) = debian.descriptions(tmp_path / "en.xz").values()
    assert head == "one\u2028two\x0cthree" and paragraph.split() == ["A", "line", "more."]
