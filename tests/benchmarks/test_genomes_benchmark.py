"""benchmarks/genomes.py: what is counted, that its runs are possible, and that bases weigh equally in its table."""

import argparse
import json
import sys

import pytest
from genome_files import fasta, random_genome, write
from repository import BENCHMARKS, docs_page

from asterism.training.data.genomes import genome, index, regions

pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not there")


@pytest.fixture
def genomes(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import genomes

    yield genomes
    sys.modules.pop("genomes")


def test_all_blocks_are_counted_and_both_splits_scored(genomes, tmp_path, monkeypatch):
    for module in (index, regions):
        monkeypatch.setattr(module, "GRID", 256)
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(genomes, "HIGHEST_ORDER", 3)
    path = write(tmp_path, "genome.fa", fasta(random_genome(2, {"chr1": 40_000})))
    found = genomes.counted(str(path))
    splits = genome.Genome().splits(str(path))
    assert found["bases"] == {split: splits.length(split) for split in ("train", "validation", "test")}
    assert sum(found["bases"].values()) == 40_000
    sizes = found["bases"]["validation"], found["bases"]["test"]
    mean = (found["orders"]["validation"][1] * sizes[0] + found["orders"]["test"][1] * sizes[1]) / sum(sizes)
    assert found["orders"]["both"][1] == pytest.approx(mean)
    assert len(found["orders_one_strand"]) == 4 and found["compressed"]["zlib"] > 2


def test_runs_read_equally_many_bases_a_step(genomes):
    arguments = argparse.Namespace(steps=7, masked_steps=5, tokens=64, seed=3)
    for context in genomes.CONTEXTS:
        causal, masked = (make("file", context, arguments) for make in (genomes.causal, genomes.masked))
        assert causal.context * causal.batch_size == masked.context * masked.batch_size == 4096
        assert (causal.steps, masked.steps, masked.tokenizer) == (7, 5, "dna-bpe:64")
        assert causal.modality == "genome()" and masked.modality == "genome(passes=2)"


def test_bases_weigh_equally(genomes, capsys):
    orders = {"both": [2.0, 1.5, 1.75]}
    bases = {"train": 1000, "validation": 30, "test": 10}
    spent = {"steps": 4, "training_seconds": 90, "training_peak_bytes": 2**20}
    causal = {
        split: {"bytes_scored": count, "scores": [{"bits_per_byte": bits}]}
        for split, count, bits in (("validation", 30, 1.0), ("test", 10, 2.0))
    }
    masked = {
        split: {"bytes_masked": count, "bits_per_byte": bits, "unigram_bits_per_byte": 2 * bits}
        for split, count, bits in (("validation", 3, 1.0), ("test", 1, 2.0))
    }
    row = {"genome": "made", "context": 512, **spent}
    record = {
        "counted": {
            "made": {"bases": bases, "orders": orders, "orders_one_strand": [2.0, 1.9], "compressed": {"xz": 1.99}}
        },
        "rows": [{"objective": "causal", "scores": causal, **row}, {"objective": "mlm", "scores": masked, **row}],
        "date": "today",
        "settings": {},
    }
    genomes.report(record)
    printed = capsys.readouterr().out
    assert "1,000 bases counted or trained on, 40 scored" in printed
    assert "| causal, 512 tokens | 1.2500 |" in printed
    assert "| mlm, 512 tokens | 1.2500 of masked tokens; by the frequencies of tokens 2.5000 |" in printed
    assert "| best of all orders to 2: 1 | 1.5000 |" in printed
    assert "| best of those that count one strand: 1 | 1.9000 |" in printed
    assert "| causal made 512 | 4 | 1.5 | 1 |" in printed


def test_the_page_shows_the_results(genomes, capsys):
    record = json.loads((BENCHMARKS / "results" / "genomes.json").read_text())
    genomes.report(record)
    printed = capsys.readouterr().out.strip().split("\n\n")
    page = docs_page("results/genomes.md").read_text()
    assert all(part in page for part in printed[:-1]) and len(printed) == 6
    assert record["date"] in page
