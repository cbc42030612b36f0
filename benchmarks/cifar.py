"""Pictures, value by value: CIFAR-10 by the recipe cifar-tiny, next to compressors of pictures.

    python benchmarks/cifar.py cifar10 runs/cifar benchmarks/results/cifar.json
    python benchmarks/cifar.py --report benchmarks/results/cifar.json

The folder has train/CLASS/*.jpg and test/CLASS/*.jpg (or PNG), pictures of 32 x 32. The model is scored on 1,000 test
pictures, every tenth one, in bits per dimension: bits per value of the 3,072 that a picture has. The same pictures are
compressed by PNG and by WebP without loss. What is finished in the folder is not repeated, and a run that was stopped
resumes. How patterns compare on pictures is an experiment: `asterism reproduce factorised-pictures`.

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
from statistics import fmean, stdev
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
from asterism.training.run.arithmetic import arithmetic
from asterism.training.settings.sampling import Sampling

EVERY = 10
"""Of the test pictures this manieth is scored."""
VALIDATION_EVERY = 200
"""Of the training pictures this manieth validates."""
COMPLETED = 12
"""Test pictures on the sheet."""
MODEL = "cifar-tiny"


def main() -> None:
    """Train, score, complete, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record, also in the file of results."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in ("steps", "seed")},
        "data": json.loads(stage("data")),
        "baselines": json.loads(stage("baselines")),
        "model": json.loads(stage("train")) | json.loads(stage("score")),
        "completed": json.loads(stage("complete")),
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -------------------------------------------------------------------------------


def _stage(stage: str, arguments: argparse.Namespace) -> None:
    if stage == "train":
        result = _trained(arguments)
    else:
        kept = arguments.folder / f"{stage}.json"
        if not kept.exists():
            kept.write_text(json.dumps(STAGES[stage](arguments)))
        result = json.loads(kept.read_text())
    print(json.dumps(result))


def _trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """The recipe for so many steps, whatever a clock says, and what they took."""
    config = replace(
        recipe(MODEL),
        data=str(arguments.data),
        minutes=None,
        steps=arguments.steps,
        dtype="float32",
        seed=arguments.seed,
    )
    run = arguments.folder / MODEL
    train_counted(config, run)
    result = json.loads((run / "run.json").read_text())["result"]
    return {**spent(run), "validation_bits": result["validation_bits_per_byte"]}


def _sample(whole: Path, kept: Path) -> dict[str, int]:
    """The folder that is scored.

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


def _baselines(arguments: argparse.Namespace) -> dict[str, float]:
    modality = recipe(MODEL).reads()
    splits = modality.splits(str(arguments.folder / "data"))
    return modality.baselines(splits, "test", 0, splits.length("test"))


def _scored(arguments: argparse.Namespace) -> dict[str, Any]:
    """Bits per dimension of the sample: the mean over pictures, and its standard error."""
    run = open_run(arguments.folder / MODEL)
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


def _completed(arguments: argparse.Namespace) -> dict[str, Any]:
    """A sheet of test pictures whose lower half the model draws, in the run's folder, and what drawing costs."""
    sheet = arguments.folder / f"{MODEL}.png"
    sheet.unlink(missing_ok=True)  # of a stage that was stopped before it told what it cost
    wanted = Wanted(complete=COMPLETED, data=str(arguments.folder / "data"))
    began = time.process_time()
    made = generate_file(arguments.folder / MODEL, sheet, wanted, Sampling(seed=arguments.seed), progress=False)
    seconds = time.process_time() - began
    return {"pictures": made.sequences, "values": made.values, "seconds_per_value": seconds / made.values}


STAGES = {
    "data": lambda arguments: _sample(arguments.data, arguments.folder / "data"),
    "baselines": _baselines,
    "score": _scored,
    "complete": _completed,
}


# --- the table --------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """What came out, in Markdown."""
    model, completed = record["model"], record["completed"]
    print(f"| {model['pictures']:,} test pictures by | bits per dimension |\n|---|---|")
    for name, bits in record["baselines"].items():
        print(f"| {name} | {bits:.3f} |")
    print(f"| `{MODEL}`, {model['steps']:,} steps | {model['bits']:.3f} ± {model['standard_error']:.3f} |\n")
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
    parser.add_argument("--steps", type=int, default=15_600, help="of training (default 15,600)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
