"""Starts of genes of a bacterium: an encoder of tokens of three bases compared with a convolutional net.

    python benchmarks/gene_starts.py DATA runs/gene-starts benchmarks/results/gene_starts.json
    python benchmarks/gene_starts.py --report benchmarks/results/gene_starts.json

DATA is a folder with the genome of M. tuberculosis (genome-m-tuberculosis-h37rv.fna.xz) and the table of its genes
(genome-m-tuberculosis-h37rv.genes.tsv.xz, without names of columns; 1-based, the end within).

Starts of genes stand in the middle of windows of 8,000 bases, on their strand. Negatives are windows around other ATG,
GTG and TTG of either strand, with the shares of these three that starts have, so that the codon itself says nothing.
The genome is divided by position: the first eight tenths train, the ninth validates, the last tests; no window reaches
across.

Contenders: `ours`, an encoder trained from new weights by `asterism finetune`; and those of
`asterism.reproduce.convolution`: `convolution`, parallel convolutions, a bidirectional LSTM and dense layers; `kmers`,
logistic regression of counts of words; `places`, of which base stands where, in the middle 800 places. The nets take
about as long. What is finished in the folder is not done again. In the kept record, the convolution had 300 seconds of
CPU time in place of a number of steps, which were 1,016.

Ours reads tokens of three bases in phase with the codon, and a head of its pattern reads the codon's token from
everywhere: which token is in question is given, as in Longformer, not learned.
"""

import argparse
import json
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from stages import do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.models import AsterismConfig
from asterism.reproduce.convolution import learn_convolution, learn_kmers, learn_places
from asterism.reproduce.data.promoters import SHARES, Labelled
from asterism.training import FineTuneConfig, evaluate
from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.data.genomes.annotation import read_table
from asterism.training.data.genomes.sequences import open_sequences
from asterism.training.tasks.kinds.promoter import PromoterExamples

CONTENDERS = ("ours", "convolution", "kmers", "places")
SEED, WINDOW, POSITIONS = 0, 8000, 2688
CODONS = ("ATG", "GTG", "TTG")
GENES = ("product", "start", "end", "strand", "length", "gi", "geneid", "name", "locus_tag", "cog", "class")
GENOME, TABLE = "genome-m-tuberculosis-h37rv.fna.xz", "genome-m-tuberculosis-h37rv.genes.tsv.xz"
CODON_TOKEN = 1 + (WINDOW - 1) // 2 // 3
"""The token of three bases that is the codon in question: behind the first special one, and in phase with it."""
READS = (
    *(f"window(left={before}) & ~window(left={before - 1})" for before in (2, 3, 4)),
    *("window(left=8)", "window(right=8)", "window(left=127)", "window(right=127)"),
    f"global_keys({CODON_TOKEN})",
)
"""What each head reads of a window of 8,000 bases: three a single token each, 4 to 12 bases ahead, where ribosomes bind
ahead of a gene; four what stands near on either side; and one the codon in question, from wherever it is read."""


