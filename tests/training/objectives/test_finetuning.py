"""Fine-tuning end to end: learning, predictions, exact resumption, the finished folder, and everything refused."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from small_encoders import QUESTIONS, REVIEWS, TAGGED, save_tiny_bert, word_tokenizer, write_lines
from stopping import at_step
from transformers import AutoConfig, RobertaConfig, pipeline

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError, NonFiniteLossError
from asterism.models import AsterismConfig, AsterismForMaskedLM
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated
from asterism.training import FineTuneConfig, evaluate, open_run, train
from asterism.training.run import picture
from asterism.training.run.folder import RunFolder
from asterism.training.run.metrics import Metric
from asterism.training.tasks.kinds.classification import CLASSIFICATION, LabelledDocument
from asterism.training.tasks.models import load_model, longest, model_shape, new_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    with quiet_transformers():
        return save_tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "classify": write_lines(folder / "reviews.jsonl", REVIEWS * 4),
        "tag": write_lines(folder / "tagged.jsonl", TAGGED * 4),
        "qa": write_lines(folder / "questions.jsonl", QUESTIONS * 4),
    }


@pytest.fixture(scope="module")
def settings(bert, files):
    def make(task, /, **changes):
        values = {"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "epochs": 5.0}
        return FineTuneConfig(**{"task": task, "model": str(bert), "data": str(files[task]), **values, **changes})

    return make


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """A finished run of each task; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    return {task: (folder / task, train(settings(task), folder / task, progress=False)) for task in REPORTED}


REPORTED = {
    "classify": {"accuracy", "macro_f1"},
    "tag": {"token_accuracy", "entity_precision", "entity_recall", "entity_f1"},
    "qa": {"exact_match", "f1"},
}


@pytest.mark.parametrize("task", REPORTED)
def test_a_task_is_learned(finished, files, task):
    folder, report = finished[task]
    assert set(report.scores) == REPORTED[task] and report.metric in report.scores
    assert report.scores[report.metric] == 1.0
    total = len(files[task].read_text().splitlines())
    assert report.training_examples + report.validation_examples == total
    assert report.validation_examples == round(total / 10)
    predictions = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(predictions) == report.validation_examples
    for prediction in predictions:
        line = int(prediction["record"].rpartition(" ")[2])
        record = json.loads(files[task].read_text().splitlines()[line - 1])
        for name in {"label", "tags"} & record.keys():
            assert prediction[f"predicted_{name}"] == record[name]
    assert json.loads((folder / "run.json").read_text())["result"] == report.as_json()
    assert not (folder / "checkpoints").exists()


def test_pipelines_read_the_finished_folders(finished):
    with quiet_transformers():
        classify = pipeline("text-classification", model=str(finished["classify"][0] / "model"))
        tag = pipeline("token-classification", model=str(finished["tag"][0] / "model"))
    assert classify("the coin is good")[0]["label"] == "good"
    assert [(one["word"], one["entity"]) for one in tag("the lamp of rome")[-1:]] == [("rome", "B-LOC")]


def test_one_of_our_own_models_learns_and_runs_in_pipelines(settings, tmp_path):
    tokenizer = word_tokenizer()
    config = AsterismConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        mixers="bigbird(block=4, window_blocks=3, random=1)",
        block="post_norm",
        initializer_range=0.2,
        type_vocab_size=2,
    )
    with isolated(0), quiet_transformers():
        AsterismForMaskedLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for task in REPORTED:
        report = train(settings(task, model=str(tmp_path / "model")), tmp_path / task, progress=False)
        assert report.scores[report.metric] > 0.9, task
    with quiet_transformers():
        classify = pipeline("text-classification", model=str(tmp_path / "classify" / "model"))
    assert classify("the coin is good")[0]["label"] == "good"
    assert AsterismConfig.from_pretrained(tmp_path / "classify" / "model").classifier_pooling == "cls"
    mean = settings("classify", model=str(tmp_path / "model"), pooling="mean")
    assert train(mean, tmp_path / "mean", progress=False).scores["accuracy"] > 0.9
    assert AsterismConfig.from_pretrained(tmp_path / "mean" / "model").classifier_pooling == "mean"
    again = settings("classify", model=str(tmp_path / "classify"), epochs=1.0)
    assert train(again, tmp_path / "again", progress=False).scores["accuracy"] == 1  # a run folder is a model, too


