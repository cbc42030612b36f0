"""Pictures, value by value: CIFAR-10 by the recipe cifar-tiny, and strided, fixed and dense attention at equal time.

    python benchmarks/cifar.py cifar10 runs/cifar benchmarks/results/cifar.json
    python benchmarks/cifar.py --report benchmarks/results/cifar.json

The folder has train/CLASS/*.jpg and test/CLASS/*.jpg (or PNG), pictures of 32 x 32. The recipe is scored on 1,000 test
pictures, every tenth one, in bits per dimension: bits per value of the 3,072 that a picture has. On the same pictures
stand beside it PNG, WebP without loss and a model that counts in the context of each value.

The comparison is that of Child 2019, table 2, small: one shape, one seed, one order of pictures, and for each pattern
as many steps as fit into equally many seconds of the processor, by a step that is timed beforehand. Its models are
scored on 250 pictures that are held out of training. What is finished in the folder is not done again, and what was
stopped goes on.

JPEG is a lossy format: pictures that went through it are smoother than the originals, so bits per dimension of such a
copy of CIFAR-10 are not those of the published tables.
"""

import argparse
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from stages import do, spent, stage, train_counted
from transformers import PreTrainedModel

from asterism.bench.machine import describe
from asterism.training import RunConfig, generate_file, open_run, recipe
from asterism.training.ask.generation import Wanted
from asterism.training.data.corpora.folders import list_folder
from asterism.training.data.corpora.splits import Pieces
from asterism.training.data.corpora.windows import read_windows
from asterism.training.pipeline import resolve
from asterism.training.run.arithmetic import arithmetic, loss_of
from asterism.training.run.optimizer import make_optimizer
from asterism.training.settings.sampling import Sampling

PATTERNS = {
    "strided": "strided(stride=96)",
    "fixed": "fixed(stride=96, summary=4)",
    "dense": "causal()",
}
"""Of 3,072 values one reads 110 in the mean by strided, 110 by this fixed pattern, and 1,536 by causal()."""
SIX_HEADS: dict[str, Any] = {"num_attention_heads": 6, "query_key_dim": None, "value_dim": None}
"""What the three change of the recipe: heads that choose among many want queries of more than 8 numbers. The number of
parameters stays."""
PUBLISHED = {"strided": 2.80, "fixed": 2.85, "dense": 2.82}
"""Child 2019, table 2: 59M parameters, the pictures themselves."""
EVERY = 10
"""Of the test pictures this manieth is scored."""
VALIDATION_EVERY = 200
"""Of the training pictures this manieth is held out from the comparison."""
COMPLETED = 12
"""Test pictures on the sheet."""
TIMED = 15
"""Steps whose median is the time of a step."""


def main() -> None:
    """Train, score, compare, complete, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each row."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in ("minutes", "compared_minutes", "seed")},
        "data": json.loads(stage("data", "")),
        "step_seconds": json.loads(stage("time", "")),
        "baselines": json.loads(stage("baselines", "")),
        "model": json.loads(stage("train", "cifar-tiny")) | json.loads(stage("score", "cifar-tiny")),
        "completed": json.loads(stage("complete", "cifar-tiny")),
        "compared": [],
    }
    for name, text in PATTERNS.items():
        trained = json.loads(stage("train", name))
        record["compared"].append({"pattern": name, "mixers": text, **trained})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -------------------------------------------------------------------------------


def _stage(stage: str, name: str, arguments: argparse.Namespace) -> None:
    if stage == "train":
        result = _trained(name, arguments)
    else:
        kept = arguments.folder / f"{stage}{name and '-'}{name}.json"
        if not kept.exists():
            kept.write_text(json.dumps(STAGES[stage](name, arguments)))
        result = json.loads(kept.read_text())
    print(json.dumps(result))


def configuration(name: str, arguments: argparse.Namespace, steps: int = 1) -> RunConfig:
    """The recipe, or its shape with another pattern, for so many steps, whatever a clock says."""
    base = recipe("cifar-tiny")
    model = replace(base.model, mixers=PATTERNS[name], **SIX_HEADS) if name in PATTERNS else base.model
    return replace(
        base,
        recipe=name,
        model=model,
        data=str(arguments.folder / "data" if name in PATTERNS else arguments.data),
        minutes=None,
        steps=steps,
        dtype="bfloat16",
        seed=arguments.seed,
    )


def _step_seconds(_: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of the processor that a training step takes: models take turns, so that they meet the same machine."""
    training = {name: _Training(configuration(name, arguments)) for name in ("cifar-tiny", *PATTERNS)}
    for one in training.values():
        one.step()  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in training}
    for _ in range(TIMED):
        for name, one in training.items():
            began = time.process_time()
            one.step()
            seconds[name].append(time.process_time() - began)
    return {name: median(each) for name, each in seconds.items()}


class _Training:
    """A model, its batches and its optimiser, without a run around them."""

    def __init__(self, config: RunConfig) -> None:
        setup = resolve(config)
        self.config, self.setup = config, setup
        self.model, _ = setup.build(torch.device("cpu"))
        self.model.train()
        self.optimizer, self.steps = make_optimizer(self.model, config), 0

    def step(self) -> None:
        batch = self.setup.objective.batch(self.setup.corpus, self.steps)
        loss_of(self.model, batch, self.config.dtype, None).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


