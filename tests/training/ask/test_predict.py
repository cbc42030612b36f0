"""Asking fine-tuned runs: the same lines with predictions behind, from Python and by the command."""

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
from asked_runs import EXAMPLES, INPUTS, bare, lines_of, stopped
from small_encoders import QUESTIONS, REVIEWS, TAGGED, write_lines
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

from asterism.cli.main import main
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, predict_file, train
from asterism.training.ask import prediction
from asterism.training.data.records.formats import FORMATS
from asterism.training.run import progress
from asterism.training.run.allocator import Heap
from asterism.training.run.progress import LogLines
from asterism.training.settings.registry import TASKS
from asterism.training.tasks.kinds.file_classification import FILE_CLASSIFICATION

pytestmark = pytest.mark.model


# --- what comes out ---------------------------------------------------------------------------------------------------


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
        result = json.loads((run / "run.json").read_text())["result"]
        assert (report.scores, report.baselines) == (result["scores"], result["baselines"])
        scored = evaluate(run, data=validation, progress=False)
        assert (scored.scores, scored.baselines) == (result["scores"], result["baselines"])


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


def test_a_model_that_answers_the_same_to_all_is_noted(runs, tmp_path):
    run, out = runs["classify"][0], tmp_path / "out.jsonl"
    rows = list(predict(run, bare("classify", REVIEWS)))
    same = [one for one in rows if one["predicted_label"] == rows[0]["predicted_label"]]
    other = next(label for label in ("good", "bad") if label != same[0]["predicted_label"])
    labelled = [{"text": one["text"], "label": same[0]["predicted_label"]} for one in same]
    data = write_lines(tmp_path / "right.jsonl", labelled)
    assert predict_file(run, data, output=out, score=True, progress=False).notes == []  # all the same, and right
    data = write_lines(tmp_path / "wrong.jsonl", [*labelled, {**labelled[0], "label": other}])
    out.unlink()
    report = predict_file(run, data, output=out, score=True, progress=False)
    (note,) = report.notes
    assert f"answers the same to all {len(same) + 1} examples" in note and f"note: {note}" in str(report)
    scored = evaluate(run, data=data, progress=False)
    assert scored.notes == [note] and f"note: {note}" in str(scored)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.unlink(), r"no baselines, which learn from .*: .*data\.jsonl"),
        (None, r"no baselines: .* has changed"),
    ],
)
def test_baselines_without_the_data_of_the_run_are_left_out_with_a_note(runs, tmp_path, change, told):
    run, validation = runs["classify"]
    config = json.loads((run / "run.json").read_text())["config"]
    data = tmp_path / "data.jsonl"
    data.write_bytes(Path(config["data"]).read_bytes())
    again = train(FineTuneConfig(**config | {"data": str(data), "steps": 1}), tmp_path / "run", progress=False)
    assert again.baselines
    change(data) if change else data.write_bytes(data.read_bytes() + data.read_bytes())
    report = predict_file(tmp_path / "run", validation, output=tmp_path / "out", score=True, progress=False)
    assert report.scores and report.baselines == {} and re.match(told, report.notes[0])
    assert "without a model" not in str(report)


def test_progress_says_what_is_going_on(runs, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(LogLines, "doing", lambda self, text: told.append(text))
    monkeypatch.setattr(prediction, "make_display", lambda enabled: LogLines())
    run, validation = runs["classify"]
    predict_file(run, validation, output=tmp_path / "out", score=True)
    assert told == ["loading the model", "predicting", "scoring, also without a model"]


def test_what_is_left_is_unknown_once_the_input_is_read():
    half, whole = (prediction._Moment(8, 4.0, read, 0, 100) for read in (50, 100))
    assert (half.fraction, str(half)) == (0.5, "8 predictions  2 per second  0:04 left")
    assert (whole.fraction, str(whole)) == (None, "8 predictions  2 per second")
    over = prediction._Moment(8, 4.0, 100, 0, 100, is_over=True)
    assert (over.fraction, str(over)) == (1.0, "8 predictions  2 per second  0:00 left")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reads_stdin_and_says_how_it_went(runs, tmp_path, monkeypatch, capsys):
    text = "text,label\nthe lamp is red,good\nthe lamp is bad,bad\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["predict", str(runs["classify"][0]), "--data", "-", "--format", "csv", "--score"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and out.startswith("text,label,predicted_label,")
    speed = r"2 predictions in 0:0\d \([\d.,]+ per second\)"
    without = r" +without a model: most frequent 0\.5000, counted words [\d.]+"
    assert re.fullmatch(speed + r"\naccuracy +[\d.]+" + without + r"\nmacro_f1 +[\d.]+\n(note: .*\n)?", err), err
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
    assert hint == f"resume with: asterism predict {words[1]} --data '{data}' --output {out} --resume"
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