def test_windows_read_what_is_beyond_the_length(settings, tmp_path):
    filler = "the a of . " * 3
    moved = [
        {
            **record,
            "context": filler + record["context"],
            "answers": [{"text": one["text"], "answer_start": one["answer_start"] + len(filler)}],
        }
        for record in QUESTIONS * 4
        for one in record["answers"]
    ]
    data = write_lines(tmp_path / "q.jsonl", moved)
    cut = train(settings("qa", data=str(data), length=16), tmp_path / "cut", progress=False)
    overlapping = settings("qa", data=str(data), reader="windows(length=16, stride=4)")
    windows = train(overlapping, tmp_path / "windows", progress=False)
    assert cut.training_features == cut.training_examples and cut.scores["exact_match"] == 0
    assert cut.notes[0] == (
        "32 of 32 training answers are in no row of 16 tokens by reader cut(): a longer length, or another reader,"
        " would reach them"
    )
    assert cut.notes[1].startswith("100% of the training documents (32 of 32) are longer than 16 tokens and cut there")
    assert len(at_the_start(cut)) == 3 and len(at_the_start(windows)) == 1
    assert windows.training_features > windows.training_examples and windows.scores["exact_match"] == 1


def test_a_resumed_run_equals_one_that_was_not_stopped(settings, tmp_path):
    config = settings("classify", steps=9, checkpoint_every=4, log_every=3, gradient_accumulation_steps=2)
    whole = train(config, tmp_path / "whole", progress=False)

    with pytest.raises(KeyboardInterrupt), at_step(6):
        train(config, tmp_path / "parts", progress=False)
    resumed = train(config, tmp_path / "parts", resume=True, progress=False)
    assert resumed.scores == whole.scores and resumed.steps == whole.steps == 9
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert train(config, tmp_path / "parts", resume=True, progress=False) == resumed  # finished: only reported
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["decided"]["labels"] == ["bad", "good"]
    with refusing(ConfigurationError, "setting-changed", "seed", "1", "0"):
        train(replace(config, seed=1), tmp_path / "parts", resume=True, progress=False)


def test_what_is_asked_of_a_run_decides_it(settings, tmp_path):
    config = settings("classify", steps=2)
    one, other, scratch = (
        train(replace(config, **change), tmp_path / name, progress=False)
        for name, change in (("one", {}), ("other", {}), ("scratch", {"from_scratch": True}))
    )
    tensors = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "other", "scratch")]
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(tensors[0][name], tensors[1][name]) and one.scores == other.scores
    assert (tensors[0][name] - tensors[2][name]).abs().max() > 0.1 and scratch.steps == 2


def _reload(settings, folder, tmp_path, capsys):
    """The classifier after a step that hardly changes it, its labels, and the notes of the report."""
    tiny = settings("classify", model=str(folder), learning_rate=1e-12, steps=1, warmup_steps=0)
    report = train(tiny, tmp_path / "again")
    err = capsys.readouterr().err
    assert all(f"note: {note}\n" in err for note in report.notes)
    labels = AutoConfig.from_pretrained(tmp_path / "again" / "model").id2label
    return load_file(tmp_path / "again" / "model" / "model.safetensors"), labels, at_the_start(report)


def at_the_start(report):
    """The notes that were known before the first step."""
    return [note for note in report.notes if "answers the same" not in note]


@pytest.mark.parametrize("names", [("bad", "good"), ("good", "bad"), ("no", "yes")])
def test_a_classifier_is_kept_for_the_same_labels_only_in_their_order(names, settings, finished, tmp_path, capsys):
    folder = Path(shutil.copytree(finished["classify"][0] / "model", tmp_path / "model"))
    document = json.loads((folder / "config.json").read_text())
    document |= {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(document))
    after, labels, notes = _reload(settings, folder, tmp_path, capsys)
    before = load_file(folder / "model.safetensors")
    same = torch.allclose(after["classifier.weight"], before["classifier.weight"], atol=1e-6)
    assert torch.allclose(after["bert.pooler.dense.weight"], before["bert.pooler.dense.weight"], atol=1e-6)
    if "good" in names:
        assert same and notes == [] and labels == dict(enumerate(names))
    else:
        assert not same and labels == {0: "bad", 1: "good"}
        assert notes == [f"drawn anew, as {folder} has none that fit: classifier"]


