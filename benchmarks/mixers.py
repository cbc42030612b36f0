"""Mixers at equal work: the encoder twins on the same masked tokens of the same text, for equally many steps.

    python benchmarks/mixers.py runs/mixers benchmarks/results/mixers.json

Trains every recipe below, in turn, on the text that every Python carries, and prints a table in Markdown. The recipes
differ in their mixer, those of FNet also in norms, positions and learning rate; all read 4 x 1,024 tokens a step.
What is finished in the folder is not done again, and what was stopped goes on. About an hour on one core.

Equal work is counted in tokens; the minutes that each run took stand beside them.
"""

import argparse
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asterism.bench.machine import describe
from asterism.training import recipe, train

RECIPES = ("bert-tiny", "longformer-tiny", "bigbird-tiny", "star-tiny", "fnet-hybrid-tiny", "fnet-tiny")


def main() -> None:
    """Train, record, print."""
    arguments = _arguments()
    rows = [run(name, arguments.folder / name, arguments.steps, arguments.seed) for name in RECIPES]
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe("cpu"), "rows": rows}
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def run(name: str, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """The mixers of a recipe and the report of its run."""
    print(name, file=sys.stderr)
    config = replace(recipe(name), steps=steps, minutes=None, seed=seed)
    return {"mixers": config.model.mixers, **train(config, folder, resume=(folder / "run.json").exists()).as_json()}


def report(rows: list[dict[str, Any]]) -> None:
    """The table of docs/results/figures.md."""
    print("| recipe | nats per masked token | accuracy | parameters | minutes |\n|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: row["validation_masked_loss"]):
        right = f"{row['validation_masked_accuracy']:.1%}"
        sizes = f"{row['parameters'] / 1e6:.1f}M | {row['minutes']:.1f}"
        print(f"| `{row['recipe']}` | {row['validation_masked_loss']:.2f} | {right} | {sizes} |")
    first = rows[0]
    print(f"\n{first['steps']:,} steps, {first['tokens_masked']:,} masked tokens;", end=" ")
    print(f"their frequencies alone give {first['unigram_entropy']:.2f} nats")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("output", type=Path, help="a JSON file for the results")
    parser.add_argument("--steps", type=int, default=500, help="of every run (default 500)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
