"""Experiments that compare patterns on text, recall, pictures and genomes: equal cost, and what figures decide."""

import io
import tarfile
from functools import partial

import numpy as np
import pytest
from genome_files import fasta, random_genome, write
from PIL import Image
from refusals import refusing

from asterism.errors import DataError
from asterism.reproduce.data.pictures import unpack_pictures
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import factorised, frontier, genomics, language, long_documents
from asterism.search.budget import keys_read
from asterism.training.data.genomes import index, regions


def results(figures, default, names):
    """What every trial of these names found: `default`, or its own figures."""
    return Results([{"trial": name, "seed": 0, "figures": {**default, **figures.get(name, {})}} for name in names])


def held(findings):
    return [finding.holds for finding in findings]


# --- language and the frontier ----------------------------------------------------------------------------------------


def test_patterns_of_a_width_read_about_as_many_keys():
    for width in language.WIDTHS:
        keys = {kind: language._keys(language._mixers(kind, width)) for kind in language.KINDS}
        assert keys["star"] == pytest.approx(keys["strided, union"], rel=0.01)
        assert keys["random"] == pytest.approx(keys["strided, union"], rel=0.01)


def test_a_family_of_the_frontier_reads_no_more_than_its_budget_and_hardly_less():
    for name, (schedule, keys) in frontier.schedules().items():
        assert keys == keys_read(schedule, frontier.LENGTH, frontier.LAYERS)
        if name != frontier.DENSE:
            share = float(name.rpartition("=")[2].rstrip("%")) / 100
            assert 0.97 < keys / (share * 128.5) <= 1


def test_the_order_on_text_decides_the_claims_of_language():
    names = [trial.name for trial in language.trials("laptop")]
    better = {f"strided, union, w = {w}": {language.BITS: 2.9 - w / 1000} for w in language.WIDTHS}
    worse = {f"random, w = {w}": {language.BITS: 3.2 - w / 1000} for w in language.WIDTHS}
    rest = {name: {language.BITS: 3.1 - int(name.split()[-1]) / 1000} for name in names if "=" in name}
    assert held(language.findings(results(rest | better | worse, {language.BITS: 3.0}, names))) == [True] * 3
    swapped = {"random, w = 64": {language.BITS: 2.0}, "fixed, union, w = 64": {language.BITS: 2.5}}
    assert held(language.findings(results(rest | better | worse | swapped, {}, names))) == [False, False, True]


def test_what_decides_the_claims_of_the_frontier():
    names = [trial.name for trial in frontier.trials("laptop")]
    figures = {"text: dense": {frontier.BITS: 2.99}, "recall: dense": {"accuracy": 1.0}}
    figures |= {f"recall: selected, {budget}": {"accuracy": 0.6} for budget in frontier.BUDGETS}
    default = {frontier.BITS: 3.0, "accuracy": 0.2}
    assert held(frontier.findings(results(figures, default, names))) == [True] * 4
    figures["text: dense"] = {frontier.BITS: 2.9}
    figures["text: strided, flops=25%"] = {frontier.BITS: 2.91}
    figures["recall: window, flops=50%"] = {"accuracy": 0.95}
    assert held(frontier.findings(results(figures, default, names))) == [True, False, False, False]


# --- whole and cut documents ------------------------------------------------------------------------------------------


def test_the_gain_of_reading_whole_is_decided_by_length():
    names = [trial.name for trial in long_documents.trials("laptop")]

    def scores(cut):
        whole = {f"score of {words} words": 1.0 for words in long_documents.WORDS}
        short = {f"score of {words} words": one for words, one in zip(long_documents.WORDS, cut, strict=True)}
        figures = {name: whole if "4,096" in name else short for name in names}
        return held(long_documents.findings(results(figures, {}, names)))

    assert scores((0.95, 0.6, 0.4, 0.3)) == [True, True, True]
    assert scores((0.5, 0.5, 0.5, 0.5)) == [False, False, True]


# --- factorised attention ---------------------------------------------------------------------------------------------


def test_time_and_bits_decide_the_claims_of_factorised_attention():
    figures = {
        "dense": {factorised.BITS: 3.0, "minutes": 10.0},
        "fixed": {factorised.BITS: 2.9, "minutes": 4.0},
        "strided": {factorised.BITS: 3.1, "minutes": 3.0},
    }
    found = results(figures, {}, factorised.PATTERNS)
    assert held(factorised.FACTORISED_TEXT.findings(found)) == [True, True, True]
    assert held(factorised.FACTORISED_PICTURES.findings(found)) == [False, False, True]
    figures["fixed"]["minutes"] = 6.0
    assert not factorised.FACTORISED_TEXT.findings(results(figures, {}, factorised.PATTERNS))[2].holds


def archive(path, count):
    """Pictures of two classes, `count` of each in both splits."""
    random = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as members:
        for split in ("train", "test"):
            for label in ("cat", "dog"):
                for number in range(count):
                    data = io.BytesIO()
                    Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(data, "JPEG")
                    member = tarfile.TarInfo(f"{split}/{label}/{number:04}.jpg")
                    member.size = data.tell()
                    data.seek(0)
                    members.addfile(member, data)
    return path


def test_pictures_are_divided_into_splits_of_equal_classes(tmp_path):
    unpack_pictures(tmp_path / "made", archive(tmp_path / "all.tar.gz", 5), train=3, held_out=2)
    names = sorted(str(path.relative_to(tmp_path / "made")) for path in (tmp_path / "made").rglob("*.jpg"))
    expected = {"train": (0, 1, 2), "validation": (3, 4), "test": (0, 1)}
    assert names == sorted(
        f"{split}/{label}/{number:04}.jpg"
        for split, numbers in expected.items()
        for label in ("cat", "dog")
        for number in numbers
    )
    with refusing(DataError, "too-few-pictures", "must have 6 pictures of each class, got 5"):
        unpack_pictures(tmp_path / "more", tmp_path / "all.tar.gz", train=4, held_out=2)


# --- genomes ----------------------------------------------------------------------------------------------------------


def test_counts_are_of_both_held_out_splits(tmp_path, monkeypatch):
    for module in (index, regions):
        monkeypatch.setattr(module, "GRID", 256)
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(genomics, "HIGHEST_ORDER", 3)
    path = write(tmp_path, "genome.fa", fasta(random_genome(2, {"chr1": 40_000})))
    path.rename(tmp_path / genomics.SOURCE.name.removesuffix(".gz"))
    monkeypatch.setattr(genomics, "SOURCE", type(genomics.SOURCE)(genomics.SOURCE.name.removesuffix(".gz"), ""))
    found = genomics._counted(tmp_path)
    assert 1.9 < found[genomics.BITS] < 2.1 and 0 <= found["order"] <= 3 and 1.9 < found["xz"] < 2.5


def test_runs_read_equally_many_tokens_a_step():
    configs = [trial.config for trial in genomics.trials("laptop")[1:]]
    assert {config.context * config.batch_size for config in configs} == {genomics.TOKENS_PER_STEP}


def test_bases_weigh_equally(monkeypatch, tmp_path):
    scores = {
        "validation": {"bytes_scored": 30, "scores": [{"bits_per_byte": 1.0}]},
        "test": {"bytes_scored": 10, "scores": [{"bits_per_byte": 2.0}]},
    }
    monkeypatch.setattr("asterism.training.open_run", lambda folder: None)
    monkeypatch.setattr(
        "asterism.training.evaluate",
        lambda run, split, progress: type("Scores", (), {"as_json": partial(dict, scores[split])})(),
    )
    assert genomics._scored(tmp_path, masked=False) == {genomics.BITS: 1.25}
