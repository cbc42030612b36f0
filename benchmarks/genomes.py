"""Does length help to read bacteria? Bits per base at 512 and at 4,096 tokens, beside counted contexts and compressors.

    python benchmarks/genomes.py runs/genomes benchmarks/results/genomes.json --genome e-coli=FILE --genome tb=FILE
    python benchmarks/genomes.py --report benchmarks/results/genomes.json

Every genome is split by blocks of 2^17 bases, and the held-out blocks of both splits are scored together. `causal` are
small models that predict each base from those before it, in windows of 512 or 4,096, for equally many steps of equally
many bases: their bits per base are those of a compressor, and can be compared with models of order k that counted the
same training blocks, and with xz. `mlm` fill in masked tokens of merged pairs, of the first genome alone: their bits
are per base of the masked tokens, of which both sides are seen, and can be compared with each other and with what the
frequencies of tokens give, not with the rest. Runs are counted in steps, so equal commands give equal models; what is
finished in the folder is not done again, and what was stopped goes on.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from stages import do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.training import RunConfig, evaluate, open_run, recipe
from asterism.training.data.corpora.splits import SPLITS, Split
from asterism.training.data.genomes.genome import Genome, compressed
from asterism.training.data.genomes.ngram import count

CONTEXTS = (512, 4096)
TOKENS_PER_STEP = 4096
HELD_OUT: tuple[Split, ...] = ("validation", "test")
MASKED_PASSES = 2
"""To make documents of: so short a run reads no more than one, and the ten of the paper take a minute to make."""
HIGHEST_ORDER = 16
SHOWN_ORDERS = (0, 2, 4, 8, 11, 12, 16)


def main() -> None:
    """Count, train, score, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each row."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in ("steps", "masked_steps", "tokens", "seed")},
        "counted": {},
        "rows": [],
    }
    names = [name for name, _ in arguments.genome]
    asked = [("causal", name, context) for name in names for context in CONTEXTS]
    asked += [("mlm", names[0], context) for context in CONTEXTS]
    for name in names:
        record["counted"][name] = json.loads(stage("count", name, ""))
    for objective, name, context in asked:
        row = {"objective": objective, "genome": name, "context": context}
        record["rows"].append(row | json.loads(stage(objective, name, str(context))))
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(what: str, name: str, context: str, arguments: argparse.Namespace) -> None:
    kept = arguments.folder / f"{what}-{name}{'-' * bool(context)}{context}.json"
    if not kept.exists():
        path = dict(arguments.genome)[name]
        if what == "count":
            result = counted(path)
        else:
            config = {"causal": causal, "mlm": masked}[what](path, int(context), arguments)
            result = trained(config, arguments.folder / f"{what}-{name}-{context}")
        kept.write_text(json.dumps(result))
    print(kept.read_text())


def causal(path: str, context: int, arguments: argparse.Namespace) -> RunConfig:
    """Every base from those before it, by the model of the recipe dna-tiny."""
    shape = recipe("dna-tiny").model
    return _run(RunConfig(recipe="genomes-causal", model=shape), path, context, arguments.steps, arguments)


def masked(path: str, context: int, arguments: argparse.Namespace) -> RunConfig:
    """Masked tokens from those around them: bigbird over merged pairs."""
    base = recipe("bigbird-tiny")
    shape = replace(base.model, mixers="bigbird(block=32, random=1)", hidden_size=128, num_attention_heads=2)
    config = replace(base, recipe="genomes-mlm", model=shape, tokenizer=f"dna-bpe:{arguments.tokens}")
    config = _run(config, path, context, arguments.masked_steps, arguments)
    return replace(config, modality=str(Genome(passes=MASKED_PASSES)))


def _run(config: RunConfig, path: str, context: int, steps: int, arguments: argparse.Namespace) -> RunConfig:
    """What both kinds of runs have in common."""
    return replace(
        config,
        data=path,
        modality=str(Genome()),
        context=context,
        batch_size=TOKENS_PER_STEP // context,
        steps=steps,
        minutes=None,
        optimizer="muon",
        learning_rate=6e-3,
        warmup_steps=50,
        weight_decay=0.1,
        log_every=50,
        evaluation_every=10_000,
        checkpoint_every=100,
        dtype="bfloat16",
        seed=arguments.seed,
    )


