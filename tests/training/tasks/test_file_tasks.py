"""Classification of files that a modality reads as 8-bit values: folders of classes, tables, starts, and refusals."""

import csv
import json
import shutil
from cProfile import Profile
from pathlib import Path

import numpy as np
import pytest
from refusals import refusing
from small_encoders import save_tiny_bert, write_lines

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.models import AsterismConfig, AsterismForSequenceClassification
from asterism.quiet import quiet_transformers
from asterism.shape import ModelConfig
from asterism.training import FineTuneConfig, RunConfig, evaluate, predict, train
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.corpora.tokenization import is_of_values, value_tokenizer
from asterism.training.objectives.labelled import Labelled
from asterism.training.tasks.kinds.file_classification import FILE_CLASSIFICATION
from asterism.training.tasks.models import load_tokenizer

pytestmark = pytest.mark.model

LENGTH = 24


def waves(kind, count, seed):
    """Noise around 128, quiet or loud: 14 to 24 values."""
    random = np.random.default_rng([seed, kind])
    for _ in range(count):
        length = int(random.integers(14, LENGTH + 1))
        yield (128 + random.integers(*((-4, 5) if kind else (-60, 61)), size=length)).astype(np.uint8)


def save_classes(folder, count, seed):
    for kind, name in enumerate(("loud", "quiet")):
        (folder / name).mkdir(parents=True)
        for number, row in enumerate(waves(kind, count, seed)):
            (folder / name / f"{number:03}.raw").write_bytes(row.tobytes())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for number, (split, count) in enumerate({"train": 60, "val": 15, "test": 10}.items()):
        save_classes(folder / split, count, number)
    (folder / ".hidden").write_text("is no clip")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The shape of a model of values, without weights."""
    folder = tmp_path_factory.mktemp("models") / "shape"
    shape(mixers="window(left=3, right=3)").save_pretrained(folder)
    return folder


def shape(**fields):
    return AsterismConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        position_type="rotary",
        initializer_gain=0.5,
        **fields,
    )


@pytest.fixture
def settings(start, data):
    def make(**changes):
        given = {"modality": "bytes()", "learning_rate": 1e-2, "warmup_steps": 5, "batch_size": 8, "dtype": "float32"}
        paths = {"model": str(start), "data": str(data), "from_scratch": True}
        return FineTuneConfig(task="classify", **{**paths, **given, **changes})

    return make


@pytest.fixture(scope="module")
def learned(start, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = FineTuneConfig(
        task="classify",
        model=str(start),
        data=str(data),
        modality="bytes()",
        from_scratch=True,
        learning_rate=1e-2,
        warmup_steps=5,
        batch_size=8,
        epochs=8.0,
        dtype="float32",
    )
    return folder, train(config, folder, progress=False)


def test_folders_of_classes_are_learned(learned, data):
    folder, report = learned
    assert (report.training_examples, report.validation_examples) == (120, 30)
    assert report.scores["accuracy"] > 0.9
    scored = evaluate(folder, data=data / "test")
    assert scored.examples == 20 and scored.scores["accuracy"] > 0.9
    assert evaluate(folder).scores == report.scores
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert rows[0]["record"] == str(data / "val" / "loud" / "000.raw")
    assert AsterismConfig.from_pretrained(folder / "model").classifier_pooling == "mean"


def test_values_are_tokens_and_padding_is_masked(settings, data):
    setup = Labelled.resolve(settings(), None)
    batch = setup.objective.batch(setup.corpus, 0)
    numbers = setup.corpus.epochs.draw(0, 8)
    for row, mask, number in zip(batch["input_ids"], batch["attention_mask"], numbers, strict=True):
        values = np.fromfile(setup.corpus.examples[number].text, dtype=np.uint8)
        assert row[: len(values)].tolist() == values.tolist() and mask.tolist() == [1] * len(values) + [0] * (
            len(row) - len(values)
        )
    cut = Labelled.resolve(settings(length=5), None)
    assert cut.objective.batch(cut.corpus, 0)["input_ids"].shape == (8, 5)
    (again,) = (Labelled.resolve(settings(), None) for _ in range(1))
    assert again.corpus.sha256 == setup.corpus.sha256


def test_what_is_in_a_folder_is_its_identity(settings, data, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    hashes = {Labelled.resolve(settings(), None).corpus.sha256}
    hashes.add(Labelled.resolve(settings(data=str(copy)), None).corpus.sha256)
    assert len(hashes) == 1
    (copy / "train" / "quiet" / "000.raw").write_bytes(b"other")
    hashes.add(Labelled.resolve(settings(data=str(copy)), None).corpus.sha256)
    (copy / "train" / "quiet" / "001.raw").rename(copy / "train" / "loud" / "x.raw")
    hashes.add(Labelled.resolve(settings(data=str(copy)), None).corpus.sha256)
    assert len(hashes) == 3
    for split in ("train", "val", "test"):  # the same bytes in the same order, under another name of a class
        (copy / split / "quiet").rename(copy / split / "silent")
    hashes.add(Labelled.resolve(settings(data=str(copy)), None).corpus.sha256)
    assert len(hashes) == 4


def test_four_times_the_files_take_four_times_the_work(settings, tmp_path):
    calls = []
    for count in (1, 100, 400):  # the first one imports
        folder = save_classes(tmp_path / str(count) / "train", count, 0).parent
        save_classes(folder / "val", 1, 1)
        with Profile() as profile:
            FILE_CLASSIFICATION.examples.read(folder, settings())
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[2] < 5 * calls[1]


def test_a_table_names_files_from_where_it_stands(learned, settings, data, tmp_path):
    folder, _ = learned
    names = [f"{kind}/{number:03}.raw" for kind in ("loud", "quiet") for number in range(5)]
    rows = [{"file": name, "label": name.split("/")[0]} for name in names]
    copy = tmp_path / "clips"
    shutil.copytree(data / "test", copy)
    lines, table = write_lines(copy / "all.jsonl", rows), copy / "all.csv"
    table.write_text("file,label\n" + "".join(f"{row['file']},{row['label']}\n" for row in rows))
    for path in (lines, table):
        read = FILE_CLASSIFICATION.examples.read(path, settings())
        assert [(one.text, one.labels) for one in read] == [(str(copy / row["file"]), (row["label"],)) for row in rows]
        assert evaluate(folder, data=path).scores["accuracy"] > 0.85
    report = train(settings(data=str(lines), epochs=1.0), tmp_path / "run", progress=False)
    assert (report.training_examples, report.validation_examples) == (9, 1)


def test_folders_and_tables_are_predicted(learned, data, tmp_path):
    folder, _ = learned
    main(["predict", str(folder), "--data", str(data / "test"), "--output", str(tmp_path / "folder.jsonl")])
    said = {row["file"]: row for row in map(json.loads, (tmp_path / "folder.jsonl").read_text().splitlines())}
    assert len(said) == 20
    assert np.mean([name.split("/")[0] == row["predicted_label"] for name, row in said.items()]) > 0.9
    names = ["quiet/001.raw", "loud/003.raw"]
    shutil.copytree(data / "test", tmp_path / "clips")
    (tmp_path / "clips" / "two.csv").write_text("file\n" + "".join(f"{name}\n" for name in names))
    main(["predict", str(folder), "--data", str(tmp_path / "clips" / "two.csv"), "--output", str(tmp_path / "o.csv")])
    with (tmp_path / "o.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["predicted_label"] for row in written] == [said[name]["predicted_label"] for name in names]
    rows = predict(folder, [{"file": str(data / "test" / names[0])}])
    assert next(rows)["predicted_label"] == written[0]["predicted_label"]


def test_a_model_of_density_is_a_start(settings, data, tmp_path):
    """Its embedding and blocks are taken over, and only what classifies is new."""
    shaped = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mixers": "window(left=8)"}
    (tmp_path / "text").write_bytes(b"".join(row.tobytes() for row in waves(1, 400, 9)))
    density = RunConfig(
        model=ModelConfig(**shaped), data=str(tmp_path / "text"), context=LENGTH, steps=2, batch_size=4, dtype="float32"
    )
    train(density, tmp_path / "density", progress=False)
    brief = {"from_scratch": False, "epochs": 0.1, "warmup_steps": 1}
    report = train(settings(model=str(tmp_path / "density"), **brief), tmp_path / "run", progress=False)
    assert report.notes[:1] == [f"drawn anew, as {tmp_path / 'density'} has none that fit: classifier, pooler"]
    with quiet_transformers():
        model = AsterismForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert model.config.mixers == "window(left=8, right=0, dilation=1)" and model.config.vocab_size == 256
    again = train(settings(model=str(tmp_path / "run"), **brief), tmp_path / "2", progress=False)
    assert not any("drawn anew" in note for note in again.notes)


def test_the_tokenizer_of_values_is_known_again(learned):
    folder, _ = learned
    tokenizer, _ = load_tokenizer(folder / "model")
    assert is_of_values(tokenizer) and is_of_values(value_tokenizer())
    assert value_tokenizer()("00 ff 7f")["input_ids"] == [0, 255, 127]


def test_starts_that_do_not_fit_are_refused(settings, tmp_path):
    with quiet_transformers():
        bert = save_tiny_bert(tmp_path / "bert")
    with refusing(ConfigurationError, "tokenizer-unwanted", "bert"):
        train(settings(model=str(bert)), tmp_path / "run", progress=False)
    small = tmp_path / "small"
    AsterismConfig(vocab_size=200, max_position_embeddings=LENGTH).save_pretrained(small)
    with refusing(ConfigurationError, "vocabulary-differs", "256", "200"):
        train(settings(model=str(small)), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"there is no folder|holds no file"),
        ({"a.raw": b"x"}, r"must hold at least two folders, one for each class"),
        ({"one/a.raw": b"x", "two/b.raw": b"y", "c": b"z"}, r"/c is outside the folders of the classes: move it"),
        (
            {"train/one/a.raw": b"x", "train/b": b"y", "val/one/c": b"z"},
            r"train/b is outside the folders of the classes",
        ),
        ({"one/a.raw": b"x", "one/b.raw": b"y"}, r"must hold at least two folders"),
        ({"train/one/a.raw": b"x", "train/two/b.raw": b"y"}, r"the validation split of .* has no file"),
        (
            {"train/one/a.raw": b"", "train/two/b.raw": b"y", "val/one/c": b"z", "val/two/d": b"z"},
            r"a\.raw holds no value",
        ),
        ({"train/one/a.raw": b"x", "b.raw": b"y"}, r"b\.raw is next to the folders train"),
    ],
)
def test_folders_that_cannot_be_used_are_refused_in_one_line(settings, tmp_path, files, message):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        train(settings(data=str(folder)), tmp_path / "run", progress=False)
    assert "\n" not in str(refused.value) and not (tmp_path / "run" / "run.json").exists()


def test_tables_that_cannot_be_used_are_refused_in_one_line(settings, tmp_path):
    for row, message in (
        (
            {"file": "none.raw", "label": "a"},
            r"x\.jsonl, line 1: field 'file' names .*none\.raw, which does not exist",
        ),
        ({"name": "none.raw", "label": "a"}, r"x\.jsonl, line 1: field 'file' is missing"),
        ({"file": 3, "label": "a"}, r"x\.jsonl, line 1: field 'file' must be text, got 3"),
    ):
        path = write_lines(tmp_path / "x.jsonl", [row])
        with pytest.raises(DataError, match=message):
            FILE_CLASSIFICATION.examples.read(path, settings())
    with refusing(ConfigurationError, "unknown-name", "modality", "'image'", " Did you mean 'images'"):
        settings(modality="image(width=3)")
    with pytest.raises(ConfigurationError, match=r"modality='bytes\(\)' is for task 'classify', not 'tag'"):
        FineTuneConfig(task="tag", model="x", data="x", modality="bytes()")


def test_pictures_and_sounds_are_values_as_their_modalities_read_them(tmp_path):
    """A class of dark pictures and one of light ones; of low tones and of noise."""
    image, soundfile = pytest.importorskip("PIL.Image"), pytest.importorskip("soundfile")
    random = np.random.default_rng(0)
    for name, level in (("dark", 20), ("light", 220)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for number in range(3):
            pixels = (level + random.integers(-9, 10, (4, 4, 3))).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
            tone = level / 255 * np.sin(np.arange(40) / 3 + number)
            soundfile.write(tmp_path / "sounds" / name / f"{number}.wav", tone, 8000)
    for folder, modality, length in (("pictures", "images(width=4, height=4)", 48), ("sounds", "audio(rate=8000)", 40)):
        task = FILE_CLASSIFICATION.task(labels=("dark", "light"), several=False, length=64, modality=modality)
        asked = FineTuneConfig(task="classify", model="x", data="x", modality=modality)
        examples = FILE_CLASSIFICATION.examples.read(tmp_path / folder, asked)
        assert len(examples) == 6
        for example, features in zip(examples, task.rows.features(examples, value_tokenizer()), strict=True):
            (feature,) = features
            values = parse_modality(modality).read_prompt(Path(example.text))
            assert feature.inputs["input_ids"].tolist() == values.tolist()
            assert len(feature.inputs["input_ids"]) == length
            assert task.rows.labels[feature.target] == Path(example.text).parent.name
