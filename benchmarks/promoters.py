"""Promoters of man and starts of genes of a bacterium: an encoder of tokens of bases beside a convolutional net.

    python benchmarks/promoters.py DATA runs/promoters benchmarks/results/promoters.json
    python benchmarks/promoters.py --report benchmarks/results/promoters.json

DATA is a folder with promoters-human-tata.txt (a promoter of 300 bases in each line), the genome of M. tuberculosis
(genome-m-tuberculosis-h37rv.fna.xz) and the table of its genes (genome-m-tuberculosis-h37rv.genes.tsv.xz, without
names of columns; 1-based, the end within).

Promoters are told from the negatives that the task makes of them (`kinds/promoter.py`). For each of five seeds the
promoters are divided anew, 80/10/10, and weights and negatives are drawn anew. Starts of genes stand in the middle of
windows of 8,000 bases, on their strand; what they are told from are windows around other ATG, GTG and TTG of either
strand, with the shares of these three that starts have, so that the codon itself says nothing. The genome is divided
by position: the first eight tenths train, the ninth validates, the last tests; no window reaches across.

Contenders (`convolution.py` has the other two): `ours`, an encoder trained from new weights by `asterism finetune`;
`convolution`, parallel convolutions, a bidirectional LSTM and dense layers; `kmers`, logistic regression of counts of
words; `places`, of which base stands where, in the middle 800 places. The nets have about the same processor time. What
is finished in the folder is not done again.

Of windows around codons, ours reads tokens of three bases in phase with the codon, and a head of its pattern reads the
codon's token from everywhere: which token is in question is told, as in Longformer, not learned.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from convolution import learn_convolution, learn_kmers, learn_places
from stages import do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.models import AsterismConfig
from asterism.training import FineTuneConfig, evaluate
from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.data.genomes.annotation import read_table
from asterism.training.data.genomes.sequences import open_sequences
from asterism.training.tasks.kinds.promoter import PromoterExamples

SEEDS = 5
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
CONTENDERS = ("ours", "convolution", "kmers", "places")
PROBLEMS = ("promoters", "genes")
WINDOW = 8000
CODONS = ("ATG", "GTG", "TTG")
GENES = ("product", "start", "end", "strand", "length", "gi", "geneid", "name", "locus_tag", "cog", "class")
FILES = {
    "promoters": "promoters-human-tata.txt",
    "genome": "genome-m-tuberculosis-h37rv.fna.xz",
    "genes": "genome-m-tuberculosis-h37rv.genes.tsv.xz",
}
CODON_TOKEN = 1 + (WINDOW - 1) // 2 // 3
"""The token of three bases that is the codon in question: behind the first special one, and in phase with it."""
READS = (
    *(f"window(left={before}) & ~window(left={before - 1})" for before in (2, 3, 4)),
    *("window(left=8)", "window(right=8)", "window(left=127)", "window(right=127)"),
    f"global_keys({CODON_TOKEN})",
)
"""What each head reads of a window of 8,000 bases: three a single token each, 4 to 12 bases ahead, where ribosomes bind
ahead of a gene; four what stands near on either side; and one the codon in question, from wherever it is read."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "promoters": {"mixers": "dense()", "positions": 104, "position_type": "learned", "heads": 4, "pooling": "mean"},
    "genes": {
        "mixers": f"per_head([{', '.join(READS)}])",
        "positions": 2688,
        "position_type": "rotary",
        "heads": len(READS),
        "pooling": "cls",
    },
}