def test_new_parts_are_named(settings, bert, tmp_path, capsys):
    notes = _reload(settings, bert, tmp_path, capsys)[2]
    assert notes == [f"drawn anew, as {bert} has none that fit: classifier, pooler"]


def test_heads_of_other_tasks_may_be_left_over(settings, finished, tmp_path):
    report = train(
        settings("qa", model=str(finished["classify"][0]), steps=1, warmup_steps=0), tmp_path / "run", progress=False
    )
    assert at_the_start(report) == [f"drawn anew, as {finished['classify'][0]} has none that fit: qa_outputs"]


def test_new_weights_are_of_float32_whatever_the_folder_has(bert, tmp_path):
    half = Path(shutil.copytree(bert, tmp_path / "half"))
    document = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps(document | {"dtype": "float16"}))
    task = CLASSIFICATION.of([LabelledDocument(None, "a", (label,), False) for label in ("good", "bad")], length=8)
    shape = model_shape(half, task.answers)
    assert new_model(shape, task.answers).dtype == torch.float32
    assert load_model(half, shape, task.answers)[0].dtype == torch.float32


def test_rotary_positions_have_no_end(settings, tmp_path):
    tokenizer = word_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4}
    for position_type in ("rotary", "learned"):
        config = AsterismConfig(
            vocab_size=len(tokenizer), mixers="dense()", position_type=position_type, type_vocab_size=2, **sizes
        )
        with isolated(0), quiet_transformers():
            AsterismForMaskedLM(config).save_pretrained(tmp_path / position_type)
        tokenizer.save_pretrained(tmp_path / position_type)
    rotary = settings("classify", model=str(tmp_path / "rotary"), length=8, steps=1)
    assert train(rotary, tmp_path / "run", progress=False).steps == 1
    with pytest.raises(ConfigurationError, match="length: got 8 tokens, but .*learned takes at most 4"):
        train(settings("classify", model=str(tmp_path / "learned"), length=8), tmp_path / "no", progress=False)


def test_a_model_that_counts_from_its_padding_but_names_none_does_not_say_its_length():
    assert longest(RobertaConfig(pad_token_id=1, max_position_embeddings=514)) == 512
    assert longest(RobertaConfig(pad_token_id=None, max_position_embeddings=514)) is None


def test_the_picture_of_a_fine_tuning_has_the_loss_and_the_score(finished, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "_draw", lambda axes, history, metric: drawn.append(metric.name))
    history = RunFolder(finished["tag"][0]).read_history()
    with matplotlib.rc_context({"text.usetex": True}):  # which needs LaTeX
        picture.draw_history(history, Metric("entity_f1", "entity f1", lower_is_better=False), tmp_path / "loss.png")
        assert matplotlib.rcParams["text.usetex"]
    assert drawn == ["loss", "entity_f1"] and any("loss" in entry for entry in history)


