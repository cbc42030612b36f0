"""RFCs as documents and summaries, and the experiment: what is left out, what figures decide, and a small run."""

import lzma
import time
from dataclasses import replace

import pytest
from refusals import refusing
from small_rfcs import ABSTRACT, BREAK, FILLER, RFC, SENTENCES, row, wrapped, write_rfcs

from asterism.errors import DataError
from asterism.reproduce.data.rfcs import (
    MOST_SENTENCES,
    RFCS,
    best_count,
    candidates,
    document_of,
    documents,
    lead,
    oracle,
    paragraphs,
    read,
    rouge1,
    split_of,
    write_documents,
)
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import summaries
from asterism.reproduce.experiments.summaries import (
    EQUAL_CUT,
    EQUAL_TIME,
    EQUAL_WHOLE,
    LEAD,
    LONG,
    ORACLE,
    PRETRAINED,
    READ,
    SCORES,
    SCRAPS,
    SHORT,
    SUMMARIES,
)
from asterism.reproduce.trials import DATA, Training
from asterism.training.tasks.scores.texts import rouge

LONGER = RFC.replace(wrapped(FILLER), wrapped(f"{FILLER} {FILLER}"))

# --- documents ------------------------------------------------------------------------------------------------------


def test_a_document_is_the_body_in_lines():
    found = document_of(row())
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


def test_an_rfc_is_left_out_if_its_abstract_cannot_be_removed():
    assert document_of(row(text=RFC.replace("Abstract\n", "Aims\n"))) is None
    assert document_of(row(abstract="Something else is said here, in other words, and at length.")) is None
    assert document_of(row(abstract="")) is None
    assert document_of(row(text=RFC.replace(wrapped(FILLER), ""))) is None  # too little is left


def test_a_paragraph_that_ends_with_a_page_is_not_joined():
    text = f"   One ends here.\n{BREAK}   Another begins.\n\n   A third\n{BREAK}\n   goes on.\n"
    assert [one.text for one in paragraphs(text)] == ["One ends here.", "Another begins.", "A third goes on."]


def test_splits_are_of_the_name_and_disjoint(tmp_path):
    names = [f"rfc{number}" for number in range(2000)]
    shares = [sum(split_of(name) == split for name in names) / 2000 for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    lines = [*(row(id=name) for name in names[:40]), row(id="lost", abstract=None)]
    source = write_rfcs(tmp_path / RFCS, lines)
    found = {split: [one["id"] for one in documents(source, split)] for split in ("train", "validation", "test")}
    assert sorted(sum(found.values(), [])) == sorted(names[:40])
    assert all(split_of(name) == split for split, some in found.items() for name in some)
    write_documents(tmp_path / "some.jsonl", source, "train", count=3)
    assert list(read(tmp_path / "some.jsonl")) == documents(source, "train")[:3]


def test_documents_are_chosen_by_their_words(tmp_path):
    names = [f"rfc{number}" for number in range(40)]
    lines = [row(id=name, text=LONGER if number % 2 else RFC) for number, name in enumerate(names)]
    source = write_rfcs(tmp_path / RFCS, lines)
    short, long = (documents(source, "train", words) for words in (range(701), range(701, 10_000)))
    assert [int(one["id"][3:]) % 2 for one in (*short, *long)] == [0] * len(short) + [1] * len(long)
    assert len(short) + len(long) == len(documents(source, "train")) and short and long
    with refusing(DataError, "no-rfcs", str(source), "train", "2 to 9 words", str(len(short) + len(long))):
        documents(source, "train", range(2, 10))


@pytest.mark.parametrize(
    ("entry", "seen"),
    [
        ([1], "[1] has no id"),
        ({"id": "rfc1", "title": "T", "text": "..."}, "abstract"),
        (row(title=7), "title must be text, got 7"),
        (row(text="half of a pair: \ud800"), "surrogates"),
    ],
)
def test_foreign_files_are_refused(tmp_path, entry, seen):
    source = write_rfcs(tmp_path / RFCS, [row(), entry])
    with refusing(DataError, "rfcs-file", str(source), seen) as caught:
        documents(source, "train")
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path):
    whole = write_rfcs(tmp_path / RFCS, [row()]).read_bytes()
    for name, content in {
        "cut": whole[:-40],
        "text": b"id,title\n",
        "broken": lzma.compress(b'{"id": '),
        "deep": lzma.compress(b"[" * 100_000),
        "bytes": lzma.compress(b"\xff\xff"),
    }.items():
        (tmp_path / name).write_bytes(content)
        with refusing(DataError, "rfcs-file", str(tmp_path / name)):
            documents(tmp_path / name, "train")
    with refusing(DataError, "rfcs-file", "missing"):
        documents(tmp_path / "missing", "train")


