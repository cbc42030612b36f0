"""Does length help where length is needed? Two made-up tasks, read whole and cut to 512 tokens, by the same model.

    python benchmarks/long_range.py runs/long-range benchmarks/results/long-range.json

Writes the tasks (`long_range_tasks.py` says what they are), pretrains bigbird-tiny on their text, fine-
tunes it for each task at 4,096 and at 512 tokens for equally long, and prints how it does on documents it has not seen.
What is finished in the folder is not done again, and what was stopped goes on. About 50 minutes on two CPU cores.

Beside the scores stands what guessing gives: one label of four, one place of sixteen.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from long_range_tasks import Sizes, write_long_range

from asterism.bench.machine import describe
from asterism.training import FineTuneConfig, RunConfig, recipe, train

LENGTHS = (4096, 512)
TASKS = {"classify": "accuracy", "qa": "exact_match"}
GUESSING = {"classify": "1 of 4 labels: 0.25", "qa": "1 of 16 places: 0.06"}


def main() -> None:
    """Write, pretrain, fine-tune, print, record."""
    arguments = _arguments()
    folder, seed = arguments.folder, arguments.seed
    data = folder / "data"
    if not data.exists():
        write_long_range(data, seed=seed, sizes=Sizes(train=arguments.examples))
    pretrained = _run(pretraining(data / "text", arguments.pretraining_minutes, seed), folder / "pretrained")
    rows = []
    for task in TASKS:
        for length in LENGTHS:
            config = fine_tuning(task, folder / "pretrained", data, length, arguments.minutes, seed)
            rows.append({"task": task, "length": length, **_run(config, folder / f"{task}-{length}")})
    record = {"machine": describe("cpu"), "pretrained": pretrained, "rows": rows}
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    report(rows)


def pretraining(text: Path, minutes: float, seed: int) -> RunConfig:
    """bigbird-tiny over 4,096 tokens."""
    return replace(
        recipe("bigbird-tiny"),
        data=str(text),
        tokenizer="bpe:768",
        context=max(LENGTHS),
        batch_size=1,
        minutes=minutes,
        seed=seed,
    )


def fine_tuning(task: str, model: Path, data: Path, length: int, minutes: float, seed: int) -> FineTuneConfig:
    """The pretrained model on one task, reading `length` tokens."""
    return FineTuneConfig(
        task=task,
        model=str(model),
        data=str(data / f"{task}.train.jsonl"),
        validation=str(data / f"{task}.test.jsonl"),
        length=length,
        pooling="mean" if task == "classify" else None,
        batch_size=4,
        epochs=1000.0,
        minutes=minutes,
        optimizer="muon",
        learning_rate=3e-3,
        warmup_steps=30,
        evaluation_every=200,
        evaluation_examples=50,
        checkpoint_every=200,
        seed=seed,
    )


def report(rows: list[dict[str, Any]]) -> None:
    """The comparison as a table."""
    print(f"{'task':<10}{'tokens read':>12}{'score':>14}{'':>4}{'steps':>8}{'minutes':>9}   guessing")
    for row in rows:
        name = TASKS[row["task"]]
        score = row["scores"][name]
        print(
            f"{row['task']:<10}{row['length']:>12,}{name:>14}{score:>8.3f}"
            f"{row['steps']:>6,}{row['minutes']:>8.1f}   {GUESSING[row['task']]}"
        )


def _run(config: Any, folder: Path) -> dict[str, Any]:
    """The report of a run that is started, goes on, or is finished already."""
    print(folder, file=sys.stderr)
    return train(config, folder, resume=(folder / "run.json").exists()).as_json()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where tasks and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--pretraining-minutes", type=float, default=10.0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each of the four fine-tuning runs (default 10)")
    parser.add_argument("--examples", type=int, default=Sizes.train, help="documents to train on, of each task")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