def _trained(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """As many steps as fit into the time; what they took in fact is in the record."""
    seconds = json.loads((arguments.folder / "time.json").read_text())[name]
    minutes = arguments.compared_minutes if name in PATTERNS else arguments.minutes
    run = arguments.folder / name
    train_counted(configuration(name, arguments, int(60 * minutes / seconds)), run)
    result = json.loads((run / "run.json").read_text())["result"]
    return {**spent(run), "validation_bits": result["validation_bits_per_byte"]}


def _sample(whole: Path, kept: Path) -> dict[str, int]:
    """The folder that is scored, and on which the comparison trains: its validation is short, to cost no time.

    Files are linked, or copied where there are no links; a folder that was begun is finished.
    """
    files = list_folder(whole)
    parts = {split: [name for name in files if name.startswith(f"{split}/")] for split in ("train", "test")}
    if not all(parts.values()):
        raise SystemExit(f"{whole} needs folders train/ and test/ with pictures in them")
    held = set(parts["train"][::VALIDATION_EVERY])
    homes = {name: "validation" if name in held else "train" for name in parts["train"]}
    homes |= dict.fromkeys(parts["test"][::EVERY], "test")
    for name, home in homes.items():
        target = kept / home / name.split("/", 1)[1]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(whole / name, target)
    return dict(Counter(homes.values()))


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _baselines(_: str, arguments: argparse.Namespace) -> dict[str, float]:
    modality = recipe("cifar-tiny").reads()
    splits = modality.splits(str(arguments.folder / "data"))
    return modality.baselines(splits, "test", 0, splits.length("test"))


def _scored(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Bits per dimension of the sample: the mean over pictures, and its standard error."""
    run = open_run(arguments.folder / name)
    assert isinstance(run.config, RunConfig)
    pieces = run.config.reads().splits(str(arguments.folder / "data")).pieces("test")
    began = time.process_time()
    bits = picture_bits(run.model, pieces, run.config)
    seconds = (time.process_time() - began) / len(bits)
    error = stdev(bits) / math.sqrt(len(bits))
    return {"bits": fmean(bits), "standard_error": error, "pictures": len(bits), "seconds_per_picture": seconds}


@torch.no_grad()
def picture_bits(model: PreTrainedModel, pieces: Pieces, config: RunConfig) -> list[float]:
    """Bits per dimension of each picture, in the run's arithmetic."""
    found = []
    for start in pieces.bounds[:-1]:
        row = read_windows(pieces, np.array([start]), config.context)
        with arithmetic(config.dtype, torch.device("cpu")):
            logits = model(input_ids=row[:, :-1]).logits
        found.append(F.cross_entropy(logits[0].float(), row[0, 1:]).item() / math.log(2))
    return found


def _completed(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A sheet of test pictures whose lower half the model draws, in the run's folder, and what drawing costs."""
    sheet = arguments.folder / f"{name}.png"
    sheet.unlink(missing_ok=True)  # of a stage that was stopped before it told what it cost
    wanted = Wanted(complete=COMPLETED, data=str(arguments.folder / "data"))
    began = time.process_time()
    made = generate_file(arguments.folder / name, sheet, wanted, Sampling(seed=arguments.seed), progress=False)
    seconds = time.process_time() - began
    return {"pictures": made.sequences, "values": made.values, "seconds_per_value": seconds / made.values}


STAGES = {
    "data": lambda _, arguments: _sample(arguments.data, arguments.folder / "data"),
    "time": _step_seconds,
    "baselines": _baselines,
    "score": _scored,
    "complete": _completed,
}


# --- the table --------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """What came out, in Markdown."""
    model, seconds, completed = record["model"], record["step_seconds"], record["completed"]
    print(f"| {model['pictures']:,} test pictures by | bits per dimension |\n|---|---|")
    for name, bits in record["baselines"].items():
        print(f"| {name} | {bits:.3f} |")
    print(f"| `cifar-tiny`, {model['steps']:,} steps | {model['bits']:.3f} ± {model['standard_error']:.3f} |\n")
    print("| pattern | bits per dimension | steps | s / step | published |\n|---|---|---|---|---|")
    for row in record["compared"]:
        name = row["pattern"]
        cells = (f"{row['validation_bits']:.3f}", f"{row['steps']:,}", f"{seconds[name]:.3f}", f"{PUBLISHED[name]:.2f}")
        print(f"| `{row['mixers']}` | {' | '.join(cells)} |")
    print(f"\na step with dense attention takes {seconds['dense'] / seconds['strided']:.2f} times one with strided")
    print(
        f"scoring a picture takes {model['seconds_per_picture']:.2f} s, drawing a value"
        f" {1000 * completed['seconds_per_value']:.2f} ms, {completed['pictures']} pictures together"
    )
    print(f"{record['date']}, {record['settings']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="a folder with train/CLASS/ and test/CLASS/")
    parser.add_argument("folder", type=Path, nargs="?", help="where runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the processor, for cifar-tiny (default 60)")
    parser.add_argument(
        "--compared-minutes", type=float, default=5.0, help="for each pattern of the comparison (default 5)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
