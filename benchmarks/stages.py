"""What benchmarks of training have in common: stages in processes of their own, and what training and asking cost.

A stage begins with no memory of others, so the most memory of a process is that of its stage. Costs are seconds of the
processor, so who else works on the machine does not count; with one thread (`OMP_NUM_THREADS=1`) they are the time that
it takes alone. What is finished is not done again, and what was stopped goes on.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.training import FineTuneConfig, Run, RunConfig, predict, train


def do(
    arguments: argparse.Namespace,
    everything: Callable[[argparse.Namespace], Mapping[str, Any]],
    one: Callable[..., None],
    report: Callable[[Mapping[str, Any]], None],
) -> None:
    """What a script was asked for: print the table of a file, do one stage, or do everything and print its table."""
    if arguments.report:
        report(json.loads(arguments.report.read_text()))
    elif arguments.stage:
        one(*arguments.stage, arguments)
    else:
        report(everything(arguments))


def stage(*words: str) -> str:
    """What this script prints if `--stage` and these words are added to its arguments."""
    print(*words, file=sys.stderr)
    whole = [sys.executable, *sys.argv, "--stage", *words]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


def train_counted(config: FineTuneConfig | RunConfig, run: Path) -> None:
    """Train, or go on, or nothing if all is done; what all processes that did have spent is kept beside the run."""
    begun = (run / "run.json").exists()
    if begun and json.loads((run / "run.json").read_text())["result"] is not None:
        return
    file = _spent(run)
    before = json.loads(file.read_text()) if file.exists() else {"peak_bytes": 0, "seconds": 0.0}
    try:
        train(config, run, resume=begun)
    finally:
        most, seconds = max(before["peak_bytes"], peak()), before["seconds"] + time.process_time()
        file.write_text(json.dumps({"peak_bytes": most, "seconds": seconds}))


def spent(run: Path) -> dict[str, Any]:
    """`training_seconds` of the processor, `training_peak_bytes`, `steps`, `training_features`, `parameters`."""
    costs, learned = (json.loads(path.read_text()) for path in (_spent(run), run / "run.json"))
    names = ("steps", "training_features", "parameters")
    return {
        **{f"training_{name}": value for name, value in costs.items()},
        **{name: learned["result"][name] for name in names if name in learned["result"]},
    }


def _spent(run: Path) -> Path:
    return run.with_name(f"{run.name}.spent.json")


def ask_counted(
    opened: Run, rows: Sequence[Mapping[str, Any]], reader: str | None = None, batch_size: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The answers about rows without labels, asked one by one or `batch_size` together; and what that cost.

    `tokens_per_document` are those that the model read, special ones and questions included, padding not;
    `seconds_per_document` of the processor; `peak_bytes` is the most memory of this process.
    """
    tokens = 0

    def count(_module: Any, _positional: Any, named: Mapping[str, Any]) -> None:
        nonlocal tokens
        tokens += int(named["attention_mask"].sum())

    model: Any = opened.model
    reading = model.get_encoder() if model.config.is_encoder_decoder else model
    hook = reading.register_forward_pre_hook(count, with_kwargs=True)
    list(predict(opened, rows[:2], batch_size=batch_size, reader=reader))  # what is loaded and compiled once
    tokens, began = 0, time.process_time()
    answers = list(predict(opened, rows, batch_size=batch_size, reader=reader))
    seconds = time.process_time() - began
    hook.remove()
    return answers, {
        "documents": len(rows),
        "tokens_per_document": tokens / len(rows),
        "seconds_per_document": seconds / len(rows),
        "peak_bytes": peak(),
    }


def peak() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