def main() -> None:
    """Write, train, score, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each run."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in ("steps", "convolution_steps")},
        "data": json.loads(stage("write")),
        "rows": [],
    }
    for name in CONTENDERS:
        record["rows"].append({"seed": SEED, "name": name, **json.loads(stage(name))})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(name: str, arguments: argparse.Namespace) -> None:
    if name == "write":
        print(json.dumps(write_genes(arguments.data, arguments.folder / "data")))
        return
    kept = arguments.folder / f"{name}.json"
    if not kept.exists():
        kept.write_text(json.dumps((_ours if name == "ours" else _other)(name, arguments)))
    print(kept.read_text())


def _ours(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    run = arguments.folder / name
    train_counted(settings(arguments), run)
    scored = evaluate(run, data=_paths(arguments)["test"])
    return {"scores": scored.scores, "examples": scored.examples, **spent(run)}


def _other(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    parts, began = _examples(arguments), time.process_time()
    if name == "convolution":
        found = learn_convolution(*parts, seed=SEED, steps=arguments.convolution_steps)
    else:
        found = {"kmers": learn_kmers, "places": learn_places}[name](*parts)
    return {
        "scores": found.scores,
        "examples": len(parts[-1].labels),
        **({"steps": arguments.convolution_steps} if name == "convolution" else {}),
        "training_seconds": time.process_time() - began,
        "parameters": found.parameters,
    }


def _paths(arguments: argparse.Namespace) -> dict[str, Path]:
    return {split: arguments.folder / "data" / f"{split}.bed" for split in SHARES}


def _examples(arguments: argparse.Namespace) -> list[Labelled]:
    """The letters and labels of each split, as the task reads them."""
    config = settings(arguments)
    found = []
    for path in _paths(arguments).values():
        examples = list(PromoterExamples.read(path, config))
        labels = np.array([0 if one.labels is None else int(one.labels[0]) for one in examples])
        found.append(Labelled([one.letters for one in examples], labels))
    return found


def settings(arguments: argparse.Namespace) -> FineTuneConfig:
    """An encoder of two layers of width 128, from new weights."""
    model, paths = arguments.folder / "shape", _paths(arguments)
    if not model.exists():
        tokenizer = make_tokenizer("kmer:3", [], POSITIONS)
        AsterismConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=len(READS),
            max_position_embeddings=POSITIONS,
            position_type="rotary",
            mixers=f"per_head([{', '.join(READS)}])",
            initializer_gain=0.354,
            dropout=0.1,
            pad_token_id=tokenizer.pad_token_id,
        ).save_pretrained(model)
        tokenizer.save_pretrained(model)
    return FineTuneConfig(
        task="promoter",
        model=str(model),
        from_scratch=True,
        data=str(paths["train"]),
        validation=str(paths["validation"]),
        genome=str(arguments.data / GENOME),
        window=WINDOW,
        steps=arguments.steps,
        epochs=1000.0,
        batch_size=8,
        pooling="cls",
        optimizer="muon",
        learning_rate=3e-3,
        warmup_steps=50,
        weight_decay=0.1,
        evaluation_every=arguments.steps,
        evaluation_examples=50,
        checkpoint_every=100,
        dtype="bfloat16",
        seed=SEED,
    )


# --- the data -------------------------------------------------------------------------------------------------------


def write_genes(data: Path, folder: Path) -> dict[str, Any]:
    """Intervals of one codon each, named yes and no, for each split."""
    sequences = open_sequences(data / GENOME)
    (name,) = sequences.names
    length = sequences.length(name)
    text = sequences.read(name, 0, length).tobytes().decode()
    starts = _starts(data / TABLE, name, text)
    others = _codons(text, {place for place, _, _ in starts})
    ends = (np.cumsum(list(SHARES.values())) * length).astype(int).tolist()
    random, counts, begin = np.random.Generator(np.random.Philox(1)), {}, 0
    folder.mkdir(parents=True, exist_ok=True)
    for split, end in zip(SHARES, ends, strict=True):
        inside = range(begin + WINDOW // 2, end - WINDOW // 2 - 3)
        positive = [one for one in starts if one[0] in inside and one[2] in CODONS]
        rows = [(*one, "yes") for one in positive]
        for codon in CODONS:
            there = [one for one in others if one[0] in inside and one[2] == codon]
            wanted = sum(one[2] == codon for one in positive)
            rows += [(*there[at], "no") for at in random.choice(len(there), wanted, replace=False)]
        lines = [f"{name}\t{place}\t{place + 3}\t{label}\t0\t{strand}\n" for place, strand, _, label in sorted(rows)]
        (folder / f"{split}.bed").write_text("".join(lines))
        counts[split], begin = len(positive), end
    return {"bases": length, "genes": len(starts), "positives": counts, "codons": len(others)}


def _starts(path: Path, name: str, text: str) -> list[tuple[int, str, str]]:
    """The first codon of each gene: its place, its strand, its letters as that strand reads them."""
    found = []
    for gene in read_table(path, columns=GENES, sequence=name):
        place = gene.start if gene.strand == "+" else gene.end - 3
        found.append((place, gene.strand, _codon(text, place, gene.strand)))
    return found


def _codons(text: str, starts: set[int]) -> list[tuple[int, str, str]]:
    """All ATG, GTG and TTG of both strands where no gene starts."""
    letters = np.frombuffer(text.encode(), dtype=np.uint8)
    found = []
    for strand, tails in (("+", CODONS), ("-", tuple(one.translate(_PAIRS)[::-1] for one in CODONS))):
        for codon, seen in zip(CODONS, tails, strict=True):
            here = [letters[at : len(letters) - 2 + at] == ord(seen[at]) for at in range(3)]
            places = np.flatnonzero(here[0] & here[1] & here[2]).tolist()
            found += [(place, strand, codon) for place in places if place not in starts]
    return sorted(found)


_PAIRS = str.maketrans("ACGT", "TGCA")


def _codon(text: str, place: int, strand: str) -> str:
    codon = text[place : place + 3]
    return codon if strand == "+" else codon.translate(_PAIRS)[::-1]


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """Print the scores of every contender, in Markdown."""
    names = ("f1", "precision", "recall", "auc")
    print(f"\n{record['data']}\n\n| | {' | '.join(names)} | parameters | CPU, s |\n|{'---|' * 7}")
    for row in record["rows"]:
        cells = [f"{row['scores'][score]:.3f}" for score in names]
        print(f"| {row['name']} | {' | '.join(cells)} | {row['parameters']:,} | {row['training_seconds']:.0f} |")
    print(f"\n{record['date']}, {record['settings']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="a folder with the genome and the table of its genes")
    parser.add_argument("folder", type=Path, nargs="?", help="where data and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--steps", type=int, default=540, help="of ours (default 540)")
    parser.add_argument("--convolution-steps", type=int, default=1016, help="of the convolution (default 1016)")
    parser.add_argument("--stage", nargs=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