def main() -> None:
    """Write, train, score, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each run."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {
            name: getattr(arguments, name) for name in ("steps", "gene_steps", "seconds", "gene_seconds", "seeds")
        },
        "data": {problem: json.loads(stage("write", problem, "0")) for problem in PROBLEMS},
        "rows": [],
    }
    for problem in PROBLEMS:
        for seed in range(arguments.seeds if problem == "promoters" else 1):
            for name in CONTENDERS:
                found = json.loads(stage(name, problem, str(seed)))
                record["rows"].append({"problem": problem, "seed": seed, "name": name, **found})
                if arguments.output:
                    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(name: str, problem: str, seed: str, arguments: argparse.Namespace) -> None:
    if name == "write":
        write = {"promoters": write_promoters, "genes": write_genes}[problem]
        print(json.dumps(write(arguments.data, arguments.folder / "data" / problem)))
        return
    kept = arguments.folder / f"{problem}.{name}.{seed}.json"
    if not kept.exists():
        contend = {"ours": _ours, "convolution": _convolution, "kmers": _kmers, "places": _places}[name]
        kept.write_text(json.dumps(contend(problem, int(seed), arguments)))
    print(kept.read_text())


def _ours(problem: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    run = arguments.folder / f"{problem}.{seed}"
    train_counted(settings(problem, seed, arguments), run)
    test = _paths(problem, seed, arguments)["test"]
    scored = evaluate(run, data=test)
    return {"scores": scored.scores, "examples": scored.examples, **spent(run)}


def _convolution(problem: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    parts = _examples(problem, seed, arguments)
    return learn_convolution(*parts, seed=seed, seconds=_seconds(problem, arguments))


def _kmers(problem: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    return learn_kmers(*_examples(problem, seed, arguments))


def _places(problem: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    return learn_places(*_examples(problem, seed, arguments))


def _seconds(problem: str, arguments: argparse.Namespace) -> float:
    return arguments.seconds if problem == "promoters" else arguments.gene_seconds


def _paths(problem: str, seed: int, arguments: argparse.Namespace) -> dict[str, Path]:
    folder, suffix = arguments.folder / "data" / problem, {"promoters": "txt", "genes": "bed"}[problem]
    return {split: folder / str(seed) / f"{split}.{suffix}" for split in SPLITS}


def _examples(problem: str, seed: int, arguments: argparse.Namespace) -> list[tuple[list[str], np.ndarray]]:
    """The letters and labels of each split, as the task reads them."""
    config = settings(problem, seed, arguments)
    found = []
    for path in _paths(problem, seed, arguments).values():
        examples = list(PromoterExamples.read(path, config))
        labels = np.array([0 if one.labels is None else int(one.labels[0]) for one in examples])
        found.append(([one.letters for one in examples], labels))
    return found


def settings(problem: str, seed: int, arguments: argparse.Namespace) -> FineTuneConfig:
    """An encoder of two layers of width 128, from new weights."""
    shape, paths, of_genes = SHAPES[problem], _paths(problem, seed, arguments), problem == "genes"
    model = arguments.folder / f"shape.{problem}"
    if not model.exists():
        tokenizer = make_tokenizer("kmer:3", [], shape["positions"])
        AsterismConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=shape["heads"],
            max_position_embeddings=shape["positions"],
            position_type=shape["position_type"],
            mixers=shape["mixers"],
            initializer_gain=0.354,
            dropout=0.1,
            pad_token_id=tokenizer.pad_token_id,
        ).save_pretrained(model)
        tokenizer.save_pretrained(model)
    steps = arguments.gene_steps if of_genes else arguments.steps
    return FineTuneConfig(
        task="promoter",
        model=str(model),
        from_scratch=True,
        data=str(paths["train"]),
        validation=str(paths["validation"]),
        genome=str(arguments.data / FILES["genome"]) if of_genes else None,
        window=WINDOW,
        steps=steps,
        epochs=1000.0,
        batch_size=8 if of_genes else 32,
        pooling=shape["pooling"],
        optimizer="muon",
        learning_rate=3e-3,
        warmup_steps=50,
        weight_decay=0.1,
        evaluation_every=steps,
        evaluation_examples=50,
        checkpoint_every=100,
        dtype="bfloat16",
        seed=seed,
    )


# --- the data -------------------------------------------------------------------------------------------------------


def write_promoters(data: Path, folder: Path) -> dict[str, Any]:
    """The lines of each split of each seed."""
    lines = sorted({line.strip() for line in (data / FILES["promoters"]).read_text().splitlines() if line.strip()})
    ends = (np.cumsum(list(SPLITS.values())) * len(lines)).round().astype(int)
    for seed in range(SEEDS):
        order = np.random.Generator(np.random.Philox(seed)).permutation(len(lines))
        (folder / str(seed)).mkdir(parents=True, exist_ok=True)
        for split, part in zip(SPLITS, np.split(order, ends[:-1]), strict=True):
            (folder / str(seed) / f"{split}.txt").write_text("".join(f"{lines[one]}\n" for one in sorted(part)))
    return {"promoters": len(lines), "bases": len(lines[0])}


def write_genes(data: Path, folder: Path) -> dict[str, Any]:
    """Intervals of one codon each, named yes and no, for each split."""
    sequences = open_sequences(data / FILES["genome"])
    (name,) = sequences.names
    length = sequences.length(name)
    text = sequences.read(name, 0, length).tobytes().decode()
    starts = _starts(data / FILES["genes"], name, text)
    others = _codons(text, {place for place, _, _ in starts})
    ends = (np.cumsum(list(SPLITS.values())) * length).astype(int).tolist()
    random, counts, begin = np.random.Generator(np.random.Philox(1)), {}, 0
    (folder / "0").mkdir(parents=True, exist_ok=True)
    for split, end in zip(SPLITS, ends, strict=True):
        inside = range(begin + WINDOW // 2, end - WINDOW // 2 - 3)
        positive = [one for one in starts if one[0] in inside and one[2] in CODONS]
        rows = [(*one, "yes") for one in positive]
        for codon in CODONS:
            there = [one for one in others if one[0] in inside and one[2] == codon]
            wanted = sum(one[2] == codon for one in positive)
            rows += [(*there[at], "no") for at in random.choice(len(there), wanted, replace=False)]
        lines = [f"{name}\t{place}\t{place + 3}\t{label}\t0\t{strand}\n" for place, strand, _, label in sorted(rows)]
        (folder / "0" / f"{split}.bed").write_text("".join(lines))
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
    """What came out, in Markdown: means over the seeds, and their standard deviations."""
    names = ("f1", "precision", "recall", "auc")
    for problem, data in record["data"].items():
        print(f"\n{problem}: {data}\n\n| | {' | '.join(names)} | parameters | processor, s |\n|{'---|' * 7}")
        for name in CONTENDERS:
            rows = [row for row in record["rows"] if row["problem"] == problem and row["name"] == name]
            if rows:
                cells = [_spread([row["scores"][score] for row in rows]) for score in names]
                seconds = _spread([row["training_seconds"] for row in rows], digits=0)
                print(f"| {name} | {' | '.join(cells)} | {rows[0]['parameters']:,} | {seconds} |")
    print(f"\n{record['date']}, {record['settings']}")


def _spread(values: Sequence[float], digits: int = 3) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="a folder with promoters, genome and genes")
    parser.add_argument("folder", type=Path, nargs="?", help="where data and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--steps", type=int, default=600, help="of ours on promoters (default 600)")
    parser.add_argument("--gene-steps", type=int, default=540, help="of ours on genes (default 540)")
    parser.add_argument("--seconds", type=float, default=60, help="of the convolution on promoters (default 60)")
    parser.add_argument("--gene-seconds", type=float, default=300, help="of the convolution on genes (default 300)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of the promoters (default and most: {SEEDS})")
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