def trained(config: RunConfig, run: Path) -> dict[str, Any]:
    """What training cost, and the scores of the held-out splits."""
    train_counted(config, run)
    opened = open_run(run)
    scores = {split: evaluate(opened, split=split).as_json() for split in HELD_OUT}
    return {
        **spent(run),
        "scores": {split: one | {"corpus": Path(config.data or "").name} for split, one in scores.items()},
    }


def counted(path: str) -> dict[str, Any]:
    """Bits per base of both held-out splits together: by models of all orders, and compressed."""
    splits = Genome().splits(path)
    blocks = {split: list(splits.pieces(split).sampled(splits.length(split))) for split in SPLITS}
    held_out = {split: blocks[split] for split in HELD_OUT} | {"both": blocks["validation"] + blocks["test"]}
    models = {both: count(blocks["train"], HIGHEST_ORDER, both_strands=both) for both in (True, False)}
    return {
        "bases": {split: sum(map(len, some)) for split, some in blocks.items()},
        "orders": {split: models[True].bits_per_base(some).tolist() for split, some in held_out.items()},
        "orders_one_strand": models[False].bits_per_base(held_out["both"]).tolist(),
        "compressed": compressed(np.concatenate(held_out["both"])),
    }


# --- the report -----------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """What came out, in Markdown."""
    for name, found in record["counted"].items():
        bases = found["bases"]
        held_out = bases["validation"] + bases["test"]
        orders = found["orders"]["both"]
        print(f"\n**{name}**: {bases['train']:,} bases counted or trained on, {held_out:,} scored\n")
        print("| predicted by | bits per base |\n|---|---|")
        for order in (one for one in SHOWN_ORDERS if one < len(orders)):
            print(f"| order {order} | {orders[order]:.4f} |")
        best = int(np.argmin(orders))
        print(f"| best of all orders to {len(orders) - 1}: {best} | {orders[best]:.4f} |")
        one = found["orders_one_strand"]
        print(f"| best of those that count one strand: {int(np.argmin(one))} | {min(one):.4f} |")
        for how, bits in found["compressed"].items():
            print(f"| {how} | {bits:.4f} |")
        for row in record["rows"]:
            if row["genome"] == name:
                print(f"| {row['objective']}, {row['context']:,} tokens | {_bits(row)} |")
    print("\n| run | steps | processor, minutes | MiB |\n|---|---|---|---|")
    for row in record["rows"]:
        costs = f"{row['training_seconds'] / 60:.1f} | {row['training_peak_bytes'] / 2**20:,.0f}"
        print(f"| {row['objective']} {row['genome']} {row['context']:,} | {row['steps']:,} | {costs} |")
    print(f"\n{record['date']}, {record['settings']}")


def _bits(row: Mapping[str, Any]) -> str:
    """Of both splits, each base once."""
    scores = row["scores"].values()
    if row["objective"] == "mlm":
        bases = sum(one["bytes_masked"] for one in scores)
        model, known = (
            sum(one[name] * one["bytes_masked"] for one in scores) / bases
            for name in ("bits_per_byte", "unigram_bits_per_byte")
        )
        return f"{model:.4f} of masked tokens; by the frequencies of tokens {known:.4f}"
    total = sum(one["bytes_scored"] for one in scores)
    return f"{sum(one['scores'][0]['bits_per_byte'] * one['bytes_scored'] for one in scores) / total:.4f}"


def _genome(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--genome", type=_genome, action="append", default=[], help="NAME=FILE, once for each genome")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--steps", type=int, default=1000, help="of models of bases, 4,096 each (default 1,000)")
    parser.add_argument("--masked-steps", type=int, default=250, help="of masked models, 4,096 tokens (default 250)")
    parser.add_argument("--tokens", type=int, default=1024, help="of masked models (default 1,024)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report is None and not (arguments.folder and arguments.genome):
        parser.error("a folder and a genome are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
