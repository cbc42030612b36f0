"""benchmarks/cifar.py on small made-up pictures: what is scored, how, and what the comparison holds equal."""

import argparse
import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from repository import ROOT, docs_page

from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.patterns import parse
from asterism.training import recipe
from asterism.training.data.corpora.splits import ArrayPieces
from asterism.training.data.corpora.windows import plan_pieces
from asterism.training.objectives.causal import bits_per_byte
from asterism.training.run.evaluator import Evaluator


@pytest.fixture
def cifar(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("cifar")


@pytest.fixture
def arguments(tmp_path):
    return argparse.Namespace(data=tmp_path / "all", folder=tmp_path / "runs", seed=3)


def write(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_the_sample_is_spread_over_classes_and_splits_share_nothing(cifar, tmp_path):
    whole, kept = tmp_path / "all", tmp_path / "runs" / "data"
    train = [f"train/{kind}/{number:04}.jpg" for kind in ("cat", "dog") for number in range(300)]
    test = [f"test/{kind}/{number:04}.jpg" for kind in ("cat", "dog") for number in range(50)]
    write(whole, train + test)
    counts = cifar._sample(whole, kept)
    assert counts == {"train": 597, "validation": 3, "test": 10} == cifar._sample(whole, kept)  # again: nothing new
    found = {path.relative_to(kept).as_posix(): path.read_text() for path in kept.rglob("*.jpg")}
    assert len(found) == 610
    assert sorted(text for name, text in found.items() if not name.startswith("test/")) == sorted(train)
    assert [name for name in sorted(found) if name.startswith("test/")] == test[::10]
    (kept / test[10]).unlink()
    cifar._sample(whole, kept)  # one that was stopped goes on
    assert (kept / test[10]).read_text() == test[10]
    with pytest.raises(SystemExit, match="train/ and test/"):
        cifar._sample(whole / "train", tmp_path / "other")


def test_files_are_copied_where_there_are_no_links(cifar, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write(tmp_path, ["a"])
    cifar._link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "a"


def test_bits_of_pictures_have_the_mean_that_the_library_gives(cifar):
    torch.manual_seed(0)
    values = np.random.default_rng(0).integers(0, 256, 3 * 48, dtype=np.uint8)
    pieces = ArrayPieces(values, np.arange(0, 145, 48, dtype=np.int64))
    model = AsterismForCausalLM(AsterismConfig(mixers="causal()", hidden_size=16, num_hidden_layers=1)).eval()
    for parameter in model.parameters():  # a new model finds all values equally likely
        torch.nn.init.normal_(parameter, std=0.3)
    config = replace(recipe("bytes-small"), context=48, record_length=48, dtype="float32")
    bits = cifar.picture_bits(model, pieces, config)
    assert len(bits) == 3 and len(set(bits)) == 3
    plan = plan_pieces(pieces, 48, 0, 0, len(pieces))
    assert np.mean(bits) == pytest.approx(bits_per_byte(model, pieces, plan, config, Evaluator()), rel=1e-6)


def test_patterns_read_what_is_said_and_models_are_of_one_size(cifar, arguments):
    place = np.arange(3072)
    read = {
        name: parse(text).allows(place[:, None], place[None], 3072, 0).sum() / 3072
        for name, text in cifar.PATTERNS.items()
    }
    assert {name: int(keys) for name, keys in read.items()} == {"strided": 110, "fixed": 110, "dense": 1536}
    sizes = set()
    for name in ("cifar-tiny", *cifar.PATTERNS):
        config = cifar.configuration(name, arguments, steps=7)
        assert (config.steps, config.minutes, config.seed, config.dtype) == (7, None, 3, "bfloat16")
        assert config.model.num_attention_heads == (16 if name == "cifar-tiny" else 6)
        with torch.device("meta"):
            model = AsterismForCausalLM(AsterismConfig(**vars(config.model) | {"max_position_embeddings": 3072}))
        sizes.add(round(sum(one.numel() for one in model.parameters()), -3))
    assert sizes == {1_842_000}
    assert cifar.configuration("dense", arguments).data == str(arguments.folder / "data")
    assert cifar.configuration("cifar-tiny", arguments).data == str(arguments.data)


def test_equal_time_is_divided_by_the_time_of_a_step(cifar, arguments, monkeypatch):
    arguments.folder.mkdir()
    (arguments.folder / "time.json").write_text('{"cifar-tiny": 0.5, "dense": 2.0}')
    arguments.minutes, arguments.compared_minutes = 10, 1
    asked = []
    monkeypatch.setattr(cifar, "train_counted", lambda config, run: asked.append(config.steps))
    for name in ("cifar-tiny", "dense"):
        with pytest.raises(FileNotFoundError):  # there is no run
            cifar._trained(name, arguments)
    assert asked == [1200, 30]


def test_the_page_has_the_figures_of_the_results(cifar, capsys):
    cifar.report(json.loads((ROOT / "benchmarks" / "results" / "cifar.json").read_text()))
    first, second, rest = capsys.readouterr().out.split("\n\n")
    page = docs_page("results/pictures.md").read_text()
    assert first in page and second in page and len(first.splitlines()) == 2 + 4
    assert rest.split(" times")[0].split()[-1] + " times as long" in page
