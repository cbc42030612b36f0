"""The data that benchmarks/promoters.py makes, and the nets that ours is compared with."""

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
from asterism.training.tasks.kinds.promoter import negative

sys.path.insert(0, str(BENCHMARKS))
convolution = pytest.importorskip("convolution")
promoters = pytest.importorskip("promoters")


def test_each_promoter_is_in_one_split_of_each_seed(tmp_path):
    random = np.random.default_rng(0)
    lines = ["".join(random.choice(list("ACGT"), 40)) for _ in range(50)]
    (tmp_path / promoters.FILES["promoters"]).write_text("\n".join([*lines, lines[0]]) + "\n")
    assert promoters.write_promoters(tmp_path, tmp_path / "data") == {"promoters": 50, "bases": 40}
    splits = []
    for seed in range(promoters.SEEDS):
        parts = [(tmp_path / "data" / str(seed) / f"{one}.txt").read_text().split() for one in promoters.SPLITS]
        assert [len(one) for one in parts] == [40, 5, 5] and sorted(sum(parts, [])) == sorted(lines)
        splits.append(tuple(parts[2]))
    assert len(set(splits)) == promoters.SEEDS


def test_starts_of_genes_and_what_they_are_told_from(tmp_path, monkeypatch):
    """Both have the same codons equally often; windows lie within their split; no negative is a start."""
    monkeypatch.setattr(promoters, "WINDOW", 100)
    random = np.random.default_rng(1)
    letters = random.choice(list("ACGT"), 20_000)
    genes = []
    for number in range(66):
        start, end, strand = 300 * number + 150, 300 * number + 300, "+-"[number % 2]
        codon = promoters.CODONS[number % 3]
        place = start if strand == "+" else end - 3
        letters[place : place + 3] = list(codon if strand == "+" else other_strand(codon))
        genes.append("\t".join(["a protein", str(start + 1), str(end), strand, *["x"] * 7]))
    with lzma.open(tmp_path / promoters.FILES["genome"], "wt") as file:
        file.write(">chr\n" + "".join(letters) + "\n")
    with lzma.open(tmp_path / promoters.FILES["genes"], "wt") as file:
        file.write("\n".join(genes) + "\n")
    said = promoters.write_genes(tmp_path, tmp_path / "data")
    assert said["genes"] == 66 and sum(said["positives"].values()) > 50
    sequences = open_sequences(tmp_path / promoters.FILES["genome"])
    starts = {300 * n + (150 if n % 2 == 0 else 297) for n in range(66)}
    for split, (begin, end) in zip(promoters.SPLITS, [(0, 16_000), (16_000, 18_000), (18_000, 20_000)], strict=True):
        codons = {"yes": [], "no": []}
        for line in (tmp_path / "data" / "0" / f"{split}.bed").read_text().splitlines():
            name, first, last, label, _, strand = line.split("\t")
            place = int(first)
            assert begin + 50 <= place < end - 50 and int(last) == place + 3 and (place in starts) == (label == "yes")
            codons[label].append(sequences.read_padded(name, place, place + 3, strand).tobytes().decode())
        assert codons["yes"] and set(codons["yes"]) <= set(promoters.CODONS)
        assert sorted(codons["yes"]) == sorted(codons["no"])


def test_what_ours_is_compared_with_learns():
    """Both tell promoters that are rich in G from their negatives."""
    random = np.random.default_rng(2)
    parts = []
    for count in (120, 40, 40):
        positive = ["".join(random.choice(list("ACGT"), 60, p=(0.1, 0.1, 0.7, 0.1))) for _ in range(count)]
        letters = [one for text in positive for one in (text, negative(text, 0))]
        parts.append((letters, np.array([1, 0] * count)))
    words = convolution.learn_kmers(*parts)
    assert words["scores"]["f1"] > 0.9 and words["parameters"] == 4 + 16 + 64 + 256 + 1024 + 4096 + 1
    net = convolution.learn_convolution(*parts, seed=0, seconds=2)
    assert net["scores"]["auc"] > 0.9 and net["steps"] > 5 and net["examples"] == 80


def test_places_tell_what_stands_where():
    """One base decides, in the middle of 801: the last place that is read, and beyond it the last that is not."""
    random = np.random.default_rng(3)
    found = []
    for place in (799, 800):
        parts = []
        for count in (400, 200, 200):
            letters = np.full((count, 801), "C")
            letters[:, :400] = random.choice(list("CG"), (count, 400))
            labels = np.arange(count) % 2
            letters[:, place] = np.where(labels, "A", "T")
            parts.append((["".join(one) for one in letters], labels))
        found.append(convolution.learn_places(*parts)["scores"]["auc"])
    assert found[0] > 0.9 and found[1] < 0.7


@pytest.mark.parametrize("strand", ["+", "-"])
def test_the_token_in_question_is_the_codon(tmp_path, strand):
    """Whichever strand a window is read from, its middle token of three bases is the codon."""
    random = np.random.default_rng(4)
    codon = "ATG" if strand == "+" else other_strand("ATG")
    letters = random.choice(list("CG"), 20_000)
    letters[9_000:9_003] = list(codon)
    (tmp_path / "genome.fa").write_text(">chr\n" + "".join(letters) + "\n")
    codon_there = interval("file", "chr", "9000", "9003", strand, "yes", "", first=0)
    window = window_letters(open_sequences(tmp_path / "genome.fa"), codon_there, promoters.WINDOW)
    tokenizer = make_tokenizer("kmer:3", [], promoters.SHAPES["genes"]["positions"])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(window)["input_ids"])
    assert tokens[promoters.CODON_TOKEN] == "ATG" and len(tokens) <= promoters.SHAPES["genes"]["positions"]


def test_words_are_counted_as_shares():
    counted = convolution._words("AACGN")
    assert counted[:4].tolist() == [0.5, 0.25, 0.25, 0.0]
    pairs = counted[4:20]
    assert pairs.sum() == pytest.approx(1) and np.count_nonzero(pairs) == 3  # AA, AC, CG


def test_the_page_has_the_scores_of_the_results(capsys):
    promoters.report(json.loads((BENCHMARKS / "results" / "promoters.json").read_text()))
    rows = [line.split(" | ")[1:6] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = docs_page("results/genomes.md").read_text()
    assert len(rows) == 10
    assert [row for row in rows if row[0] != "f1" and f"| {' | '.join(row)} |" not in page] == []
