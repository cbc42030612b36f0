"""What could end a run before its time, or leave one that nobody could go on with or ask."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from refusals import refusing
from small_encoders import REVIEWS, save_bases_model, save_tiny_bert, write_lines
from stopping import at_step

from asterism.bench.picture import draw_times
from asterism.cli import evaluate as evaluate_verb
from asterism.cli import finetune as finetune_verb
from asterism.errors import CheckpointError, DataError
from asterism.files import read_json, write_text
from asterism.training import FineTuneConfig, ModelConfig, RunConfig, evaluate, open_run, pipeline, predict, train
from asterism.training.data.corpora.bytes import load_corpus
from asterism.training.data.genomes import index
from asterism.training.data.records.formats import FORMATS
from asterism.training.data.records.record import source_of
from asterism.training.run.folder import RunFolder

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"bases": save_bases_model(folder / "bases"), "bert": save_tiny_bert(folder / "bert")}


def bases(count, positives):
    """Sequences with one column of labels, of which these have it."""
    random = np.random.default_rng(0)
    letters = ["".join(random.choice(list("ACGT"), 12)) for _ in range(count)]
    return [{"id": f"s{n}", "sequence": one, "x": int(n in positives)} for n, one in enumerate(letters)]


def settings(model, data, task="multilabel", **changes):
    short = {"batch_size": 8, "steps": 2, "evaluation_every": 1, "dtype": "float32", "warmup_steps": 1}
    return FineTuneConfig(**{"task": task, "model": str(model), "data": str(data), **short, **changes})


def test_a_sample_without_a_positive_has_no_score_and_ends_no_run(models, tmp_path):
    data = write_lines(tmp_path / "train.jsonl", bases(16, {1}))
    held = write_lines(tmp_path / "held.jsonl", bases(9, {8}))
    asked = settings(models["bases"], data, validation=str(held), evaluation_examples=4)
    report = train(asked, tmp_path / "run", progress=False)
    assert "auc" in report.scores
    history = RunFolder(tmp_path / "run").read_history()
    assert ["validation_auc" in one for one in history if one["step"] == 2] == [False, True]


def test_examples_that_can_have_no_score_are_refused_before_the_first_step(models, tmp_path):
    data = write_lines(tmp_path / "train.jsonl", bases(16, {1}))
    held = write_lines(tmp_path / "held.jsonl", bases(9, ()))
    with refusing(DataError, "no-contrast", "1", "9"):
        train(settings(models["bases"], data, validation=str(held)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / "run.json").exists()


def test_any_id_of_a_record_is_written_with_its_prediction(models, tmp_path):
    lines = [f'{json.dumps(one)[:-1]}, "id": {name}}}\n' for one in REVIEWS for name in ("NaN", '"\\ud800"', '"ä"')]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    train(settings(models["bert"], tmp_path / "in.jsonl", "classify"), tmp_path / "run", progress=False)
    written = (tmp_path / "run" / "predictions.jsonl").read_bytes().decode("utf-8").splitlines()
    ids = {line.split('"id": ')[1].split(",")[0] for line in written}
    assert ids <= {"NaN", '"\\ud800"', '"ä"'} and all(json.loads(line) for line in written)


def test_files_are_written_in_utf_8_whatever_the_locale_says(tmp_path, monkeypatch):
    monkeypatch.setattr("io.text_encoding", lambda encoding, *others: encoding or "latin-1")
    write_text(tmp_path / "x", '"\u1234"')
    assert (tmp_path / "x").read_bytes() == '"\u1234"'.encode() and read_json(tmp_path / "x") == "\u1234"


@pytest.mark.parametrize("is_finished", (False, True))
def test_a_genome_and_tables_may_move(models, tmp_path, monkeypatch, is_finished):
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    (tmp_path / "g.fa").write_text(">one\n" + "".join(random.choice(list("ACGT"), 400)) + "\n")
    starts = range(20, 360, 10)
    (tmp_path / "x.bed").write_text("".join(f"one\t{at}\t{at + 4}\ts{at}\n" for at in starts))
    write_lines(tmp_path / "t.jsonl", [{"id": f"s{at}", "x": at // 10 % 2} for at in starts])
    write_lines(tmp_path / "c.jsonl", [{"column": "x", "group": "g"}])
    places = {"genome": "g.fa", "label_table": "t.jsonl", "column_groups": "c.jsonl"}
    asked = settings(
        models["bases"],
        tmp_path / "x.bed",
        window=12,
        checkpoint_every=1,
        **{name: str(tmp_path / file) for name, file in places.items()},
    )
    run = tmp_path / "run"
    if is_finished:
        train(asked, run, progress=False)
    else:
        with at_step(1), pytest.raises(KeyboardInterrupt):
            train(asked, run)
    (tmp_path / "new").mkdir()
    for file in places.values():
        shutil.move(tmp_path / file, tmp_path / "new" / file)
    moved = replace(asked, **{name: str(tmp_path / "new" / file) for name, file in places.items()})
    train(moved, run, resume=True, progress=False)
    assert evaluate(run, progress=False).is_training_corpus
    interval = {"chromosome": "one", "start": 50, "end": 54, "strand": "+", "id": "a"}
    assert list(predict(run, [interval]))
    with (tmp_path / "new" / "t.jsonl").open("a") as file:
        file.write("\n")
    shutil.copy(tmp_path / "new" / "t.jsonl", tmp_path / "t.jsonl")
    with refusing(DataError, "data-changed"):
        train(replace(moved, label_table=str(tmp_path / "t.jsonl")), run, resume=True, progress=False)


def test_a_run_is_opened_whose_checkpoint_is_replaced_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(b"to be or not to be, that is the question\n" * 100)
    model = ModelConfig(mixers="window(left=7)", hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    config = RunConfig(model=model, data=str(tmp_path / "text"), context=16, batch_size=4, steps=3, dtype="float32")
    with at_step(1), pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run")
    checkpoints, read = tmp_path / "run" / "checkpoints", pipeline.read_shape
    (first,) = checkpoints.iterdir()

    def replaced(folder, *others):
        if folder == first:
            first.rename(checkpoints / "step-00000002")
        return read(folder, *others)

    monkeypatch.setattr(pipeline, "read_shape", replaced)
    open_run(tmp_path / "run")
    (checkpoints / "step-00000002" / "config.json").unlink()  # what is damaged is not read for ever
    with refusing(CheckpointError, "missing-file", "config.json"):
        open_run(tmp_path / "run")


def test_text_in_linked_folders_is_read(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.mkdir()
    folder.mkdir()
    for number in range(60):
        (elsewhere / f"{number}.txt").write_text(f"text {number} " * 9)
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"other {number} " * 9)
    alone = sum(load_corpus(folder).record()["bytes"].values())
    (folder / "more").symlink_to(elsewhere)
    assert sum(load_corpus(folder).record()["bytes"].values()) > 1.5 * alone


def test_labels_in_csv_may_hold_what_stands_between_labels(tmp_path):
    kind, path = FORMATS["csv"], tmp_path / "x.csv"
    for labels in (["a;b"], ["a", "b"], ["[", "a"], [], [" a"], ['["a"]'], ["a;b", "ä"]):
        path.write_text("text\nx\n")
        (record,) = kind.read(source_of(path))
        path.write_text(kind.head(record, {"labels": labels}) + kind.body(record, {"labels": labels}))
        (written,) = kind.read(source_of(path))
        assert kind.written_value(written, "labels", like=[]) == labels


def test_a_plot_of_times_has_the_format_of_its_name(tmp_path):
    pytest.importorskip("matplotlib")
    timed = {"status": "timed", "pattern": "dense()", "dtype": "float32", "contender": "x", "kind": "dense"}
    row = {**timed, "length": 64, "forward": {"seconds": 1e-3}, "forward_backward": None}
    record = {
        "rows": [row],
        "settings": {"batch": 1, "heads": 1, "head_dim": 8},
        "machine": {"processor": "x", "threads": 1},
    }
    for name, start in (("x.svg", b"<?xml"), ("x.png", b"\x89PNG")):
        draw_times(record, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_only_one_process_reads_a_genome_that_none_has_read(tmp_path, monkeypatch):
    """As those that a launcher starts at once: all wait for the first, and take what it has made."""
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "g.fa"
    path.write_text(">one\nACGT\n")
    made, kept, make = [], index._kept, index._make
    monkeypatch.setattr(index, "_make", lambda *where: made.append(make(*where)))
    index.index_of(path)
    looks = iter([None])  # what a process sees that looked before the entry was there
    monkeypatch.setattr(index, "_kept", lambda *where: next(looks, kept(*where)))
    index.index_of(path)
    assert len(made) == 1


@pytest.mark.parametrize("words", (["--dense-exchange"], ["--dense-exchange", "true"], ["--dense-exchange=true"]))
def test_a_switch_may_have_a_value_or_none_in_every_verb(words):
    """It took a value in two verbs, and none in two others."""
    options, _ = evaluate_verb._parser().options([*words, "runs/x"])
    assert options["dense_exchange"] is True and options["run"] == "runs/x"
    asked = ["--task", "classify", "--model", "m", "--data", "d"]
    *_, config = finetune_verb.read_arguments([*asked, *words, "--from-scratch", "--data", "e"])
    assert (config.dense_exchange, config.from_scratch, config.data) == (True, True, "e")
    options, _ = evaluate_verb._parser().options(["runs/x", "--dense-exchange", "false"])
    assert options["dense_exchange"] is False