# --- sentences ------------------------------------------------------------------------------------------------------


def test_sentences_by_hand():
    found = document_of(row())
    sentences = candidates(found["document"])
    assert sentences[0].startswith("Kitchens of size 0")  # no title, heading or scrap
    assert lead(sentences, 2) == [0, 1] and lead(sentences[:1], 2) == [0]
    assert [sentences[number] for number in oracle(sentences, found["summary"])] == [SENTENCES[3]]
    both = ["One word stands alone here.", SENTENCES[1], SENTENCES[3], SENTENCES[0], "More is said of it."]
    assert oracle(both, found["summary"]) == [2, 3] and oracle(both, "xyzzy") == []
    assert len(oracle([f"word{number}" for number in range(30)], " ".join(f"word{n}" for n in range(30)))) == (
        MOST_SENTENCES
    )
    assert best_count(lambda count: -abs(count - 3)) == 3 and best_count(lambda _: 0.0) == 1


def test_rouge_1_is_that_of_the_package():
    pytest.importorskip("rouge_score")  # the extra `seq2seq`
    pairs = [(SENTENCES[1], SENTENCES[2]), (FILLER, ABSTRACT), ("Plates' slicing, toasters", "a plate sliced: toast")]
    for said, wanted in pairs:
        assert rouge1(said, wanted) == pytest.approx(rouge([said], [wanted])["rouge1"], abs=1e-12)


# --- the experiment -------------------------------------------------------------------------------------------------


def made_up(**r1: tuple[float, float]) -> Results:
    """R-1 of short and of long documents."""
    names = {"cut": EQUAL_CUT, "whole": EQUAL_WHOLE, "in_time": EQUAL_TIME, "lead": LEAD}
    return Results(
        [
            {"trial": names[name], "seed": 0, "figures": {f"R-1, {SHORT}": short, f"R-1, {LONG}": long}}
            for name, (short, long) in r1.items()
        ]
    )


LIKE_THE_PAPER = {"cut": (33, 30), "whole": (34, 38), "in_time": (32, 35), "lead": (35, 34)}
"""A gain of 1 and of 8; no gain of equal time; the best model is worse than the first sentences on short documents."""
LIKE_THE_SCRIPT = {"cut": (33, 33), "whole": (33.5, 33.2), "in_time": (39, 40), "lead": (38.5, 39.9)}


@pytest.mark.parametrize(
    ("r1", "holds"),
    [
        (LIKE_THE_PAPER, [True, True, True, False, False]),
        (LIKE_THE_SCRIPT, [False, True, False, True, True]),
        (LIKE_THE_PAPER | {"whole": (36, 38)}, [True, False, True, False, True]),
        (LIKE_THE_PAPER | {"whole": (30, 31.9)}, [False, False, True, True, False]),
        (LIKE_THE_PAPER | {"whole": (34.5, 33)}, [True, True, False, False, False]),
        (LIKE_THE_SCRIPT | {"in_time": (39, 33)}, [False, True, False, False, False]),
    ],
)
def test_what_scores_decide(r1, holds):
    results = made_up(**r1)
    assert [finding.holds for finding in SUMMARIES.findings(results)] == holds


def test_missing_figures():
    every = made_up(**LIKE_THE_PAPER)
    some = made_up(cut=(33, 30), lead=(35, 34))
    for results in (every, some, Results([])):
        table = SUMMARIES.table(results)
        assert {len(cells) for cells in table.rows} == {len(table.headings)}
        assert len(table.rows) == 2 + len(READ) + 3 + 2
        assert SUMMARIES.draw(results).axes
    assert [finding.holds for finding in SUMMARIES.findings(some)] == [None] * 5
    rows = {cells[0]: cells for cells in SUMMARIES.table(every).rows}
    assert rows[EQUAL_WHOLE][1:3] == ("34.0 / - / -", "38.0 / - / -")
    assert "BigPatent 55.69" in rows["BigBird-RoBERTa base, in the paper: R-1"][2]


