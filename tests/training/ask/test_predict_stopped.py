"""Predictions that are stopped and gone on with after a kill, and everything refused."""

import csv
import json
import re
from pathlib import Path

import pytest
from asked_runs import EXAMPLES, bare, lines_of, stopped
from refusals import refusing
from small_encoders import REVIEWS, write_lines

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.training import FineTuneConfig, ModelConfig, RunConfig, predict, predict_file, train
from asterism.training.ask import prediction

pytestmark = pytest.mark.model


# --- going on ---------------------------------------------------------------------------------------------------------


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
    [
        ("classify", "csv"),
        ("tag", "conll"),
        ("qa", "json"),
        *(pytest.param(task, "jsonl", marks=pytest.mark.slow) for task in ("classify", "tag", "qa")),
    ],
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
    assert again.rows_before == 5 and again.rows == 16
    assert (again.scores, again.baselines, again.notes) == (whole.scores, whole.baselines, whole.notes)


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

    refused(r"resume: .*out\.jsonl was started with batch_size 1, not 3", batch_size=3)
    other = write_lines(tmp_path / "other.jsonl", [*REVIEWS[:3], {"text": "the coin"}, *REVIEWS[4:]])
    refused(r"resume: .*out\.jsonl, line 4 was not made from row 4 of .*other\.jsonl", data=other)
    short = write_lines(tmp_path / "short.jsonl", REVIEWS[:4])
    refused(r"resume: .*out\.jsonl, line 5 was not made from row 5 of .*short\.jsonl", data=short)
    refused(r"output: .*out\.jsonl exists; go on with it by --resume, or choose another name", resume=False)
    again = FineTuneConfig(
        **{"task": "classify", "model": str(run), "data": str(runs["classify"][1]), "steps": 1, "batch_size": 4},
        **{"dtype": "float32"},
    )
    train(again, tmp_path / "again", progress=False)
    refused(r"resume: .*out\.jsonl was started with another model", run=tmp_path / "again")
    (tmp_path / "out.jsonl.resume").unlink()
    refused(r"resume: .*out\.jsonl is finished, or not an output of Asterism: out\.jsonl\.resume is not next to it")
    refused(r"output: .*out\.jsonl exists; choose another name", resume=False)
    with refusing(CheckpointError, "resume-needs-output"):
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
                with refusing(CheckpointError, "output-in-use", "out.jsonl"):
                    predict_file(run, data, output=out, batch_size=1, resume=True, progress=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", meeting)
        predict_file(run, data, output=out, batch_size=1, progress=False)
    assert len(lines_of(out)) == len(REVIEWS)


# --- what is refused --------------------------------------------------------------------------------------------------


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
            r"line 2: the text around the document takes 23 tokens, which leaves 0 of length 14, but reader win",
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
    assert hints == [f"resume with: asterism {' '.join(words)} --resume"]
    mended = first.encode() + b"\n" + (b"\n" if name == "in.conll" else b"") + first.encode() + b"\n"
    (tmp_path / name).write_bytes(mended)
    assert main([*words, "--resume"]) == 0
    capsys.readouterr()
    assert len([line for line in lines_of(tmp_path / "out") if line.strip()]) == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("{run} --data none.jsonl", 3, r"data: there is no file or folder none\.jsonl"),
        ("{run} --data .", 3, r"data: \.: the name must end in one of \.jsonl, \.csv"),
        ("{run} --data -", 2, r"format: stdin needs a format, one of jsonl, csv"),
        ("{run} --data - --format conll", 2, r"format: got 'conll'; this task reads jsonl, csv"),
        ("{run} --data empty.jsonl", 3, r"data: empty\.jsonl holds no record"),
        ("{run} --data empty.csv", 3, r"data: empty\.csv holds no record"),
        (
            "{run} --data empty.jsonl --output new.csv",
            2,
            r"output: new\.csv: predictions for jsonl data are written as jsonl;",
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
    with refusing(ConfigurationError, "batch-size", "0"):
        predict(run, [], batch_size=0)
    assert list(predict(run, [])) == []


@pytest.mark.parametrize(
    ("objective", "settings", "message"),
    [
        ("causal", {}, "predicts the next token: continue a prompt with `asterism generate`"),
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
    assert (
        f"predict: a model trained with objective {objective} was not fine-tuned for a task" in err and message in err
    )
