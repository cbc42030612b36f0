"""Tasks whose answers are texts: what is generated, runs from end to end, and predictions that are stopped."""

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from small_encoders import write_lines
from small_writers import digit_texts, save_tiny_bart
from stopping import at_step
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from written_runs import NAMES, TEXTS, answer_to, lines_of, pairs, write_pair

from asterism.cli.main import main
from asterism.errors import CheckpointError, DataError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, predict_file, train
from asterism.training.ask import prediction
from asterism.training.pipeline import resolve
from asterism.training.tasks.kinds.summarization import SummaryAnswers
from asterism.training.tasks.scores import texts as text_scores

pytestmark = pytest.mark.model
for package in ("rouge_score", "sacrebleu"):  # the extra `seq2seq`
    pytest.importorskip(package)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_what_a_run_leaves(finished, capsys):
    reported = {
        "summarize": {"rouge1", "rouge2", "rougeL", "rougeLsum"},
        "translate": {"bleu", "chrf"},
        "generate": {"exact_match", "token_accuracy"},
    }
    for task, (folder, report) in finished.items():
        source, target = NAMES[task]
        assert set(report.scores) == reported[task] and report.metric in report.scores
        assert all(0 <= score <= 1 for score in report.scores.values())
        said = lines_of(folder / "predictions.jsonl")
        assert len(said) == report.validation_examples == 5
        page = (folder / "report.md").read_text()
        for one in said:
            assert list(one) == ["record", target, f"predicted_{target}"]
            record = pairs(task)[int(one["record"].rpartition(" ")[2]) - 1]
            assert one[target] == record[target]
            for text in (one["record"], record[source], record[target], one[f"predicted_{target}"]):
                assert text in page
        assert f"| {report.metric} | {report.scores[report.metric]:.4f} |" in page
        found = evaluate(folder)
        assert found.scores == report.scores and found.is_training_corpus
        assert main(["evaluate", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scores"] == report.scores


def test_the_saved_model_generates_the_same_by_itself(finished):
    """A folder of transformers: its own `generate`, asked nothing, gives what the run predicts."""
    for task, (folder, _) in finished.items():
        with quiet_transformers():
            model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
            tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        source, target = NAMES[task]
        prefix = open_run(folder).objective.task.rows.source_prefix
        for row in predict(folder, [{source: text} for text in TEXTS[:6]], batch_size=1):
            inputs = tokenizer(prefix + row[source], return_tensors="pt")
            with quiet_transformers():
                (found,) = model.generate(**inputs)
            assert tokenizer.decode(found, skip_special_tokens=True) == row[f"predicted_{target}"]
    assert AutoModelForSeq2SeqLM.from_pretrained(finished["generate"][0] / "model").generation_config.min_length != 7


def test_beams_penalty_and_repetitions_decide_what_is_said(settings, tmp_path):
    """What is asked of the task is what transformers' generate is asked, and each of it changes something."""
    train(settings("generate", steps=1, learning_rate=1e-9), tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    task, seen, texts = run.objective.task, [], TEXTS[:8]
    for changes in (
        {"target_length": 9},
        {"target_length": 4},
        {"target_length": 9, "num_beams": 4},
        {"target_length": 9, "num_beams": 4, "length_penalty": -5.0},
        {"target_length": 9, "no_repeat_ngram_size": 1},
    ):
        run.objective.task = task.changed(**changes)
        asked = {{"target_length": "max_new_tokens"}.get(name, name): value for name, value in changes.items()}
        expected = []
        for text in texts:
            with quiet_transformers():
                found = run.model.generate(
                    **run.tokenizer(text, return_tensors="pt"), **{"min_length": 0, "num_beams": 1} | asked
                )
            expected.append(run.tokenizer.decode(found[0], skip_special_tokens=True))
        said = [row["predicted_output"] for row in predict(run, [{"input": text} for text in texts], batch_size=1)]
        assert said == expected, changes
        assert said not in seen, changes
        seen.append(said)


def test_a_resumed_run_equals_one_that_was_not_stopped(settings, tmp_path):
    config = settings("generate", steps=9, checkpoint_every=4, gradient_accumulation_steps=2, label_smoothing=0.1)
    config = replace(config, log_every=3)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(6):
        train(config, tmp_path / "parts", progress=False)
    resumed = train(config, tmp_path / "parts", resume=True, progress=False)
    assert resumed.scores == whole.scores and resumed.steps == whole.steps == 9
    for name in ("model/model.safetensors", "predictions.jsonl", "report.md", "model/generation_config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name


def test_slices_of_a_step_count_by_their_targets(settings, tmp_path):
    """The loss of a step is the mean over the tokens of all its targets, in however many slices it is computed."""
    losses = []
    for slices in (1, 4):
        folder = tmp_path / str(slices)
        config = settings("generate", steps=3, log_every=1, gradient_accumulation_steps=slices, learning_rate=1e-4)
        train(config, folder, progress=False)
        losses.append([entry["loss"] for entry in lines_of(folder / "history.jsonl") if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_batches_of_like_length_hold_less_padding(settings, kind):
    """Of sources and targets together, of which T5's may be cut."""
    found = {}
    for grouped in (False, True):
        setup = resolve(settings("summarize", kind, group_by_length=grouped, batch_size=4, target_length=6))
        batches = [setup.objective.batch(setup.corpus, step) for step in range(30)]
        found[grouped] = sum(int((b["attention_mask"] == 0).sum() + (b["labels"] < 0).sum()) for b in batches)
        again = setup.objective.batch(setup.corpus, 7)
        assert all(torch.equal(tensor, again[name]) for name, tensor in batches[7].items())
    task = setup.objective.task
    training = [setup.corpus._feature(number, 0, 0) for number in range(setup.corpus.training_features)]
    each = [task.rows.tokens(feature) for feature in training]
    assert each == [len(one.inputs["input_ids"]) + min(len(one.target), 6) for one in training]
    assert found[True] < 0.7 * found[False]


def test_a_run_from_scratch_keeps_the_shape_alone(settings, tmp_path):
    train(settings("generate", steps=1, from_scratch=True), tmp_path / "run", progress=False)
    train(settings("generate", steps=1), tmp_path / "other", progress=False)
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "other"))
    assert {name: one.shape for name, one in first.items()} == {name: one.shape for name, one in second.items()}
    assert (first["model.shared.weight"] - second["model.shared.weight"]).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["copy", "reverse"])
def test_copy_and_reverse_are_learned_to_the_last_text(what, tmp_path):
    """From 800 texts of up to six digits to 100% of 80 that were not seen, in two minutes on a core."""
    with quiet_transformers():
        model = save_tiny_bart(tmp_path / "bart", width=64, scale=0.02)
    texts = digit_texts(880, longest=6)
    order = {"copy": 1, "reverse": -1}[what]
    rows = [{"input": one, "output": " ".join(one.split()[::order])} for one in texts]
    config = FineTuneConfig(
        **{"task": "generate", "model": str(model), "data": str(write_lines(tmp_path / "t.jsonl", rows[80:]))},
        **{"validation": str(write_lines(tmp_path / "v.jsonl", rows[:80])), "dtype": "float32", "target_length": 10},
        **{"batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "steps": 1_500, "epochs": 999.0},
    )
    report = train(config, tmp_path / "run", progress=False)
    assert report.scores == {"exact_match": 1.0, "token_accuracy": 1.0}


# --- predictions ------------------------------------------------------------------------------------------------------


def data_of(task: str, kind: str, folder: Path) -> Path:
    """A file of more rows than a buffer of 2 x 16, without answers."""
    source, texts = NAMES[task][0], TEXTS[:40]
    if kind == "jsonl":
        return write_lines(folder / "in.jsonl", [{source: one, "id": at} for at, one in enumerate(texts)])
    if kind == "csv":
        with (folder / "in.csv").open("w", newline="") as file:
            csv.writer(file).writerows([(source, "id"), *((f"{one}\n{one}", at) for at, one in enumerate(texts))])
        return folder / "in.csv"
    (folder / "in.txt").write_text("".join(f"{one}\n" for one in texts))
    return folder / "in.txt"


@pytest.mark.parametrize(("task", "kind"), [("summarize", "csv"), ("translate", "txt"), ("generate", "jsonl")])
def test_a_stopped_prediction_goes_on_to_the_same_bytes(finished, task, kind, tmp_path, monkeypatch):
    run, data = open_run(finished[task][0]), data_of(task, kind, tmp_path)
    out = tmp_path / f"out.{kind}"
    marker = tmp_path / f"{out.name}.resume"

    def go(**more):
        return predict_file(run, data, output=out, batch_size=2, progress=False, **more)

    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    go()
    monkeypatch.undo()
    whole, record = out.read_bytes(), marker.read_bytes()
    ends = [at for at in range(len(whole)) if whole[at : at + 1] == b"\n"]
    for cut in (5, ends[-6], ends[-6] + 1, len(whole)):
        out.write_bytes(whole[:cut])
        marker.write_bytes(record)
        report = go(resume=True)
        assert out.read_bytes() == whole and report.rows == 40 and not marker.exists(), cut


@pytest.mark.slow
def test_a_killed_prediction_goes_on_to_the_same_bytes(finished, tmp_path):
    """SIGKILL, as often as it takes: what is whole stays, what is half is written again, and the file is the same."""
    texts = digit_texts(600, longest=8, seed=1)
    data, out = write_lines(tmp_path / "in.jsonl", [{"document": text} for text in texts]), tmp_path / "out.jsonl"
    words = ["predict", str(finished["summarize"][0]), "--data", str(data), "--batch-size", "4", "--output"]
    assert main([*words, str(tmp_path / "whole.jsonl")]) == 0
    whole, kills, rows = (tmp_path / "whole.jsonl").read_bytes(), 0, 0
    while not out.exists() or (tmp_path / "out.jsonl.resume").exists():
        more = ["--resume"] if out.exists() else []
        command = [sys.executable, "-m", "asterism.cli.main", *words, str(out), *more]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(0.01)
                if out.exists() and out.read_bytes().count(b"\n") >= rows + 150 and process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
            process.wait()
        assert whole.startswith(out.read_bytes())
        rows = out.read_bytes().count(b"\n")
    assert out.read_bytes() == whole and kills >= 2


def test_lines_come_out_with_a_column_behind(finished, tmp_path):
    folder, _ = finished["translate"]
    (tmp_path / "x.de").write_bytes(b"one two\r\nthree\tfour\r\n")
    (tmp_path / "x.en").write_text("two : one two\nfour : three four\n")
    said = [row["predicted_target"] for row in predict(folder, [{"source": "one two"}, {"source": "three\tfour"}])]
    predict_file(folder, tmp_path / "x.de", format="text", output=tmp_path / "out", progress=False)
    assert (tmp_path / "out").read_bytes().decode() == f"one two\t{said[0]}\r\nthree\tfour\t{said[1]}\r\n"
    pair = f"{tmp_path / 'x.de'},{tmp_path / 'x.en'}"
    report = predict_file(folder, pair, output=tmp_path / "both", score=True, progress=False)
    assert (tmp_path / "both").read_text() == (
        f"one two\ttwo : one two\t{said[0]}\nthree\tfour\tfour : three four\t{said[1]}\n"
    )
    wanted = (tmp_path / "x.en").read_text().splitlines()
    assert report.scores == text_scores.bleu_and_chrf(said, wanted)
    found = evaluate(folder, data=pair)
    assert found.scores == report.scores and found.corpus == pair and not found.is_training_corpus
    with refusing(DataError, "unsupported-format", "x.de", ".jsonl, .csv, .txt"):
        predict_file(folder, tmp_path / "x.de", output=tmp_path / "no", progress=False)


def test_scores_are_of_all_rows_also_when_some_were_there(finished, tmp_path, monkeypatch):
    folder, _ = finished["generate"]
    pair = write_pair(tmp_path, TEXTS, [answer_to(one) for one in TEXTS])
    whole = predict_file(folder, pair, output=tmp_path / "whole", score=True, batch_size=1, progress=False)
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == 7:
            raise KeyboardInterrupt
        write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(folder, pair, output=tmp_path / "out", batch_size=1, progress=False)
    begun = {"output": tmp_path / "out", "batch_size": 1, "resume": True, "progress": False}
    with pytest.raises(CheckpointError, match=r"out, line 1 was not made from row 1 of .*other\.txt"):
        (tmp_path / "other.txt").write_text("nine\n" * 48)
        predict_file(folder, tmp_path / "other.txt", **begun)
    resumed = predict_file(folder, pair, score=True, **begun)
    assert resumed.rows_before == 7 and resumed.scores == whole.scores
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_white_space_in_what_is_said_stays_in_its_line(finished, tmp_path, monkeypatch):
    """What is scored is what is written: of two lines a summary's score would be another."""
    folder, _ = finished["summarize"]
    said, wanted = "w3 w4\n\tw1 w2", "w1 w2 w3 w4 w5"
    monkeypatch.setattr(SummaryAnswers, "predict", lambda *_: {"summary": said})
    pair = write_pair(tmp_path, ["four"], [wanted])
    report = predict_file(folder, pair, output=tmp_path / "out", score=True, progress=False)
    flat = " ".join(said.split())
    assert (tmp_path / "out").read_text() == f"four\t{wanted}\t{flat}\n"
    assert report.scores == text_scores.rouge([flat], [wanted]) != text_scores.rouge([said], [wanted])
