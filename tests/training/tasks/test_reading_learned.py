"""Windows that a scorer learned to select: where BM25 must fail, in training, evaluation, prediction, and stopped."""

import json
import random
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusing
from safetensors.numpy import load_file, save_file
from small_encoders import save_tiny_bert, word_tokenizer, write_lines
from small_tasks import read_examples
from small_writers import digit_tokenizer
from stopping import at_step

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, train
from asterism.training.readers import learned
from asterism.training.readers.learned import SCORER, Bags, Lesson, Scorer, learn
from asterism.training.settings.registry import TASKS
from asterism.training.tasks.ranking import learned_scorer

pytestmark = pytest.mark.model

MEANT = {"lamp": "red", "coin": "blue", "book": "green"}
"""The answer to a question about a lamp stands beside "red", and nowhere beside "lamp"."""
PLACES = ("cellar", "attic", "garden")
READER = "selected(length=11, k=1, by=learned)"
"""A question has four tokens, three stand around, so a window has four, which is a sentence."""


def question(draw: random.Random) -> dict:
    """A document of eight sentences of four words: one answers, two have the question's words, two answer another."""
    thing = draw.choice(list(MEANT))
    others = [f"ben {colour} {draw.choice(PLACES)} ." for name, colour in MEANT.items() if name != thing]
    answer = draw.choice(PLACES)
    said = f"ben {MEANT[thing]} {answer} ."
    sentences = [said, *others, *[f"the {thing} is good"] * 2, *["a of in ."] * 3]
    draw.shuffle(sentences)
    start = sum(len(one) + 1 for one in sentences[: sentences.index(said)]) + said.index(answer)
    context = " ".join(sentences)
    return {
        "context": context,
        "question": f"where is the {thing}",
        "answers": {"text": [answer], "answer_start": [start]},
    }


ROWS = [question(random.Random(number)) for number in range(120)]
TAUGHT = 100


