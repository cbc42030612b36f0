"""Files that a model makes: what is given and what is drawn, of which class, in which order, and every refusal."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.cli.main import main
from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.training.ask.generation import AT_ONCE, Wanted, generate_file
from asterism.training.data.corpora import modality as modalities
from asterism.training.data.corpora.bytes import Bytes, ByteSplits
from asterism.training.data.corpora.splits import ArrayPieces, Split
from asterism.training.pipeline import generate, open_run, train
from asterism.training.settings.configuration import ModelConfig, RunConfig
from asterism.training.settings.sampling import Sampling

pytestmark = pytest.mark.model

SIZE = 16
MODEL = ModelConfig(mixers="causal()", hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
TINY = RunConfig(
    model=MODEL,
    context=SIZE,
    batch_size=4,
    steps=3,
    warmup_steps=1,
    dtype="float32",
    evaluation_every=10,
    checkpoint_every=10,
)


class Kinds(Bytes):
    """Records whose first value is their class: what class-conditional models read."""

    name, outputs = "kinds", (".raw",)

    def __init__(self, classes: int) -> None:
        super().__init__(SIZE)
        self.classes = classes

    def splits(self, path: str | None) -> "KindSplits":
        return KindSplits(**vars(super().splits(path)))


class KindSplits(ByteSplits):
    def pieces(self, split: Split) -> ArrayPieces:
        pieces = super().pieces(split)
        pieces.labels = pieces.values[::SIZE].astype(np.int64)
        return pieces

    def record(self):
        return {**super().record(), "classes": ["ant", "bee", "cat"]}


@pytest.fixture(scope="module", autouse=True)
def known():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(modalities.VOCABULARY, "kinds", f"{__name__}:Kinds")
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of one of three classes, which is their first value, and then what counts up from a random value."""
    random = np.random.default_rng(0)
    rows = (random.integers(0, 200, (300, 1)) + np.arange(SIZE)).astype(np.uint8)
    rows[:, 0] = np.arange(300) % 3
    path = tmp_path_factory.mktemp("data") / "records.raw"
    path.write_bytes(rows.tobytes())
    return path


