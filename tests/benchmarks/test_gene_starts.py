"""The data that benchmarks/gene_starts.py makes, and its kept results."""

import json
import lzma
import sys

import numpy as np
import pytest
from repository import BENCHMARKS, docs_page

from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.data.genomes.intervals import interval
from asterism.training.data.genomes.sequences import open_sequences
from asterism.training.data.records.genome_windows import window_letters
from asterism.training.data.records.sequences import other_strand

sys.path.insert(0, str(BENCHMARKS))
gene_starts = pytest.importorskip("gene_starts")


def test_starts_of_genes_and_what_they_are_told_from(tmp_path, monkeypatch):
    """Both have the same codons equally often; windows lie within their split; no negative is a start."""
    monkeypatch.setattr(gene_starts, "WINDOW", 100)
    random = np.random.default_rng(1)
    letters = random.choice(list("ACGT"), 20_000)
    genes = []
    for number in range(66):
        start, end, strand = 300 * number + 150, 300 * number + 300, "+-"[number % 2]
        codon = gene_starts.CODONS[number % 3]
        place = start if strand == "+" else end - 3
        letters[place : place + 3] = list(codon if strand == "+" else other_strand(codon))
        genes.append("\t".join(["a protein", str(start + 1), str(end), strand, *["x"] * 7]))
    with lzma.open(tmp_path / gene_starts.GENOME, "wt") as file:
        file.write(">chr\n" + "".join(letters) + "\n")
    with lzma.open(tmp_path / gene_starts.TABLE, "wt") as file:
        file.write("\n".join(genes) + "\n")
    said = gene_starts.write_genes(tmp_path, tmp_path / "data")
    assert said["genes"] == 66 and sum(said["positives"].values()) > 50
    sequences = open_sequences(tmp_path / gene_starts.GENOME)
    starts = {300 * n + (150 if n % 2 == 0 else 297) for n in range(66)}
    for split, (begin, end) in zip(gene_starts.SHARES, [(0, 16_000), (16_000, 18_000), (18_000, 20_000)], strict=True):
        codons = {"yes": [], "no": []}
        for line in (tmp_path / "data" / f"{split}.bed").read_text().splitlines():
            name, first, last, label, _, strand = line.split("\t")
            place = int(first)
            assert begin + 50 <= place < end - 50 and int(last) == place + 3 and (place in starts) == (label == "yes")
            codons[label].append(sequences.read_padded(name, place, place + 3, strand).tobytes().decode())
        assert codons["yes"] and set(codons["yes"]) <= set(gene_starts.CODONS)
        assert sorted(codons["yes"]) == sorted(codons["no"])


@pytest.mark.parametrize("strand", ["+", "-"])
def test_the_token_in_question_is_the_codon(tmp_path, strand):
    """Whichever strand a window is read from, its middle token of three bases is the codon."""
    random = np.random.default_rng(4)
    codon = "ATG" if strand == "+" else other_strand("ATG")
    letters = random.choice(list("CG"), 20_000)
    letters[9_000:9_003] = list(codon)
    (tmp_path / "genome.fa").write_text(">chr\n" + "".join(letters) + "\n")
    codon_there = interval("file", "chr", "9000", "9003", strand, "yes", "", first=0)
    window = window_letters(open_sequences(tmp_path / "genome.fa"), codon_there, gene_starts.WINDOW)
    tokenizer = make_tokenizer("kmer:3", [], gene_starts.POSITIONS)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(window)["input_ids"])
    assert tokens[gene_starts.CODON_TOKEN] == "ATG" and len(tokens) <= gene_starts.POSITIONS


def test_the_page_has_the_scores_of_the_results(capsys):
    gene_starts.report(json.loads((BENCHMARKS / "results" / "gene_starts.json").read_text()))
    rows = [line.split(" | ")[1:6] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = docs_page("results/genomes.md").read_text()
    assert len(rows) == 5
    assert [row for row in rows if row[0] != "f1" and f"| {' | '.join(row)} |" not in page] == []
