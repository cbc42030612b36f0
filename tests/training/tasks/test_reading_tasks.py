"""Fine-tuned models asked by each reader: what they say, pooled by hand; in any batches; gone on with to the byte."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusing
from small_encoders import PLACES, REVIEWS, TAGGED, THINGS, save_tiny_bert, word_tokenizer, write_lines
from small_tasks import read_questions

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, predict_file, train
from asterism.training.ask import prediction
from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.readers.reader import windows_of
from asterism.training.tasks.kinds.answering import ANSWERING
from asterism.training.tasks.kinds.tagging import TAGGING

pytestmark = pytest.mark.model

FILLER = "the a of . at the garden of paris . "
LONG = {
    "classify": [
        {"text": FILLER * (number % 4) + one["text"] + " . " + FILLER * (3 - number % 4), "label": one["label"]}
        for number, one in enumerate(REVIEWS)
    ],
    "qa": [
        {
            "context": FILLER * (number % 4) + f"the {thing} is in {place} . " + FILLER * (3 - number % 4),
            "question": f"where is the {thing}",
            "answers": [{"text": place, "answer_start": len(FILLER) * (number % 4) + len(f"the {thing} is in ")}],
        }
        for number, (thing, place) in enumerate((thing, place) for thing in THINGS for place in PLACES)
    ],
}
"""Documents of some 35 tokens; what decides stands anywhere in them."""
READERS = {
    "classify": (
        *("cut(length=16)", "windows(length=16, stride=3)", "windows(length=16, pool=max)"),
        *("selected(length=18, k=2)", "iterated(length=18, k=2)"),
    ),
    "qa": (
        *("cut(length=20)", "windows(length=20, stride=4)"),
        *("selected(length=20, k=2, stride=2)", "iterated(length=20, k=2, stride=2)"),
    ),
}
ASKED = [(task, reader) for task, readers in READERS.items() for reader in readers]
INPUTS = {"classify": ("text",), "qa": ("context", "question")}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    with quiet_transformers():
        return save_tiny_bert(tmp_path_factory.mktemp("models") / "bert", positions=64)


@pytest.fixture(scope="module")
def settings(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files = {task: write_lines(folder / f"{task}.jsonl", examples * 3) for task, examples in LONG.items()}
    files["tag"] = write_lines(folder / "tag.jsonl", TAGGED)

    def make(task, /, **changes):
        values = {"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 4, "dtype": "float32", "epochs": 2.0}
        return FineTuneConfig(**{"task": task, "model": str(bert), "data": str(files[task]), **values, **changes})

    return make


@pytest.fixture(scope="module")
def runs(settings, tmp_path_factory):
    """A run of each task that was trained on windows; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    for task in LONG:
        train(settings(task, reader=READERS[task][1]), folder / task, progress=False)
    return {task: folder / task for task in LONG}


def bare(task, examples=None):
    return [{name: one[name] for name in INPUTS[task]} for one in examples or LONG[task]]


def said(rows):
    return [{name: value for name, value in row.items() if name.startswith("predicted_")} for row in rows]