def trained(config: RunConfig, folder: Path) -> Path:
    train(config, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def records(data, tmp_path_factory):
    config = replace(TINY, data=str(data), modality=f"bytes(record_length={SIZE})")
    return trained(config, tmp_path_factory.mktemp("runs") / "records")


@pytest.fixture(scope="module")
def kinds(data, tmp_path_factory):
    config = replace(TINY, data=str(data), modality="kinds(classes=3)", steps=60, learning_rate=1e-2)
    return trained(config, tmp_path_factory.mktemp("runs") / "kinds")


@pytest.fixture(scope="module")
def stream(data, tmp_path_factory):
    return trained(replace(TINY, data=str(data)), tmp_path_factory.mktemp("runs") / "stream")


def read(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, SIZE)


def test_what_cannot_be_written_is_refused_before_any_work(records, tmp_path, monkeypatch):
    """It was drawn first, which may take hours; a pipe was replaced by a file."""
    monkeypatch.setattr("asterism.training.ask.generation._drawn", lambda *_: pytest.fail("values were drawn"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "full").write_bytes(b"x")
    for name, message in (
        ("pipe", "pipe exists; choose another name"),
        ("link", "link exists; choose another name"),
        ("full", "full exists; choose another name"),
        ("none/new", "none is no folder; name a file in a folder that you can write to"),
        ("full/new", "full is no folder; name a file in a folder that you can write to"),
    ):
        with pytest.raises(CheckpointError, match=message):
            generate_file(records, tmp_path / name, Wanted(), progress=False)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()


def test_new_sequences_are_whole_and_a_function_of_the_seed(records, tmp_path):
    report = generate_file(records, tmp_path / "a", Wanted(count=2 * AT_ONCE), Sampling(seed=1), progress=False)
    rows = read(tmp_path / "a")
    assert len(rows) == report.sequences == 2 * AT_ONCE and report.values == rows.size
    assert report.files == (str(tmp_path / "a"),) and report.is_training_corpus is None
    generate_file(records, tmp_path / "b", Wanted(count=2 * AT_ONCE), Sampling(seed=1), progress=False)
    generate_file(records, tmp_path / "c", Wanted(count=2 * AT_ONCE), Sampling(seed=2), progress=False)
    assert (read(tmp_path / "b") == rows).all() and (read(tmp_path / "c") != rows).any()
    assert len(np.unique(rows, axis=0)) == len(rows), "each sequence is drawn anew"


def test_a_record_begins_behind_a_zero_and_a_stream_goes_on(records, stream, tmp_path):
    """Beside the model asked directly: greedy, so that nothing is drawn."""
    (tmp_path / "prompt").write_bytes(bytes(range(40, 50)))
    for folder, first in ((records, [0]), (stream, [])):
        output = tmp_path / folder.name
        generate_file(folder, output, Wanted(prompt=str(tmp_path / "prompt")), Sampling(temperature=0), progress=False)
        start = torch.tensor([[*first, *range(40, 50)]])
        expected = open_run(folder).model.generate(start, max_new_tokens=6, do_sample=False)
        assert output.read_bytes() == bytes(expected[0, len(first) :].tolist())


def test_completions_stand_behind_their_originals(records, data, tmp_path):
    report = generate_file(records, tmp_path / "sheet", Wanted(complete=4, keep=0.25, count=2), progress=False)
    rows = read(tmp_path / "sheet").reshape(4, 3, SIZE)
    held_out = read(data)[285:]
    assert (rows[:, 0] == held_out[[0, 4, 9, 14]]).all()
    assert (rows[:, 1:, :4] == rows[:, :1, :4]).all() and (rows[:, 1] != rows[:, 2]).any()
    assert report.values == 8 * 12 and report.is_training_corpus is True


def test_completions_of_other_data_say_so(records, data, tmp_path):
    other = tmp_path / "other.raw"
    other.write_bytes(data.read_bytes()[: 200 * SIZE])
    report = generate_file(records, tmp_path / "sheet", Wanted(complete=1, data=str(other)), progress=False)
    assert report.is_training_corpus is False and "not those that the run was trained on" in str(report)
    assert report.values == SIZE // 2


def test_classes_by_number_and_name(kinds, tmp_path):
    """The model has learned that the first value is the class."""
    draws = Sampling(temperature=0)
    generate_file(kinds, tmp_path / "a.raw", Wanted(labels=["2", "ant"], count=2), draws, progress=False)
    assert read(tmp_path / "a.raw")[:, 0].tolist() == [2, 2, 0, 0]
    generate_file(kinds, tmp_path / "b.raw", Wanted(count=5), draws, progress=False)
    assert read(tmp_path / "b.raw")[:, 0].tolist() == [0, 1, 2, 0, 1]
    generate_file(kinds, tmp_path / "c.raw", Wanted(complete=5, keep=0.0), draws, progress=False)
    rows = read(tmp_path / "c.raw").reshape(5, 2, SIZE)[:, :, 0]
    assert (rows[:, 0] == rows[:, 1]).all() and len(set(rows[:, 0])) > 1


def test_what_stands_for_a_class_is_never_drawn(kinds):
    opened = open_run(kinds)
    with torch.no_grad():
        opened.model.lm_head.bias = torch.nn.Parameter(torch.zeros(259).index_fill_(0, torch.tensor([256, 257]), 1e4))
    drawn = opened.objective.continued(opened.model, torch.tensor([[256]]), Sampling().arguments(SIZE))
    assert drawn.shape == (1, SIZE) and int(drawn.max()) < 256


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"length": 5}, "length=5: a sequence of .* has 16 bytes, and is always generated whole"),
        ({"complete": 99}, r"complete=99: the test split of .*records\.raw has 15 pieces"),
        ({"labels": ["1"]}, "labels: the model of .* has no classes"),
        ({"prompt": "RECORD"}, "got 16 bytes, but the context of the run is 16: lower keep"),
        ({"prompt": "LONG", "keep": 0.9}, "keep less|has no position|positions"),
        ({"prompt": "missing"}, "prompt: cannot read missing"),
    ],
)
def test_refusals_of_a_run(records, data, tmp_path, wanted, message):
    (tmp_path / "record").write_bytes(bytes(SIZE))
    (tmp_path / "long").write_bytes(bytes(5 * SIZE))
    named = {"RECORD": str(tmp_path / "record"), "LONG": str(tmp_path / "long")}
    wanted = {name: named.get(value, value) if isinstance(value, str) else value for name, value in wanted.items()}
    with pytest.raises(AsterismError, match=message) as caught:
        generate_file(records, tmp_path / "output", Wanted(**wanted), progress=False)
    assert "\n" not in str(caught.value) and not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"labels": ["3"]}, "unknown label '3': numbers are 0 to 2, names are ant, bee, cat"),
        ({"labels": ["bea"]}, "Did you mean 'bee'"),
        ({"complete": 2, "labels": ["0", "1"]}, "at most one label, for all pieces"),
        ({"prompt": "x"}, "give the class of the prompt"),
    ],
)
def test_refusals_of_classes(kinds, tmp_path, monkeypatch, wanted, message):
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(b"abc")
    with pytest.raises(ConfigurationError, match=message):
        generate_file(kinds, tmp_path / "output.raw", Wanted(**wanted), progress=False)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"count": 0}, "count=0 must be at least 1"),
        ({"keep": 1.5, "prompt": "x"}, "keep=1.5 must be from 0 to 1"),
        ({"keep": 0.5}, "keep needs prompt or complete"),
        ({"prompt": "x", "complete": 1}, "both prompt and complete"),
        ({"data": "x"}, "data needs complete"),
    ],
)
def test_refusals_of_what_is_wanted(wanted, message):
    with pytest.raises(ConfigurationError, match=message):
        Wanted(**wanted)


