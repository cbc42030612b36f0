"""benchmarks/cifar.py on small made-up pictures: what is scored, and how."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from repository import ROOT, docs_page

from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.training import recipe
from asterism.training.data.corpora.splits import ArrayPieces
from asterism.training.data.corpora.windows import plan_pieces
from asterism.training.objectives.causal import bits_per_byte
from asterism.training.run.evaluator import Evaluator


@pytest.fixture
def cifar(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("cifar")


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


def test_the_page_has_the_figures_of_the_results(cifar, capsys):
    cifar.report(json.loads((ROOT / "benchmarks" / "results" / "cifar.json").read_text()))
    page = docs_page("results/pictures.md").read_text()
    first, _ = capsys.readouterr().out.split("\n\n")
    assert first in page and len(first.splitlines()) == 2 + 4
