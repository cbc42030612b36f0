"""Copy and reverse: is a text of letters written again, from its first letter or from its last, without one mistake?

    python benchmarks/copying.py runs/copying benchmarks/results/copying.json
    python benchmarks/copying.py --report benchmarks/results/copying.json

A new encoder-decoder of 2 + 2 layers, whose encoder reads by STRIDED of Yun 2020, learns from random texts of 4 to 24
letters, a token each, and is asked about texts that it has not seen. What counts is that all letters of a text are
right, and that it ends there. What is finished in the folder is not done again, and what was stopped goes on. About six
minutes on one core; guessing gives 0.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch

from asterism.bench.machine import describe
from asterism.models import AsterismConfig
from asterism.training import FineTuneConfig, evaluate, report, train
from asterism.training.data.corpora.tokenization import make_tokenizer

ORDER = {"copy": 1, "reverse": -1}
STEPS = {"copy": 800, "reverse": 1500}
"""Of 64 texts; a decoder has to learn more about places to read a text backwards."""
LENGTHS = (4, 24)
ASKED, WATCHED = 500, 100
MIXERS = "yun_strided(4)"
POSITIONS = 32


def main() -> None:
    """Write, train, ask, record, print."""
    arguments = _arguments()
    if arguments.report:
        show(json.loads(arguments.report.read_text()))
        return
    torch.set_num_threads(arguments.threads)
    record: dict[str, Any] = {"machine": describe("cpu"), "mixers": MIXERS, "lengths": LENGTHS, "rows": []}
    for seed, what in product(arguments.seeds, ORDER):
        print(what, seed, file=sys.stderr)
        row = learned(what, seed, arguments.folder / f"{what}-{seed}", arguments)
        record["rows"].append({"task": what, "seed": seed, **row})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    show(record)


def texts(count: int, seed: int) -> list[str]:
    """So many different texts of random letters, of lengths that are equally likely."""
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found["".join(draw.choices(ascii_lowercase, k=draw.randint(*LENGTHS)))] = None
    return list(found)


def learned(what: str, seed: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run comes to: the share of texts never seen that are written without a mistake."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = texts(arguments.texts + WATCHED + ASKED, seed)
    parts = {"test": drawn[:ASKED], "validation": drawn[ASKED : ASKED + WATCHED], "train": drawn[ASKED + WATCHED :]}
    for name, some in parts.items():
        rows = ({"input": text, "output": text[:: ORDER[what]]} for text in some)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_shape(folder / "shape")
    run = folder / "run"
    config = FineTuneConfig(
        task="generate",
        model=str(folder / "shape"),
        from_scratch=True,
        data=str(folder / "train.jsonl"),
        validation=str(folder / "validation.jsonl"),
        target_length=POSITIONS,
        group_by_length=True,
        batch_size=64,
        epochs=1000.0,
        steps=STEPS[what],
        optimizer="muon",
        learning_rate=3e-3,
        warmup_steps=50,
        dtype="float32",
        evaluation_every=STEPS[what],
        checkpoint_every=500,
        seed=seed,
    )
    train(config, run, resume=(run / "run.json").exists())
    asked: Any = evaluate(run, data=folder / "test.jsonl")
    finished: Any = report(run)
    right = asked.scores["exact_match"]
    return {"steps": finished.steps, "minutes": finished.minutes, "asked": asked.examples, "exact_match": right}


def _write_shape(folder: Path) -> None:
    """What a model for such texts is made of, and its tokenizer, a token for each byte."""
    tokenizer = make_tokenizer("bytes", (), POSITIONS)
    tokenizer.save_pretrained(folder)
    AsterismConfig(
        mixers=MIXERS,
        decoder_mixers="causal()",
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        initializer_gain=0.354,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
    ).save_pretrained(folder)


def show(record: Mapping[str, Any]) -> None:
    """The scores in Markdown."""
    print("| task | seed | steps | right, of texts never seen |")
    print("|---|---|---|---|")
    for row in sorted(record["rows"], key=lambda row: row["task"]):
        right = round(row["exact_match"] * row["asked"])
        print(f"| {row['task']} | {row['seed']} | {row['steps']:,} | {right} of {row['asked']} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where texts and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--texts", type=int, default=20_000, help="to learn from (default 20,000)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("a folder is needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