# --- rows of the tokenizer's tokens ---------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 11))
def test_windows_are_those_of_the_tokenizers_library(tokens, size, shared):
    """Of an independent hand, by which questions are windowed elsewhere."""
    if shared >= size:
        return
    encoding = word_tokenizer()("lamp " * tokens, add_special_tokens=False).encodings[0]
    encoding.truncate(size, stride=shared)
    expected = [(one.offsets[0][0] // 5, one.offsets[-1][0] // 5 + 1) for one in (encoding, *encoding.overflowing)]
    assert windows_of(tokens, size, shared) == expected


def test_rows_are_those_that_the_tokenizer_makes(tmp_path):
    """Windows of a question, its special tokens and token types, by the tokenizer itself."""
    examples = read_questions(write_lines(tmp_path / "q.jsonl", LONG["qa"]))
    tokenizer = word_tokenizer()
    for some, example in zip(
        ANSWERING.of(examples, length=14, reader="windows(stride=3)").rows.features(examples, tokenizer),
        examples,
        strict=True,
    ):
        there = tokenizer(
            *(example.question, example.context),
            **{"truncation": "only_second", "max_length": 14, "stride": 3, "return_overflowing_tokens": True},
        ).encodings
        assert [one.inputs["input_ids"].tolist() for one in some] == [row.ids for row in there]
        assert [one.inputs["token_type_ids"].tolist() for one in some] == [row.type_ids for row in there]
        for one, row in zip(some, there, strict=True):
            inside = [part == 1 for part in row.sequence_ids]
            assert one.tokens[inside].tolist() == [list(pair) for pair in np.array(row.offsets)[inside].tolist()]
            assert (one.tokens[np.logical_not(inside)] == -1).all()


def test_no_answer_reaches_over_what_was_not_read(tmp_path):
    """Two windows of three tokens with a gap between them: a span from the one into the other is none."""
    context = "the lamp is red . anna is at the garden of paris . the book"
    record = {"context": context, "question": "lamp book", "answers": [{"text": "the book", "answer_start": 51}]}
    (example,) = examples = read_questions(write_lines(tmp_path / "q.jsonl", [record]))
    task = ANSWERING.of(examples, length=11, reader="selected(k=2)")
    ((feature,),) = task.rows.features(examples, word_tokenizer())
    assert feature.row == ((0, 3), (12, 15)) and feature.target == (8, 9)
    assert [context[begin:end] for begin, end in feature.tokens[4:10]] == ["the", "lamp", "is", ".", "the", "book"]
    starts, ends = np.zeros(11), np.zeros(11)
    starts[5], ends[8] = 9.0, 8.0  # from "lamp" to "the"
    prediction = task.answers.predict(example, [feature], [(starts, ends)])
    assert prediction["answer"] == "lamp" and prediction["score"] == 9.0
    assert task.answers.found(feature, (starts, ends)) == 9.0
    ends[6] = 1.0
    assert task.answers.predict(example, [feature], [(starts, ends)])["answer"] == "lamp is"
    cut_off = [{**record, "answers": [{"text": "is red", "answer_start": 9}]}]
    ((feature,),) = task.rows.features(read_questions(write_lines(tmp_path / "c.jsonl", cut_off)), word_tokenizer())
    assert feature.target == (0, 0)


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_windows_are_pooled_as_by_hand(runs, pool):
    run = open_run(runs["classify"])
    rows = list(predict(run, bare("classify"), reader=f"windows(length=12, stride=3, pool={pool})"))
    seen = set()
    for row in rows:
        words = row["text"].split()
        windows = [" ".join(words[begin : begin + 10]) for begin in range(0, len(words) - 3, 7)]
        assert len(windows) > 3
        apart = [one["predicted_probabilities"] for one in predict(run, [{"text": text} for text in windows])]
        by_hand = {label: [one[label] for one in apart] for label in ("bad", "good")}
        pooled = {label: np.mean(one) if pool == "mean" else max(one) for label, one in by_hand.items()}
        total = sum(pooled.values())
        expected = {label: value / total for label, value in pooled.items()}
        assert row["predicted_probabilities"] == pytest.approx(expected, rel=2e-3)
        assert row["predicted_label"] == max(expected, key=expected.get)
        seen.add(row["predicted_label"])
    assert seen == {"good", "bad"}


def test_the_best_span_is_that_of_the_windows_apart(runs):
    run = open_run(runs["qa"])
    for row in predict(run, bare("qa"), reader="windows(length=16, stride=4)"):
        words, apart = row["context"].split(), []
        for begin in range(0, len(words) - 4, 5):  # nine words, as the question takes seven tokens
            (one,) = predict(run, [{"context": " ".join(words[begin : begin + 9]), "question": row["question"]}])
            apart.append((one["predicted_score"], -begin, one))
        score, begin, best = max(apart, key=lambda one: one[:2])
        assert row["predicted_score"] == pytest.approx(score, abs=2e-3)
        assert row["predicted_answer"] == best["predicted_answer"]
        assert row["predicted_answer_start"] == len(" ".join([*words[:-begin], ""])) + best["predicted_answer_start"]


@pytest.mark.parametrize("task", LONG)
def test_a_document_that_fits_is_read_whole_by_every_reader(runs, task):
    run = open_run(runs[task])
    whole = list(predict(run, bare(task), reader="whole()"))
    for reader in ("cut(length=64)", "windows(length=64, stride=8)", "selected(length=64)", "iterated(length=64, k=9)"):
        assert list(predict(run, bare(task), reader=reader)) == whole
    assert list(predict(run, bare(task), reader="cut(length=16)")) != whole


def test_what_was_found_is_read_again(runs):
    """By hand: every window by itself, the two likeliest read together in the document's order."""
    run = open_run(runs["classify"])
    for row in predict(run, bare("classify"), reader="iterated(length=18, k=2)"):
        words = row["text"].split()
        windows = [" ".join(words[begin : begin + 8]) for begin in range(0, len(words), 8)]
        apart = predict(run, [{"text": one} for one in windows], reader="whole()")
        alone = [max(one["predicted_probabilities"].values()) for one in apart]
        best = sorted(sorted(range(len(windows)), key=lambda one: (-round(alone[one], 3), one))[:2])
        (again,) = predict(run, [{"text": " ".join(windows[one] for one in best)}], reader="whole()")
        assert row["predicted_probabilities"] == pytest.approx(again["predicted_probabilities"], rel=1e-3)


@pytest.mark.parametrize(("task", "reader"), ASKED)
def test_batches_of_any_size_say_the_same(runs, task, reader):
    run = open_run(runs[task])
    first, *others = (list(predict(run, bare(task), batch_size=size, reader=reader)) for size in (1, 3, 8))
    assert len(first) == len(LONG[task])
    for other in others:
        assert other == first


@pytest.mark.parametrize(("task", "reader"), ASKED)
def test_predictions_are_gone_on_with_to_the_byte(runs, task, reader, tmp_path):
    data, whole, parts = write_lines(tmp_path / "in.jsonl", LONG[task]), tmp_path / "whole", tmp_path / "parts"
    asked = {"reader": reader, "batch_size": 1, "progress": False}
    report = predict_file(runs[task], data, output=whole, score=True, **asked)
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == 4:
            raise KeyboardInterrupt
        write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(runs[task], data, output=parts, **asked)
    before = parts.read_bytes()
    of_equal_length = re.sub(r"^\w+\((length=\d+).*", r"windows(\1, stride=1)", reader)
    with pytest.raises(CheckpointError, match=r"resume: .*parts was started with (another )?reader"):
        predict_file(runs[task], data, output=parts, resume=True, **{**asked, "reader": of_equal_length})
    assert parts.read_bytes() == before
    resumed = predict_file(runs[task], data, output=parts, resume=True, score=True, **asked)
    assert parts.read_bytes() == whole.read_bytes()
    assert (resumed.rows_before, resumed.scores) == (4, report.scores)


def test_an_answer_begins_and_ends_with_its_words(tmp_path):
    """Tokens of bytes have the space before a word, which is none of the answer."""
    context = "It is in the attic ."
    tokenizer = make_tokenizer("bpe:280", [f"{context} where"] * 9, 64)
    record = {"context": context, "question": "where", "answers": [{"text": "attic", "answer_start": 13}]}
    (example,) = examples = read_questions(write_lines(tmp_path / "q.jsonl", [record]))
    task = ANSWERING.of(examples, length=64)
    ((feature,),) = task.rows.features(examples, tokenizer)
    starts, ends = (np.zeros(len(feature.tokens), np.float32) for _ in range(2))
    starts[feature.target[0]] = ends[feature.target[1]] = 9
    assert context[feature.tokens[feature.target[0], 0]] == " "
    answer = task.answers.predict(example, [feature], [(starts, ends)])
    assert (answer["answer"], answer["answer_start"]) == ("attic", 13)


# --- training, evaluation, and the record ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("task", "reader"), [one for one in ASKED if not one[1].startswith("cut")])
def test_a_task_is_learned_by_every_reader(settings, task, reader, tmp_path):
    report = train(settings(task, reader=reader, epochs=30.0), tmp_path / "run", progress=False)
    assert report.scores[report.metric] == 1.0
    assert (report.training_features > report.training_examples) == (not reader.startswith("selected"))
    assert evaluate(tmp_path / "run").scores == report.scores
    assert evaluate(tmp_path / "run", reader="cut(length=12)").scores[report.metric] < 1


@pytest.mark.parametrize("task", LONG)
def test_the_record_says_by_which_reader(runs, task, capsys):
    reader = READERS[task][1]
    record = json.loads((runs[task] / "run.json").read_text())
    assert record["config"]["reader"] == reader and record["config"]["length"] is None
    length = int(re.search(r"length=(\d+)", reader)[1])
    assert record["decided"]["length"] == length and "length" not in record["decided"]["reader"]
    assert record["result"]["training_features"] > record["result"]["training_examples"]
    for words, expected in (
        ([], (record["decided"]["reader"], length)),
        (["--reader", "cut(length=12)"], ("cut()", 12)),
        (["--reader", "whole()"], ("whole()", 64)),
    ):
        assert main(["evaluate", str(runs[task]), *words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["reader"], told["length"]) == expected and 0 <= told["scores"][told["metric"]] <= 1


def test_a_run_is_asked_by_its_own_reader_unless_another_is_given(runs, capsys, tmp_path):
    data = write_lines(tmp_path / "in.jsonl", LONG["qa"])
    words = ["predict", str(runs["qa"]), "--data", str(data), "--output"]
    for name, more in (("own", []), ("same", ["--reader", READERS["qa"][1]]), ("other", ["--reader", "whole()"])):
        assert main([*words, str(tmp_path / name), *more]) == 0
    assert (tmp_path / "own").read_bytes() == (tmp_path / "same").read_bytes() != (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("predict {qa} --data {qa_data} --reader windows", 2, r"windows needs parentheses"),
        ("predict {qa} --data {qa_data} --reader cot()", 2, r"unknown reader 'cot'\. Did you mean 'cut'\?"),
        ("predict {qa} --data {qa_data} --reader cut(length=65)", 2, r"length: got 65 tokens, but .* takes at most 64"),
        (
            "predict {qa} --data {qa_data} --reader windows(pool=mean)",
            2,
            r"reader: windows: pool must be span for this task, got mean",
        ),
        (
            "evaluate {classify} --reader windows(pool=span)",
            2,
            r"reader: windows: pool must be mean or max for this task, got span",
        ),
        (
            "finetune --task tag --model {bert} --data {tag_data} --reader windows(stride=1)",
            2,
            r"reader: windows\(stride=1\) cannot be used for tagging; choose whole, cut$",
        ),
        (
            "finetune --task qa --model {bert} --data {qa_data} --length 12 --reader whole()",
            3,
            r"line 1: the document has \d+ tokens and a row has place for 5, and reader whole\(\) cuts nothing",
        ),
        (
            "predict {qa} --data {qa_data} --reader selected(length=11,k=5)",
            3,
            r"line 1: the text around the document takes 7 tokens, which leaves 4 of length 11, but reader "
            r"selected\(k=5\) needs 5: give a longer length",
        ),
        ("finetune --task qa --model {bert} --data {qa_data} --stride 4", 2, r"unknown flag --stride"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(runs, settings, bert, words, code, message, tmp_path, capsys):
    names = {**runs, "bert": bert, **{f"{task}_data": settings(task).data for task in ("classify", "qa", "tag")}}
    assert main([word.format(**names) for word in words.split()]) == code
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("asterism: error: ") and re.search(message, last), err


def test_a_document_too_long_to_be_read_whole_stops_behind_those_before_it(runs, tmp_path):
    rows = [*bare("classify")[:3], {"text": "the lamp " * 40}, *bare("classify")[3:]]
    answers = predict(runs["classify"], rows, reader="whole()")
    assert len([next(answers) for _ in range(3)]) == 3
    with pytest.raises(DataError, match=r"rows\[3\]: the document has 80 tokens and a row has place for 62"):
        next(answers)
    assert len(list(predict(runs["classify"], rows, reader="cut(length=64)"))) == len(rows)


def test_a_task_keeps_its_reader_as_a_value(tmp_path):
    examples = read_questions(write_lines(tmp_path / "q.jsonl", LONG["qa"][:1]))
    task = ANSWERING.of(examples, length=20, reader="windows(length=9, stride=4)")
    assert task.rows.reader == "windows(stride=4, pool=span)"
    assert ANSWERING.from_record(json.loads(json.dumps(task.record()))) == task
    with refusing(ConfigurationError, "reader-unsuitable", "selected()", "tagging"):
        TAGGING.task(length=4, labels=("a", "b"), unread="a", reader="selected()")