def lessons(count: int = 200, seed: int = 0, *, true: bool = True) -> list[Lesson]:
    """Each window has a word of its own kind; that of the wanted one belongs to the question's, by another name."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        kinds = draw.sample(range(12), 5)
        windows = [Counter({f"answer{kind}": 1, "and": 2}) for kind in kinds] + [Counter({f"asked{kinds[0]}": 2})]
        order = draw.sample(range(6), 6)
        right = 0 if true else draw.randrange(6)
        wanted = [float(at == right) for at in order]
        bm25 = [3.0 if at == 5 else 0.0 for at in order]
        asked = Counter({f"asked{kinds[0]}": 1, "where": 1})
        made.append(Lesson.of(asked, Bags.of([windows[at] for at in order]), bm25, wanted))
    return made


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


# --- the scorer -----------------------------------------------------------------------------------------------------


def test_it_learns_what_bm25_cannot_know():
    _, found = learn(lessons(), names(200), 0)
    assert (found["lessons"], found["scorer"], found["bm25"]) == (20, 1.0, 0.0)


def test_where_there_is_nothing_to_learn_it_stays_near_bm25():
    """Windows wanted by chance: of six one."""
    _, found = learn(lessons(true=False), names(200), 0)
    assert found["scorer"] < 0.5


def test_it_is_a_function_of_lessons_and_seed():
    one, same, other = (learn(lessons(60), names(60), seed)[0] for seed in (1, 1, 2))
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not torch.equal(one.read, other.read)


def test_it_is_the_same_when_it_is_loaded(tmp_path):
    scorer, _ = learn(lessons(40), names(40), 0)
    scorer.save(tmp_path)
    assert all(map(torch.equal, scorer.parameters(), Scorer.load(tmp_path).parameters()))


def test_documents_kept_apart_teach_nothing(monkeypatch):
    taught, loss = [], Scorer.loss

    def recorded(self, lesson):
        if torch.is_grad_enabled():
            taught.append(id(lesson))
        return loss(self, lesson)

    monkeypatch.setattr(Scorer, "loss", recorded)
    some = lessons(40)
    _, found = learn(some, [str(number // 2) for number in range(40)], 0)  # two questions about each document
    assert found["lessons"] == 4 and {id(one) for one in some} - set(taught) == {
        id(some[at]) for at in (18, 19, 38, 39)
    }


DRAW = np.random.default_rng(0)
ASKED, READ = (DRAW.normal(size=(learned.BUCKETS, learned.WIDTH)) for _ in range(2))
ALONE = DRAW.normal(size=learned.BUCKETS)
DRAWN = Scorer(*map(torch.from_numpy, (ASKED, READ, ALONE, np.array([0.7]))))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 5)), min_size=1, max_size=6), st.data())
def test_scores_are_those_of_the_formula(windows, data):
    """One window after the other, word by word."""
    asked = data.draw(st.none() | st.dictionaries(st.sampled_from("abxyz"), st.integers(1, 3)))
    bm25 = data.draw(st.lists(st.floats(0, 9), min_size=len(windows), max_size=len(windows)))

    def shares(text):
        values = {word: np.log(1 + count) for word, count in text.items()}
        norm = sum(value**2 for value in values.values()) ** 0.5
        return {learned._bucket(word): value / norm for word, value in values.items()}

    about = sum((ASKED[place] * share for place, share in shares(asked or {}).items()), np.zeros(32))
    deviation = float(np.std(bm25)) or 1.0
    for window, score, one in zip(windows, DRAWN.scores(asked, windows, bm25), bm25, strict=True):
        said = sum(
            share * (float(ALONE[place]) + float(about @ READ[place])) for place, share in shares(window).items()
        )
        expected = 0.7 * (one - np.mean(bm25)) / deviation + said
        assert abs(score - expected) < 2e-5 * max(1, abs(expected))


# --- what tasks want ------------------------------------------------------------------------------------------------


def taught(task, rows, reader, tmp_path, tokenizer, **choices):
    kind = TASKS.load(task)
    examples = read_examples(kind, write_lines(tmp_path / f"{task}.jsonl", rows))
    made = kind.of(examples, reader=reader, **choices)
    scorer, note = learned_scorer(made.rows, examples, tokenizer, 0)
    return made, examples, scorer, note


def test_windows_that_hold_the_answer_are_found(tmp_path):
    task, examples, scorer, note = taught("qa", ROWS, READER, tmp_path, word_tokenizer(), length=11)
    assert note == (
        "selected(by=learned) learned from 120 training examples; in the 12 that were kept apart the window that it"
        " ranks best is wanted in 100%, that of BM25 in 0%"
    )
    for made, reads in ((task.changed(scorer=scorer), True), (task.changed(reader="selected(k=1)"), False)):
        for some in made.rows.features(examples[:20], word_tokenizer()):
            assert (some[0].target != (0, 0)) == reads


def test_questions_of_several_lengths_about_one_document_leave_windows_of_several_lengths(tmp_path):
    rows = [{**row, "question": f"{more}{row['question']}"} for row in ROWS[:40] for more in ("a a ", "")]
    _, _, scorer, note = taught("qa", rows, "selected(k=2, by=learned)", tmp_path, word_tokenizer(), length=19)
    assert "learned from 80 training examples" in note and scorer.read.isfinite().all()


def test_windows_that_speak_for_the_label_are_found(tmp_path):
    """One sentence of eight decides; other words are said more often, and BM25 takes them for the topic."""
    draw, rows = random.Random(0), []
    for _ in range(80):
        label = draw.choice(("good", "bad"))
        words = ("red", "rome") if label == "good" else ("blue", "paris")
        sentences = [f"anna {words[0]} {words[1]} ."] + [
            draw.choice(("the lamp is at", "a coin of the")) for _ in range(7)
        ]
        draw.shuffle(sentences)
        rows.append({"text": " ".join(sentences), "label": label})
    reader = "selected(length=6, k=1, by=learned)"
    task, examples, scorer, note = taught("classify", rows, reader, tmp_path, word_tokenizer(), length=6)
    assert note.endswith("that of BM25 in 0%") or int(note.split("BM25 in ")[1].rstrip("%")) < 60
    made = task.changed(scorer=scorer)
    read = [
        word_tokenizer().decode(some[0].inputs["input_ids"]) for some in made.rows.features(examples, word_tokenizer())
    ]
    assert all("anna" in row for row in read)


def test_windows_that_say_what_is_to_be_written_are_found(tmp_path):
    pytest.importorskip("rouge_score")
    draw, rows = random.Random(0), []
    for _ in range(60):
        asked, answer = draw.choice((("one", "six"), ("two", "seven"), ("three", "eight")))
        others = [name for name in ("six", "seven", "eight") if name != answer]
        parts = [
            f"{answer} nine nine nine",
            *(f"{name} nine nine nine" for name in others),
            *[f"{asked} four four ."] * 3,
        ]
        draw.shuffle(parts)
        rows.append({"document": " ".join(parts), "question": asked, "summary": f"{answer} ."})
    reader = "selected(length=8, k=1, by=learned)"
    choices = {"length": 8, "target_length": 5, "cuts_targets": True, "start": 2}
    task, examples, scorer, note = taught("summarize", rows, reader, tmp_path, digit_tokenizer(), **choices)
    assert note.endswith("ranks best is wanted in 100%, that of BM25 in 0%")
    made = task.changed(scorer=scorer)
    for example, (row,) in zip(examples, made.rows.features(examples, digit_tokenizer()), strict=True):
        assert example.target.split()[0] in digit_tokenizer().decode(row.inputs["input_ids"]).split()


def test_too_little_to_learn_from_is_refused(tmp_path):
    with refusing(DataError, "no-ranking-examples", "selected(k=1, by=learned)", "1", "19", "20"):
        taught("qa", ROWS[:19], READER, tmp_path, word_tokenizer(), length=11)
    with refusing(DataError, "no-ranking-examples", "0", "20"):
        taught("qa", ROWS, "selected(k=1, by=learned)", tmp_path, word_tokenizer(), length=64)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with quiet_transformers():
        bert = save_tiny_bert(folder / "bert", positions=64)
    data = write_lines(folder / "train.jsonl", ROWS[:TAUGHT])
    validation = write_lines(folder / "validation.jsonl", ROWS[TAUGHT:])
    values = {"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 40, "epochs": 9.0}
    where = {"task": "qa", "model": str(bert), "data": str(data), "validation": str(validation)}
    return FineTuneConfig(**where, **values, reader=READER, checkpoint_every=10)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "learned"
    train(config, folder, progress=False)
    return folder


def test_a_run_answers_what_bm25_does_not_let_it_read(run):
    record = json.loads((run / "run.json").read_text())
    assert record["decided"]["reader"] == "selected(k=1, by=learned)" and "scorer" not in record["decided"]
    assert record["result"]["scores"]["exact_match"] == 1.0
    (note,) = [note for note in record["notes"] if "by=learned" in note]
    assert "that it ranks best is wanted in 100%, that of BM25 in 0%" in note
    assert evaluate(run).scores == record["result"]["scores"]
    assert evaluate(run, reader="selected(length=11, k=1)").scores["exact_match"] < 0.2
    assert evaluate(run, reader="selected(length=15, k=2, by=learned)").reader == "selected(k=2, by=learned)"


def test_prediction_reads_what_evaluation_read(run):
    rows = [{name: row[name] for name in ("context", "question")} for row in ROWS[TAUGHT:]]
    there = [json.loads(line)["predicted_answer"] for line in (run / "predictions.jsonl").read_text().splitlines()]
    for size in (1, 5):
        assert [row["predicted_answer"] for row in predict(open_run(run), rows, batch_size=size)] == there


def test_a_run_that_is_stopped_goes_on_to_the_same_bits(run, config, tmp_path, monkeypatch):
    with at_step(20), pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run")
    monkeypatch.setattr("asterism.training.objectives.labelled.learned_scorer", None)  # it is not learned again
    train(config, tmp_path / "run", resume=True, progress=False)
    for name in (SCORER, "model.safetensors"):
        assert (tmp_path / "run" / "model" / name).read_bytes() == (run / "model" / name).read_bytes(), name


def test_a_run_without_a_scorer_is_not_asked_by_it(run, config, tmp_path, capsys):
    other = replace(config, reader="cut(length=30)", steps=1)
    train(other, tmp_path / "cut", progress=False)
    assert not (tmp_path / "cut" / "model" / SCORER).exists()
    message = (
        r"reader: selected\(by=learned\) needs a scorer learned in fine-tuning, but this run was fine-tuned with cut"
    )
    with pytest.raises(ConfigurationError, match=message):
        evaluate(tmp_path / "cut", reader="selected(by=learned)")
    assert main(["evaluate", str(tmp_path / "cut"), "--reader", "selected(by=learned)"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("asterism: error: reader: selected(by=learned) needs a scorer")
    )
    # a run that begins with the model of one that has learned learns anew
    again = replace(config, model=str(run), steps=1, seed=5)
    train(again, tmp_path / "again", progress=False)
    ours, theirs = (load_file(one / "model" / SCORER)["read"] for one in (tmp_path / "again", run))
    assert not np.array_equal(ours, theirs)


def test_a_scorer_that_is_lost_or_another_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "model" / SCORER
    save_file({"read": np.zeros(3, np.float32)}, file)
    with pytest.raises(CheckpointError, match=r"scorer\.safetensors"):
        open_run(tmp_path / "run")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"scorer\.safetensors"):
        open_run(tmp_path / "run")
