"""Asking fine-tuned runs: the same lines with predictions behind, gone on with after a kill, and everything refused."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_encoders import QUESTIONS, REVIEWS, TAGGED, save_tiny_bert, write_lines
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, ModelConfig, RunConfig, open_run, predict, predict_file, train
from asterism.training.ask import prediction
from asterism.training.data.records.formats import FORMATS
from asterism.training.run import progress
from asterism.training.run.allocator import Heap
from asterism.training.settings.registry import TASKS
from asterism.training.tasks.kinds.file_classification import FILE_CLASSIFICATION

pytestmark = pytest.mark.model

LONG = {"text": "the lamp is red and the book of anna is in the cellar .", "label": "good"}
EXAMPLES = {"classify": [*REVIEWS * 3, LONG], "tag": TAGGED * 3, "qa": QUESTIONS * 3}
"""The validation examples of each run, of several lengths."""
INPUTS = {"classify": ("text",), "tag": ("tokens",), "qa": ("context", "question")}
ANSWERS = {"classify": "label", "tag": "tags", "qa": "answer"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each task, with the file of its validation examples; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    unanswered = {**QUESTIONS[0], "question": "where is the book", "answers": []}
    made = {}
    with quiet_transformers():
        bert = save_tiny_bert(folder / "bert")
    for task, examples in EXAMPLES.items():
        validation = write_lines(folder / f"{task}-validation.jsonl", examples)
        training = write_lines(folder / f"{task}.jsonl", [*examples, unanswered] if task == "qa" else examples)
        config = FineTuneConfig(
            **{"task": task, "model": str(bert), "data": str(training), "validation": str(validation)},
            **{"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 4, "dtype": "float32", "epochs": 2.0},
            **({"reader": "windows(length=14, stride=4)"} if task == "qa" else {}),
        )
        train(config, folder / task, progress=False)
        made[task] = folder / task, validation
    return made


def lines_of(path: Path) -> list[str]:
    return list(io.StringIO(path.read_bytes().decode(), newline="\n"))


def bare(task: str, examples: list[dict]) -> list[dict]:
    """Examples without their labels."""
    return [{name: one[name] for name in INPUTS[task]} for one in examples]


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", EXAMPLES)
def test_predictions_are_those_that_fine_tuning_wrote(runs, task, tmp_path):
    run, validation = runs[task]
    expected = [json.loads(line) for line in lines_of(run / "predictions.jsonl")]
    predict_file(run, validation, output=tmp_path / "out.jsonl", progress=False)
    written = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    assert len(written) == len(expected) == len(EXAMPLES[task])
    for row, example, there in zip(written, EXAMPLES[task], expected, strict=True):
        assert {name: row[name] for name in example} == example  # labels too are passed through
        said = {name: row[name] for name in row.keys() - example.keys()}
        assert {**said, "record": there["record"]} == there
    assert list(predict(run, bare(task, EXAMPLES[task]))) == [
        {name: row[name] for name in row if name in INPUTS[task] or name.startswith("predicted_")} for row in written
    ]


def test_the_fields_of_each_task(runs):
    (classified,) = predict(runs["classify"][0], [{"text": "the lamp is good"}])
    assert list(classified) == ["text", "predicted_label", "predicted_probabilities"]
    assert sum(classified["predicted_probabilities"].values()) == pytest.approx(1, abs=1e-3)
    likeliest = max(classified["predicted_probabilities"], key=classified["predicted_probabilities"].get)
    assert classified["predicted_label"] == likeliest
    (tagged,) = predict(open_run(runs["tag"][0]), [{"tokens": ["anna", *["of"] * 40]}])
    assert list(tagged) == ["tokens", "predicted_tags", "predicted_probabilities"]
    read = [one is not None for one in tagged["predicted_probabilities"]]
    assert read == [True] * 30 + [False] * 11 and tagged["predicted_tags"][30:] == ["O"] * 11  # 32 with [CLS] and [SEP]
    (answered,) = predict(runs["qa"][0], bare("qa", QUESTIONS[:1]))
    fields = ("answer", "answer_start", "score", "no_answer_score")
    assert list(answered) == ["context", "question", *(f"predicted_{name}" for name in fields)]


def test_pipelines_of_transformers_agree(runs):
    def saved(task, name, **more):
        with quiet_transformers():
            return pipeline(name, model=str(runs[task][0] / "model"), device="cpu", **more)

    texts = [one["text"] for one in REVIEWS]
    classify = saved("classify", "text-classification", top_k=None)
    for mine, theirs in zip(predict(runs["classify"][0], bare("classify", REVIEWS)), classify(texts), strict=True):
        scores = {one["label"]: one["score"] for one in theirs}
        assert mine["predicted_probabilities"] == pytest.approx(scores, rel=1e-3)
        assert mine["predicted_label"] == theirs[0]["label"]
    tag = saved("tag", "token-classification", ignore_labels=[])
    for mine in predict(runs["tag"][0], bare("tag", TAGGED)):
        theirs = tag(" ".join(mine["tokens"]))
        assert mine["predicted_tags"] == [one["entity"] for one in theirs]
        assert mine["predicted_probabilities"] == pytest.approx([one["score"] for one in theirs], rel=1e-3)


def test_answers_are_the_best_spans_of_the_saved_model(runs):
    """transformers has no pipeline for questions any more: its model and tokenizer, and all spans tried one by one."""
    folder = runs["qa"][0] / "model"
    with quiet_transformers():
        model = AutoModelForQuestionAnswering.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"context": "the lamp is in rome .", "question": f"where is the {thing}"} for thing in ("lamp", "coin")]
    for mine in predict(runs["qa"][0], rows):
        encoded = tokenizer(mine["question"], mine["context"], return_tensors="pt", return_offsets_mapping=True)
        parts, offsets = encoded.sequence_ids(0), encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            found = model(**encoded)
        starts, ends = found.start_logits[0].tolist(), found.end_logits[0].tolist()
        inside = [number for number, part in enumerate(parts) if part == 1]
        spans = [(starts[i] + ends[j], i, j) for i in inside for j in inside if i <= j]
        score, first, last = max(spans)
        assert mine["predicted_score"] == pytest.approx(score, abs=1e-3)
        assert mine["predicted_no_answer_score"] == pytest.approx(starts[0] + ends[0], abs=1e-3)
        if score >= starts[0] + ends[0]:
            assert mine["predicted_answer_start"] == offsets[first][0]
            assert mine["predicted_answer"] == mine["context"][offsets[first][0] : offsets[last][1]]
        else:
            assert mine["predicted_answer"] == "" and mine["predicted_answer_start"] is None


def test_several_labels_in_the_arithmetic_of_the_run(runs, tmp_path):
    examples = [{"text": one["text"], "labels": sorted({one["label"], one["text"].split()[1]})} for one in REVIEWS * 2]
    data = write_lines(tmp_path / "data.jsonl", examples)
    config = FineTuneConfig(
        **{"task": "classify", "model": str(runs["classify"][0].parent / "bert"), "data": str(data)},
        **{"validation": str(data), "learning_rate": 5e-3, "batch_size": 4, "dtype": "bfloat16", "epochs": 1.0},
    )
    report = train(config, tmp_path / "run", progress=False)
    expected = [json.loads(line) for line in lines_of(tmp_path / "run" / "predictions.jsonl")]
    found = list(predict(tmp_path / "run", examples))
    assert [{"record": there["record"], **one} for one, there in zip(found, expected, strict=True)] == [
        {**there, **example} for there, example in zip(expected, examples, strict=True)
    ]
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "labels"), *((one["text"], ";".join(one["labels"])) for one in examples)])
    whole = predict_file(tmp_path / "run", table, output=out, score=True, progress=False)
    assert whole.scores == report.scores
    rows = list(csv.DictReader(lines_of(out)))
    assert [row["predicted_labels"] for row in rows] == [";".join(one["predicted_labels"]) for one in found]
    assert {name for name in rows[0] if name.startswith("predicted_probability_")} == {
        f"predicted_probability_{label}" for label in ("bad", "good", "book", "coin", "lamp")
    }
    stopped(tmp_path / "run", table, out, rows=7)
    begun = predict_file(tmp_path / "run", table, output=out, batch_size=1, resume=True, score=True, progress=False)
    out.unlink()
    assert (
        predict_file(tmp_path / "run", table, output=out, batch_size=1, score=True, progress=False).scores
        == begun.scores
    )


def test_csv_keeps_its_rows_and_gets_columns(runs, tmp_path):
    table = tmp_path / "in.csv"
    table.write_bytes(b'\xef\xbb\xbfid,text\r\n07,"the ""red"" lamp,\r\nis good"\r\n\r\n8,the book is bad\r\n')
    predict_file(runs["classify"][0], table, output=tmp_path / "out.csv", progress=False)
    before = table.read_bytes().decode("utf-8-sig").replace("\r\n\r\n", "\r\n").split("\r\n")
    after = (tmp_path / "out.csv").read_bytes().decode().split("\r\n")
    assert after[0] == "id,text,predicted_label,predicted_probability_bad,predicted_probability_good"
    assert after[1] == before[1] and after[2].startswith(f"{before[2]},") and after[3].startswith(f"{before[3]},")
    rows = list(csv.DictReader(io.StringIO("\r\n".join(after), newline="")))
    assert [row["id"] for row in rows] == ["07", "8"] and rows[0]["text"] == 'the "red" lamp,\r\nis good'
    (first, second) = predict(runs["classify"][0], [{"text": row["text"]} for row in rows])
    assert [row["predicted_label"] for row in rows] == [first["predicted_label"], second["predicted_label"]]
    assert float(rows[0]["predicted_probability_bad"]) == first["predicted_probabilities"]["bad"]


def test_conll_gets_a_last_column(runs, tmp_path):
    columns = tmp_path / "in.conll"
    columns.write_text("-DOCSTART- -X- O O\n\nanna NNP B-PER\nof IN O\n\n\nben\tB-PER\nof\tO")
    report = predict_file(runs["tag"][0], columns, output=tmp_path / "out.conll", score=True, progress=False)
    first, second = (
        row["predicted_tags"] for row in predict(runs["tag"][0], [{"tokens": [n, "of"]} for n in ("anna", "ben")])
    )
    assert (tmp_path / "out.conll").read_text() == (
        f"-DOCSTART- -X- O O\n\nanna NNP B-PER {first[0]}\nof IN O {first[1]}\n\n"
        f"\nben\tB-PER\t{second[0]}\nof\tO\t{second[1]}\n\n"
    )
    assert (
        report.scores["token_accuracy"]
        == sum(one == other for one, other in zip([*first, *second], ["B-PER", "O"] * 2, strict=True)) / 4
    )
    columns.write_text("anna\nof\n")
    predict_file(runs["tag"][0], columns, output=tmp_path / "bare.conll", progress=False)
    assert (tmp_path / "bare.conll").read_text() == f"anna {first[0]}\nof {first[1]}\n\n"


def test_squad_comes_out_flat(runs, tmp_path):
    asked = [{"id": str(number), "question": one["question"]} for number, one in enumerate(QUESTIONS[:2])]
    document = {"data": [{"paragraphs": [{"context": QUESTIONS[0]["context"], "qas": asked}]}]}
    (tmp_path / "in.json").write_text(json.dumps(document))
    predict_file(runs["qa"][0], tmp_path / "in.json", output=tmp_path / "out.jsonl", progress=False)
    rows = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    asked = [{**one, "context": QUESTIONS[0]["context"]} for one in asked]
    assert rows == list(predict(runs["qa"][0], asked))


def test_lines_of_json_stay_as_they_were(runs, tmp_path):
    line = b'{"text" : "\\u0074he \\u0000 lamp", "price": 1.10, "other": "\\ud800", "empty": {} } \r\n'
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\n" + line[:-2])
    predict_file(runs["classify"][0], tmp_path / "in.jsonl", output=tmp_path / "out.jsonl", progress=False)
    written = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert len(written) == 2
    for one in written:
        assert one.startswith(line.rstrip()[:-2] + b', "predicted_label": "')
        assert json.loads(one)["predicted_label"] in ("good", "bad")


def test_scores_are_those_of_fine_tuning(runs, tmp_path):
    for task, (run, validation) in runs.items():
        report = predict_file(run, validation, output=tmp_path / f"{task}.jsonl", score=True, progress=False)
        assert report.scores == json.loads((run / "run.json").read_text())["result"]["scores"]


@pytest.mark.parametrize("task", EXAMPLES)
def test_the_batch_size_changes_no_digit(runs, task):
    rows = bare(task, EXAMPLES[task])
    assert list(predict(runs[task][0], rows, batch_size=1)) == list(predict(runs[task][0], rows, batch_size=7))


def test_rows_are_read_as_they_are_needed(runs):
    seen = []

    def rows():
        for number in range(10_000):
            seen.append(number)
            yield {"text": f"the lamp is {'red' if number % 2 else 'blue'}"}

    answers = predict(runs["classify"][0], rows(), batch_size=1)
    next(answers)
    assert len(seen) == 1  # one at a time: each is answered before the next is read
    answers = predict(runs["classify"][0], rows(), batch_size=2)
    next(answers)
    assert len(seen) == 1 + 2 * 16


# --- going on -------------------------------------------------------------------------------------------------------


def long_file(task: str, kind: str, folder: Path) -> Path:
    """A file of more rows than two buffers of 2 x 16."""
    path = folder / f"in.{kind}"
    examples = (EXAMPLES[task] * 5)[:75]
    if kind == "jsonl":
        return write_lines(path, examples)
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([f'{number} "the"\r\n{one["text"]}', one["label"]] for number, one in enumerate(examples))
        return path
    if kind == "json":
        asked = [{"context": one["context"], "qas": [{"question": one["question"], "answers": []}]} for one in examples]
        path.write_text(json.dumps({"data": [{"paragraphs": asked}]}))
        return path
    rows = ["".join(f"{token} X\n" for token in one["tokens"]) + "\n" for one in examples]
    path.write_text("-DOCSTART- X\n\n".join(rows))
    return path


@pytest.mark.parametrize(
    ("task", "kind"),
    [("classify", "jsonl"), ("classify", "csv"), ("tag", "conll"), ("tag", "jsonl"), ("qa", "json"), ("qa", "jsonl")],
)
def test_a_stopped_prediction_goes_on_to_the_same_bytes(runs, task, kind, tmp_path, monkeypatch):
    run, data = runs[task][0], long_file(task, kind, tmp_path)
    out = tmp_path / f"out.{kind}"

    def go(**more):
        return predict_file(run, data, output=out, batch_size=2, progress=False, **more)

    go()
    whole, marker = out.read_bytes(), tmp_path / f"{out.name}.resume"
    assert not marker.exists()
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    out.rename(tmp_path / "whole")
    go()
    monkeypatch.undo()
    record = marker.read_bytes()  # what lies beside a file that is not finished
    ends = [at for at in range(len(whole)) if whole[at : at + 1] == b"\n"]
    rows = len(ends) // 2
    cuts = {0, 1, len(whole) // 3, ends[0] + 1, ends[0] + 2, ends[rows], ends[rows] + 1, ends[-1], len(whole)}
    for cut in sorted(cuts):
        out.write_bytes(whole[:cut])
        marker.write_bytes(record)
        report = go(resume=True)
        assert out.read_bytes() == whole, f"cut at {cut:,} of {len(whole):,}"
        assert report.rows == 75 and not marker.exists()
        assert (report.rows_before == 75) == (cut == len(whole))


def test_scores_are_of_all_rows_also_when_some_were_there(runs, tmp_path):
    several = tmp_path / "in.csv"
    several.write_text("text,label\n" + "".join(f"the {one} is red,good\nthe {one} is bad,bad\n" for one in "abcdefgh"))
    run = runs["classify"][0]
    out = tmp_path / "out.csv"
    whole = predict_file(run, several, output=out, score=True, batch_size=1, progress=False)
    stopped(run, several, out, rows=5)
    again = predict_file(run, several, output=out, score=True, batch_size=1, resume=True, progress=False)
    assert again.rows_before == 5 and again.rows == 16 and again.scores == whole.scores


def stopped(run: Path, data: Path, out: Path, rows: int) -> None:
    """An output that was stopped after so many rows, with batches of one."""
    out.unlink(missing_ok=True)
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == rows:
            raise KeyboardInterrupt
        write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(run, data, output=out, batch_size=1, progress=False)


def test_going_on_with_something_else_is_refused(runs, tmp_path):
    run, data = runs["classify"][0], write_lines(tmp_path / "in.jsonl", REVIEWS)
    out = tmp_path / "out.jsonl"
    stopped(run, data, out, rows=5)
    before = out.read_bytes()

    def refused(message, error=CheckpointError, **changes):
        with pytest.raises(error, match=message) as caught:
            predict_file(
                **{"run": run, "data": data, "output": out, "batch_size": 1, "progress": False, "resume": True}
                | changes
            )
        assert "\n" not in str(caught.value) and out.read_bytes() == before

    refused(r"resume: .*out\.jsonl was begun with batch_size 1, not 3", batch_size=3)
    other = write_lines(tmp_path / "other.jsonl", [*REVIEWS[:3], {"text": "the coin"}, *REVIEWS[4:]])
    refused(r"resume: .*out\.jsonl, line 4 is not made of row 4 of .*other\.jsonl", data=other)
    short = write_lines(tmp_path / "short.jsonl", REVIEWS[:4])
    refused(r"resume: .*out\.jsonl, line 5 is not made of row 5 of .*short\.jsonl", data=short)
    refused(r"output: .*out\.jsonl exists; go on with it by --resume, or choose another name", resume=False)
    again = FineTuneConfig(
        **{"task": "classify", "model": str(run), "data": str(runs["classify"][1]), "steps": 1, "batch_size": 4},
        **{"dtype": "float32"},
    )
    train(again, tmp_path / "again", progress=False)
    refused(r"resume: .*out\.jsonl was begun with another model", run=tmp_path / "again")
    (tmp_path / "out.jsonl.resume").unlink()
    refused(r"resume: .*out\.jsonl is finished, or not ours: out\.jsonl\.resume is not beside it")
    refused(r"output: .*out\.jsonl exists; choose another name", resume=False)
    with pytest.raises(CheckpointError, match="only an output that is a file"):
        predict_file(run, data, batch_size=1, resume=True, progress=False)


def test_one_of_two_that_write_one_file_is_refused(runs, tmp_path):
    run, data = runs["classify"][0], write_lines(tmp_path / "in.jsonl", REVIEWS)
    out = tmp_path / "out.jsonl"
    write = prediction.PredictionOutput.write

    def meeting(self, *arguments):
        write(self, *arguments)
        if self.rows == 3:
            self.flush()
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(prediction.PredictionOutput, "write", write)
                with pytest.raises(CheckpointError, match=r"out\.jsonl is being written by another process"):
                    predict_file(run, data, output=out, batch_size=1, resume=True, progress=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", meeting)
        predict_file(run, data, output=out, batch_size=1, progress=False)
    assert len(lines_of(out)) == len(REVIEWS)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "name", "second", "message"),
    [
        ("classify", "in.jsonl", '{"text": "the lamp"', r"line 2: cannot be read as JSON"),
        ("classify", "in.jsonl", '["x"]', r"line 2: must be a JSON object"),
        (
            "classify",
            "in.jsonl",
            '{"txt": "x"}',
            r"line 2: field 'text' is missing; there are: txt\. Did you mean 'txt'\?",
        ),
        ("classify", "in.jsonl", '{"text": " \\t"}', r"line 2: field 'text' is empty"),
        ("classify", "in.jsonl", '{"text": "a \\ud800"}', r"line 2: field 'text' has \\ud800 at character 2, half of"),
        (
            "classify",
            "in.jsonl",
            '{"text": "a", "predicted_label": "b"}',
            r"line 2: field 'predicted_label' is there already",
        ),
        ("classify", "in.jsonl", b'{"text": "\xff"}', r"line 2: is not UTF-8 text: byte 10 of the line cannot be read"),
        ("classify", "in.csv", "the lamp,2", r"line 2: the row does not have the 1 fields of line 1"),
        ("tag", "in.jsonl", '{"tokens": []}', r"line 2: field 'tokens' is empty"),
        ("tag", "in.jsonl", '{"tokens": ["\\udfff"]}', r"line 2: field 'tokens' has \\udfff at character 0"),
        ("tag", "in.conll", "\nanna B-PER\nof", r"line 4: field 'tags' is missing: the line is 'of' alone"),
        (
            "qa",
            "in.jsonl",
            json.dumps({"context": "x", "question": "where is the lamp " * 5}),
            r"line 2: what stands around the document has 23 tokens and leaves 0 of length 14 for it, where reader win",
        ),
    ],
)
def test_a_line_that_cannot_be_used_stops_behind_those_before_it(runs, task, name, second, message, tmp_path, capsys):
    first = {"in.csv": "text", "in.conll": "anna O"}.get(name) or json.dumps(bare(task, EXAMPLES[task])[0])
    content = first.encode() + b"\n" + (second if isinstance(second, bytes) else second.encode()) + b"\n"
    (tmp_path / name).write_bytes(content)
    words = ["predict", str(runs[task][0]), "--data", str(tmp_path / name), "--output", str(tmp_path / "out")]
    assert main(words) == 3
    *hints, last = capsys.readouterr().err.splitlines()
    assert re.search(message, last) and last.startswith("asterism: error: ") and str(tmp_path / name) in last
    if name == "in.csv":
        assert not (tmp_path / "out").exists() and hints == []
        return
    assert (tmp_path / "out").read_bytes().startswith(first.rstrip("}").encode())
    assert hints == [f"go on with: asterism {' '.join(words)} --resume"]
    mended = first.encode() + b"\n" + (b"\n" if name == "in.conll" else b"") + first.encode() + b"\n"
    (tmp_path / name).write_bytes(mended)
    assert main([*words, "--resume"]) == 0
    capsys.readouterr()
    assert len([line for line in lines_of(tmp_path / "out") if line.strip()]) == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("{run} --data none.jsonl", 3, r"data: there is no file or folder none\.jsonl"),
        ("{run} --data .", 3, r"data: \. must be a file of one of the kinds \.jsonl, \.csv, by its name"),
        ("{run} --data -", 2, r"format: what stdin holds must be said, one of: jsonl, csv"),
        ("{run} --data - --format conll", 2, r"format: 'conll' was asked for; this task reads jsonl, csv"),
        ("{run} --data empty.jsonl", 3, r"data: empty\.jsonl holds no record"),
        ("{run} --data empty.csv", 3, r"data: empty\.csv holds no record"),
        (
            "{run} --data empty.jsonl --output new.csv",
            2,
            r"output: new\.csv: data of format jsonl come out as jsonl; let",
        ),
        ("{run} --data empty.jsonl --output empty.csv", 4, r"output: empty\.csv exists; choose another name"),
        ("{run} --data empty.jsonl --output no/out", 3, r"data: empty\.jsonl holds no record"),
        ("{run} --data one.jsonl --output no/out", 4, r"no/out cannot be written: No such file or directory"),
        ("{run} --data one.jsonl --resume", 2, r"--resume needs --output"),
        ("{run} --data one.jsonl --json", 2, r"--json needs --output"),
        ("{run} --data one.jsonl --batch-size 0", 2, r"must be a whole number of at least 1"),
        ("{run} --data one.jsonl --score", 3, r"one\.jsonl, line 1: field 'label' is missing"),
        ("{run}", 2, r"required: --data"),
        ("none --data one.jsonl", 4, r"none is not a run folder"),
    ],
)
def test_the_command_refuses_in_one_line(runs, words, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("\n \n")
    Path("empty.csv").write_text("text\n")
    Path("one.jsonl").write_text('{"text": "the lamp"}\n')
    assert main(["predict", *words.format(run=runs["classify"][0]).split()]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err


def test_rows_that_python_gives_are_refused_by_their_number(runs):
    run = runs["classify"][0]
    for row, message in (
        ({"txt": "a"}, r"rows\[1\]: field 'text' is missing; there are: txt"),
        ("a", r"rows\[1\]: must be a mapping of fields, such as a dict, got str"),
        ({"text": {1, 2}}, r"rows\[1\]: field 'text' must be text, got "),
        ({"text": "a", "predicted_probabilities": 1}, r"rows\[1\]: field 'predicted_probabilities' is there already"),
    ):
        answers = predict(run, [{"text": "the lamp"}, row])
        assert next(answers)["predicted_label"] in ("good", "bad")
        with pytest.raises(DataError, match=message):
            next(answers)
    with pytest.raises(ConfigurationError, match="batch size 0"):
        predict(run, [], batch_size=0)
    assert list(predict(run, [])) == []


@pytest.mark.parametrize(
    ("objective", "settings", "message"),
    [
        ("causal", {}, "predicts the next byte: continue a prompt with `asterism generate`"),
        (
            "mlm",
            {"tokenizer": "bpe:300"},
            "score it with `asterism evaluate`, teach it a task with `asterism finetune`",
        ),
    ],
)
def test_a_run_that_has_learned_no_task_says_what_to_do_with_it(objective, settings, message, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the lamp of number {number} is in the cellar .\n" for number in range(2_000)))
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    mixers = "causal()" if objective == "causal" else "dense()"
    config = RunConfig(
        **{"objective": objective, "data": str(text), "model": ModelConfig(mixers=mixers, **shape), **settings},
        **{"context": 32, "batch_size": 2, "steps": 1, "dtype": "float32"},
    )
    train(config, tmp_path / "run", progress=False)
    data = write_lines(tmp_path / "in.jsonl", REVIEWS)
    assert main(["predict", str(tmp_path / "run"), "--data", str(data)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"predict: a model trained with objective {objective} has learned no task" in err and message in err


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_reads_stdin_and_says_how_it_went(runs, tmp_path, monkeypatch, capsys):
    text = "text,label\nthe lamp is red,good\nthe lamp is bad,bad\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["predict", str(runs["classify"][0]), "--data", "-", "--format", "csv", "--score"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and out.startswith("text,label,predicted_label,")
    speed = r"2 predictions in 0:0\d \([\d.,]+ per second\)"
    assert re.fullmatch(speed + r"\naccuracy +[\d.]+\nmacro_f1 +[\d.]+\n", err), err
    data = write_lines(tmp_path / "in.jsonl", bare("classify", REVIEWS))
    words = ["predict", str(runs["classify"][0]), "--data", str(data), "--output", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"] == len(REVIEWS) and report["output"] == str(tmp_path / "out") and report["scores"] is None


def test_progress_is_shown_of_files_and_of_streams(runs, tmp_path, monkeypatch, capsys):
    data = write_lines(tmp_path / "in.jsonl", REVIEWS)
    words = ["predict", str(runs["classify"][0]), "--batch-size", "1", "--output", str(tmp_path / "out"), "--data"]
    assert main([*words, str(data)]) == 0
    first, *_, last, report = capsys.readouterr().err.splitlines()
    assert re.match(r" +\d+\.\d%  1 prediction  [\d.,]+ per second  0:\d\d left$", first), first
    assert re.match(r"100\.0%  12 predictions  [\d.,]+ per second  0:00 left$", last), last
    assert report.startswith("12 predictions in 0:0")
    (tmp_path / "out").unlink()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.read_bytes())))
    assert main([*words, "-", "--format", "jsonl"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.match(r"1 prediction  [\d.,]+ per second$", first), first
    bar = progress.Bar()
    for size in (None, 20):
        bar.show(prediction._Moment(5, 1.0, 10, 0, size))
    bar.close()
    assert re.search(r" 50% +5 predictions  5 per second", capsys.readouterr().err)


def test_an_interrupt_says_how_to_go_on(runs, tmp_path, capsys, monkeypatch):
    data, out = write_lines(tmp_path / "my in.jsonl", REVIEWS), tmp_path / "out.jsonl"
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == 4:
            raise KeyboardInterrupt
        write(self, *arguments)

    words = ["predict", str(runs["classify"][0]), "--data", str(data), "--output", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        assert main(words) == 130
    assert len(lines_of(out)) == 4
    hint, last = capsys.readouterr().err.splitlines()
    assert hint == f"go on with: asterism predict {words[1]} --data '{data}' --output {out} --resume"
    assert last == "asterism: interrupted"
    assert main([*words, "--resume"]) == 0
    assert "8 predictions in" in (err := capsys.readouterr().err) and "4 were there before" in err
    assert len(lines_of(out)) == len(REVIEWS)


def test_a_reader_that_goes_away_ends_it_quietly(runs, tmp_path):
    data = write_lines(tmp_path / "in.jsonl", [{"text": "the lamp", "more": "x" * 2_000}] * 500)
    asterism = f"{sys.executable} -m asterism.cli.main predict {runs['classify'][0]} --data {data}"
    command = f"{asterism} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ, check=True)
    line, status = done.stdout.splitlines()
    assert json.loads(line)["predicted_label"] in ("good", "bad") and status == "1"
    assert not re.search("(?i)error|traceback|broken", done.stderr), done.stderr


@pytest.mark.slow
def test_a_long_line_is_a_line(runs, tmp_path):
    data = write_lines(tmp_path / "in.jsonl", [{"text": "the lamp is red . " * 600_000}, {"text": "the lamp is red ."}])
    predict_file(runs["classify"][0], data, output=tmp_path / "out.jsonl", progress=False)
    assert [len(line) > 10_000_000 for line in lines_of(tmp_path / "out.jsonl")] == [True, False]


def test_every_format_is_read_by_some_task():
    kinds = [FILE_CLASSIFICATION, *(TASKS.load(task) for task in TASKS)]
    assert {name for kind in kinds for name in kind.examples.formats} == set(FORMATS)


def test_the_heap_is_tidied_between_batches(runs, monkeypatch):
    tidied = []
    monkeypatch.setattr(Heap, "tidy", lambda heap: tidied.append(heap))
    assert len(list(predict(runs["classify"][0], bare("classify", EXAMPLES["classify"])))) > 4  # the size of batches
    assert len(tidied) == -(-len(EXAMPLES["classify"]) // 4) and len(set(tidied)) == 1