# --- what is asked of a finished run --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", REPORTED)
def test_a_fine_tuned_run_is_opened_and_scored(task, finished, files, tmp_path, capsys):
    folder, report = finished[task]
    run = open_run(folder)
    assert run.config.task == task and run.tokenizer.model_max_length == 32 and not run.model.training
    evaluation = evaluate(run)
    assert evaluation.scores == report.scores and evaluation.examples == report.validation_examples
    assert evaluation.is_training_corpus and evaluation.metric == report.metric
    others = write_lines(
        tmp_path / "more.jsonl", [json.loads(line) for line in files[task].read_text().splitlines()[:6]]
    )
    assert main(["evaluate", str(folder), "--data", str(others), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["examples"] == 6 and told["scores"][report.metric] == 1.0 and not told["is_training_corpus"]


def test_a_fine_tuned_run_is_resumed_without_the_model_it_began_with(settings, bert, tmp_path):
    config = settings("classify", steps=6, model=str(shutil.copytree(bert, tmp_path / "bert")))
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(3):
        train(replace(config, log_every=1), tmp_path / "parts", progress=False)
    assert evaluate(tmp_path / "parts").examples == whole.validation_examples
    shutil.rmtree(tmp_path / "bert")
    resumed = train(replace(config, log_every=1), tmp_path / "parts", resume=True, progress=False)
    assert resumed.scores == whole.scores and resumed.notes == whole.notes != []


def test_what_a_fine_tuned_run_does_not_do_is_refused(finished, tmp_path, capsys):
    folder = finished["classify"][0]
    for words, message in (
        (["generate", str(folder), "--prompt", "the"], "cannot generate; ask it with `asterism predict`"),
        (["evaluate", str(folder), "--minimum-context", "3"], "minimum context: a fine-tuned model is scored on"),
        (["evaluate", str(folder), "--split", "test"], "split: a fine-tuned model is scored on"),
        (["train", "--resume", "--folder", str(folder)], f"asterism finetune {folder} --resume"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert message in err and (out, err.count("\n")) == ("", 1)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_validation_labels_that_training_does_not_have(settings, tmp_path):
    other = write_lines(tmp_path / "v.jsonl", [{"text": "the lamp", "label": "good"}, {"text": "x", "label": "fine"}])
    with pytest.raises(DataError, match=r"v\.jsonl, line 2: field 'label' is 'fine', which is no label"):
        train(settings("classify", validation=str(other)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_too_few_examples_to_hold_some_out(settings, tmp_path):
    data = write_lines(tmp_path / "few.jsonl", REVIEWS[:4])
    with refusing(DataError, "too-few-examples", "few.jsonl", "4", "0.1"):
        train(settings("classify", data=str(data)), tmp_path / "run", progress=False)


def test_models_that_cannot_be_used(settings, bert, tmp_path):
    def refused(model, error, message, **changes):
        with pytest.raises(error, match=message) as caught:
            train(settings("classify", model=str(model), **changes), tmp_path / "run", progress=False)
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()

    def changed(name):
        return Path(shutil.copytree(bert, tmp_path / name))

    refused(tmp_path / "none", CheckpointError, "none is not the folder of a model or a run: it has neither")
    refused(bert, ConfigurationError, "length: got 64 tokens, but .* takes at most 32", length=64)

    no_tokenizer = changed("no-tokenizer")
    (no_tokenizer / "tokenizer.json").unlink()
    (no_tokenizer / "tokenizer_config.json").unlink()
    refused(no_tokenizer, CheckpointError, "no-tokenizer holds no tokenizer")

    lacking = changed("lacking")
    tensors = load_file(lacking / "model.safetensors")
    name = "bert.encoder.layer.0.output.dense.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, lacking / "model.safetensors")
    refused(lacking, CheckpointError, f"lacking lacks the encoder's tensor {name}")

    shaped = changed("shaped")
    save_file(tensors | {name: tensors[name][:, :5].contiguous()}, shaped / "model.safetensors")
    refused(shaped, CheckpointError, f"shaped has another shape of the encoder's tensor {name}")

    pickled = changed("pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(tensors, pickled / "pytorch_model.bin")
    refused(pickled, CheckpointError, r"weights only in a pickle \(pytorch_model.bin\).*asterism import --allow-pickle")

    extra = {
        name.replace("layer.0", "layer.1"): tensor.clone() for name, tensor in tensors.items() if "layer.0" in name
    }
    deeper = changed("deeper")
    save_file(tensors | extra, deeper / "model.safetensors")
    first = "encoder.layer.1.attention.output.LayerNorm.bias and 15 more"
    refused(deeper, CheckpointError, f"deeper has, and its config.json does not know, the encoder's tensor .*{first}")
    bare = {name.removeprefix("bert."): tensor for name, tensor in (tensors | extra).items() if name[:5] == "bert."}
    save_file(bare, deeper / "model.safetensors")
    refused(deeper, CheckpointError, f"does not know, the encoder's tensor .*{first}")

    damaged = changed("damaged")
    (damaged / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:200])
    refused(damaged, CheckpointError, r"model: .*damaged/model\.safetensors is damaged: ")

    wide = changed("wide")
    word_tokenizer([f"word{number}" for number in range(90)]).save_pretrained(wide)
    refused(wide, ConfigurationError, r"the tokenizer in .*wide has 95 tokens, but the model's embedding has 29 rows")


def test_code_in_a_model_folder_is_neither_run_nor_asked_about(settings, bert, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(bert, tmp_path / "coded"))
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).write_text('ran')\nOwn = object\n")
    document = json.loads((folder / "config.json").read_text())
    fields = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(document | fields))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask a person at a terminal
    with pytest.raises(CheckpointError, match=r"asks for code of its own to be run \(auto_map\), which is never done"):
        train(settings("classify", model=str(folder)), tmp_path / "run", progress=False)
    assert not ran.exists()


def test_a_pooling_that_the_model_does_not_have_is_refused(settings, tmp_path):
    with pytest.raises(ConfigurationError, match="the bert model in .* has no setting classifier_pooling"):
        train(settings("classify", pooling="mean"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_is_named_in_every_file_of_the_model(finished, tmp_path):
    folder = Path(shutil.copytree(finished["classify"][0], tmp_path / "run"))
    paths = [folder / "run.json", *sorted((folder / "model").iterdir())]
    assert {"tokenizer.json", "config.json", "model.safetensors"} < {path.name for path in paths}
    draw = random.Random(0)
    for path in paths * 3:
        before = path.read_bytes()
        bit = draw.randrange(8 * len(before))
        path.write_bytes(bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(before)))
        with pytest.raises(CheckpointError, match=path.name) as caught:
            open_run(folder)
        assert "\n" not in str(caught.value)
        path.write_bytes(before)
    open_run(folder)


def test_a_model_that_is_not_finite_is_refused(settings, bert, tmp_path):
    broken = Path(shutil.copytree(bert, tmp_path / "broken"))
    tensors = load_file(broken / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("layer.0.attention.self.key.weight"))
    tensors[name][1, 2] = float("inf")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"its weight \S*layer.0.attention.self.key.weight is not finite"):
        train(settings("classify", model=str(broken)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run(settings, tmp_path):
    with refusing(NonFiniteLossError, "loss-not-finite"):
        train(settings("classify", learning_rate=1e30), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 8, "reader": "cut(length=9)"}, r"length=8 is given twice, also by reader cut\(length=9\)"),
        ({"reader": "window(stride=4)"}, "reader: unknown reader 'window'. Did you mean 'windows'?"),
        ({"max_answer_length": 4}, "max_answer_length=4 is for task 'qa', not 'classify'"),
        ({"epochs": 0.0}, "epochs=0.0 must be positive"),
        ({"validation_fraction": 0.7}, "validation_fraction=0.7 must be above 0 and at most 0.5"),
        ({"length": 0}, "length=0 must be at least 1"),
        ({"task": "rank"}, "task='rank' must be one of: classify, tag, qa"),
        ({"pooling": "max"}, "pooling='max' must be one of: cls, mean"),
        (
            {"task": "tag", "pooling": "mean"},
            "pooling='mean' is for task 'classify' or 'multilabel' or 'promoter' or 'chromatin', not 'tag'",
        ),
    ],
)
def test_settings_that_cannot_work(settings, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        settings("classify", **changes)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_scores_and_resumes(bert, files, tmp_path, capsys):
    words = ["--task", "classify", "--model", bert, "--data", files["classify"], "--steps", "2", "--dtype", "float32"]
    folder = tmp_path / "run"
    assert main(["finetune", *map(str, words), "--folder", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 2 and 0 <= report["scores"]["accuracy"] <= 1
    assert main(["finetune", "--resume", "--folder", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"accuracy                {report['scores']['accuracy']:.4f}" in out and f"saved in {folder}" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--task classify", 2, "required: --model, --data; see --help"),
        ("--task rank --model m --data d", 2, "task='rank' must be one of: classify, tag, qa"),
        ("--task qa --model m --data d --epoch 3", 2, r"unknown flag --epoch\. Did you mean '--epochs'\?"),
        ("--task qa --model m --data d --epochs 0", 2, "epochs=0.0 must be positive"),
        ("--resume", 2, "--resume needs RUN"),
        ("--resume --folder missing", 4, "missing is not a run folder"),
        ("--task qa --model missing --data d", 4, "model: missing is not the folder of a model or a run"),
    ],
)
def test_the_command_refuses_in_one_line(words, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *words.split()]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("asterism: error: ")
    assert re.search(message, err), err


def test_an_answer_that_is_not_in_its_context_leaves_nothing(bert, tmp_path, capsys):
    wrong = {**QUESTIONS[0], "answers": [{"text": "garage", "answer_start": 0}]}
    data = write_lines(tmp_path / "q.jsonl", [*QUESTIONS, wrong])
    words = ["--task", "qa", "--model", str(bert), "--data", str(data), "--folder", str(tmp_path / "run")]
    assert main(["finetune", *words]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "q.jsonl, line 10: field 'answers' has 'garage' at character 0" in err and "nowhere" in err
    assert not (tmp_path / "run").exists()