def test_outputs_are_refused_before_any_work(kinds, tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.training.ask.generation._drawn", lambda *_: pytest.fail("drew"))
    (tmp_path / "there.raw").write_bytes(b"1")
    with refusing(CheckpointError, "output-exists", "there.raw"):
        generate_file(kinds, tmp_path / "there.raw", Wanted())
    with refusing(ConfigurationError, "output-suffix", "a.txt", "bytes", ".raw"):
        generate_file(kinds, tmp_path / "a.txt", Wanted())
    with refusing(ConfigurationError, "output-missing", ".raw"):
        generate(kinds, b"", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.raw"]


def test_the_verb_writes_reports_and_says_how_far_it_is(records, tmp_path, capsys):
    output = tmp_path / "made"
    assert main(["generate", str(records), "--output", str(output), "--count", "2"]) == 0
    seen = capsys.readouterr()
    assert seen.out.splitlines()[-1] == f"saved in {output}" and "32 bytes of 2 sequences" in seen.out
    assert "100.0%  32 of 32 bytes" in seen.err
    command = ["generate", str(records), "--output", str(tmp_path / "again"), "--count", "2", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sequences"] == 2 and report["files"] == [str(tmp_path / "again")]
    assert output.read_bytes() == (tmp_path / "again").read_bytes()


@pytest.mark.parametrize("flag", ["--complete 3", "--keep 0.5", "--count 2", "--label a", "--data x"])
def test_flags_of_files_need_an_output(flag, capsys):
    assert main(["generate", "run", "--prompt", "x", *flag.split()]) == 2
    assert f"{flag.split()[0]} needs --output" in capsys.readouterr().err