@pytest.mark.parametrize(("scale", "seeds"), [("laptop", 1), ("workstation", 3)])
def test_who_starts_from_whom(scale, seeds):
    found = SUMMARIES.trials(scale)
    trained = [trial for trial in found if isinstance(trial, Training)]
    assert [trial.name for trial in found[:2]] == [LEAD, ORACLE] and len(trained) == 5 * seeds
    starts = {trial.name: trial.start for trial in trained}
    assert starts == {SCRAPS: None, PRETRAINED: SCRAPS, **dict.fromkeys(READ, PRETRAINED)}
    assert {trial.seed for trial in trained} == set(range(seeds))
    assert all(trial.config.dtype == "float32" and getattr(trial.config, "minutes", None) is None for trial in trained)
    cut, whole, in_time = (
        next(trial.settings() for trial in trained if trial.name == name)
        for name in (EQUAL_CUT, EQUAL_WHOLE, EQUAL_TIME)
    )
    assert {name for name in cut if cut[name] != whole[name]} == {"reader"}
    assert {name for name in cut if cut[name] != in_time[name]} == {"steps", "evaluation_every"}
    assert in_time["steps"] > 3 * cut["steps"]


def small(trial: Training) -> Training:
    """Two steps of it, with few tokens."""
    changes = {"steps": 2, "batch_size": 2, "warmup_steps": 1, "evaluation_every": 2}
    if trial.name == SCRAPS:
        changes["tokenizer"] = "bpe:300"
    if trial.name in READ:
        changes |= {"target_length": 16, "evaluation_examples": 1}
    return replace(trial, config=replace(trial.config, **changes))


@pytest.mark.slow
@pytest.mark.model
def test_a_small_run_is_scored(tmp_path, monkeypatch):
    pytest.importorskip("rouge_score")  # the extra `seq2seq`
    monkeypatch.setattr(summaries, "WORDS", {SHORT: range(701), LONG: range(701, 100_000)})
    (tmp_path / DATA).mkdir()
    lines = [row(id=f"rfc{n}", title=f"Toast {n}", text=LONGER if n % 3 else RFC) for n in range(60)]
    write_rfcs(tmp_path / DATA / RFCS, lines)
    lead_trial, oracle_trial, scraps, pretrained, *models = SUMMARIES.trials("laptop")
    figures = {f"{score}, {length}" for score in SCORES for length in (SHORT, LONG)}
    first, nearest = lead_trial.run(tmp_path), oracle_trial.run(tmp_path)
    assert set(nearest) == figures and set(first) == figures | {"sentences"}
    assert all(100 >= nearest[name] > first[name] >= 0 for name in figures)
    assert 0 < first[f"R-1, {LONG}"] == first[f"R-1, {SHORT}"]  # the texts differ after the first sentences
    for trial in (scraps, pretrained):
        assert 0 < small(trial).run(tmp_path)["validation_target_loss"] < 20
    whole = small(next(trial for trial in models if trial.name == EQUAL_WHOLE)).run(tmp_path)
    assert figures <= set(whole) and all(0 <= whole[name] <= 100 for name in figures)
    rows = {name: list(read(tmp_path / DATA / name)) for name in ("train.jsonl", "text.jsonl", "checked.jsonl")}
    assert [one["text"] for one in rows["text.jsonl"]] == [one["document"][:16_000] for one in rows["train.jsonl"]]
    tested = [list(read(path)) for path in (tmp_path / DATA).glob("test-*.jsonl")]
    learned = {one["id"] for one in rows["train.jsonl"]}
    assert len(tested) == 2 and all(some and not learned & {one["id"] for one in some} for some in tested)


@pytest.mark.parametrize("line", ["." * 50_000, "a" + " " * 50_000 + "x", "[page 1]" + " " * 50_000 + "."])
def test_long_lines_take_no_long_time(line):
    began = time.process_time()
    (found,) = paragraphs(line)
    assert not (found.is_heading and found.is_prose)
    assert time.process_time() - began < 2  # where every place of a line is searched to its end, 30 seconds and more
