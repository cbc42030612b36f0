"""Spoken digits: how well a small model knows sound, what it says when asked for a digit, and which digit it hears.

    python benchmarks/digits.py spoken-digits.tar.xz runs/digits benchmarks/results/digits.json
    python benchmarks/digits.py --report benchmarks/results/digits.json

The archive is the Free Spoken Digit Dataset: 3,000 recordings of six people, 8,000 samples per second, called
DIGIT_SPEAKER_INDEX.wav. Its authors test on the indices 0 to 4; 5 to 7 are held out here for validation. All models
read samples in 8-bit mu-law:

- `density`: the recipe sound-tiny, told the digit, in bits per sample beside FLAC and counts of order 2;
- `generated`: for each digit what it says, as WAV, and their spectrograms; which digit M5 hears in them;
- `attention`: the density model, asked which digit a clip of up to 8,000 samples is; all its weights are trained on;
- `probe`: a logistic regression on the states of the density model, none of whose weights change;
- `m5`: convolutions over the same samples, with as many weights, from scratch, for about as long as `attention`.

What is finished in the folder is not done again, and what was stopped goes on. Runs are counted in steps, so equal
commands give equal models; costs are seconds of the processor.
"""

import argparse
import json
import shutil
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import m5
import numpy as np
import probe
import torch
from stages import do, peak, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.models import AsterismConfig, AsterismForSequenceClassification
from asterism.randomness import isolated
from asterism.training import FineTuneConfig, RunConfig, evaluate, generate_file, open_run, recipe
from asterism.training.ask.generation import Wanted
from asterism.training.data.audio.mulaw import decode
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.corpora.splits import Split
from asterism.training.settings.sampling import Sampling

RATE, DIGITS, LONGEST = 8_000, 10, 8_000
PLAIN = f"audio(rate={RATE})"
TOLD = f"audio(rate={RATE}, classes={DIGITS})"
SPLITS: dict[Split, range] = {"test": range(5), "validation": range(5, 8), "train": range(8, 50)}
"""The indices of the recordings of each split."""
SPOKEN = 4_000
"""Samples of a digit that is generated: half a second, a little more than most recordings have."""


def main() -> None:
    """Unpack, train, score, speak, hear, record, print."""
    do(_arguments(), _all, _stage, report)


def unpack(archive: Path, folder: Path) -> dict[Split, int]:
    """Write the recordings of an archive as SPLIT/DIGIT/NAME.wav, and count them. Other members are left out."""
    counts = dict.fromkeys(SPLITS, 0)
    with tarfile.open(archive) as members:
        for member in members:
            name = Path(member.name).name
            parts = name.removesuffix(".wav").split("_")
            if not (
                member.isfile() and name.endswith(".wav") and len(parts) == 3 and (parts[0] + parts[2]).isdecimal()
            ):
                continue
            (split,) = (split for split, indices in SPLITS.items() if int(parts[2]) in indices)
            place = folder / split / parts[0]
            place.mkdir(parents=True, exist_ok=True)
            content = members.extractfile(member)
            assert content is not None
            (place / name).write_bytes(content.read())
            counts[split] += 1
    return counts


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each stage."""
    folder = arguments.folder
    if not (summary := folder / "data.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "data", ignore_errors=True)  # of an archive that was not unpacked to its end
        summary.write_text(json.dumps(unpack(arguments.data, folder / "data")))
    settings = ("steps", "attention_steps", "m5_steps", "temperature", "seed")
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in settings},
        "clips": json.loads(summary.read_text()),
    }
    for name in _STAGES:
        kept = folder / f"{name}.json"
        if not kept.exists():
            kept.write_text(stage(name))
        record[name] = json.loads(kept.read_text())
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if arguments.output:
        shutil.copyfile(folder / "spoken" / "digits.png", arguments.output.with_suffix(".png"))
    return record


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(name: str, arguments: argparse.Namespace) -> None:
    print(json.dumps(_STAGES[name](arguments)))


def density(arguments: argparse.Namespace) -> RunConfig:
    """The recipe, told which digit it is; its steps counted."""
    return replace(
        recipe("sound-tiny"),
        data=str(arguments.folder / "data"),
        modality=TOLD,
        steps=arguments.steps,
        minutes=None,
        seed=arguments.seed,
    )


def attention(arguments: argparse.Namespace) -> FineTuneConfig:
    """The density model, all its weights trained on; it answers by the mean over a clip's samples."""
    return FineTuneConfig(
        task="classify",
        model=str(arguments.folder / "density"),
        data=str(arguments.folder / "data"),
        modality=PLAIN,
        length=LONGEST,
        batch_size=4,
        steps=arguments.attention_steps,
        epochs=1000.0,  # the steps decide
        optimizer="muon",
        learning_rate=4e-3,
        weight_decay=0.1,
        warmup_steps=20,
        group_by_length=True,
        log_every=10,
        evaluation_every=1000,
        checkpoint_every=50,
        seed=arguments.seed,
    )


def _density(arguments: argparse.Namespace) -> dict[str, Any]:
    run = arguments.folder / "density"
    train_counted(density(arguments), run)
    began = time.process_time()
    scored: Any = evaluate(run, split="test")
    return {
        **spent(run),
        "bits_per_sample": scored.scores[0].bits_per_byte,
        "samples": scored.bytes_scored,
        "baselines": scored.baselines,
        "scoring_seconds": time.process_time() - began,
    }


def _attention(arguments: argparse.Namespace) -> dict[str, Any]:
    run = arguments.folder / "attention-run"
    train_counted(attention(arguments), run)
    began = time.process_time()
    scored: Any = evaluate(run, data=arguments.folder / "data" / "test")
    seconds = time.process_time() - began
    weights = sum(one.numel() for one in open_run(run).model.parameters())
    return {
        **spent(run),
        "weights": weights,
        "accuracy": scored.scores["accuracy"],
        "seconds_per_clip": seconds / scored.examples,
        "peak_bytes": peak(),
    }


def _m5(arguments: argparse.Namespace) -> dict[str, Any]:
    with isolated(arguments.seed):
        model = m5.of_weights(DIGITS, _weights())
    seconds = m5.learn(model, *_padded(arguments, "train"), steps=arguments.m5_steps, seed=arguments.seed)
    torch.save(model.state_dict(), arguments.folder / "m5.pt")
    clips, labels = _padded(arguments, "test")
    began = time.process_time()
    right = m5.answers(model, clips) == labels
    return {
        "training_seconds": seconds,
        "steps": arguments.m5_steps,
        "weights": sum(one.numel() for one in model.parameters()),
        "accuracy": float(right.mean()),
        "seconds_per_clip": (time.process_time() - began) / len(clips),
        "peak_bytes": peak(),
    }


def _generated(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every digit once, and which digits M5 hears."""
    folder = arguments.folder / "spoken"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    wanted = Wanted(labels=[str(digit) for digit in range(DIGITS)], length=SPOKEN)
    how = Sampling(temperature=arguments.temperature, seed=arguments.seed)
    began = time.process_time()
    made = generate_file(arguments.folder / "density", folder / "digits.wav", wanted, how)
    seconds = time.process_time() - began
    listener = m5.of_weights(DIGITS, _weights())
    listener.load_state_dict(torch.load(arguments.folder / "m5.pt", weights_only=True))
    reads = parse_modality(PLAIN)
    spoken = [decode(reads.read_prompt(Path(file))) for file in made.files if file.endswith(".wav")]
    heard = m5.answers(listener, m5.padded(spoken, LONGEST)).tolist()
    told = {name: value for name, value in asdict(made).items() if name not in ("run", "files")}  # where they lie
    return {**told, "processor_seconds": seconds, "heard_by_m5": heard}


def _probe(arguments: argparse.Namespace) -> dict[str, Any]:
    run, parts = open_run(arguments.folder / "density"), {}
    began = time.process_time()
    for split in SPLITS:
        clips, labels = _clips(arguments, split)
        parts[split] = (probe.states(run, clips), torch.from_numpy(labels))
    seconds = (time.process_time() - began) / sum(len(labels) for _, labels in parts.values())
    mean, spread = parts["train"][0].mean(0), parts["train"][0].std(0) + 1e-6
    parts = {split: ((states - mean) / spread, labels) for split, (states, labels) in parts.items()}
    layer, penalty = probe.regress(parts["train"], parts["validation"])
    asked, wanted = parts["test"]
    return {
        "training_seconds": time.process_time() - began - seconds * len(wanted),
        "weights": sum(one.numel() for one in layer.parameters()),
        "penalty": penalty,
        "accuracy": float((layer(asked).argmax(1) == wanted).float().mean()),
        "seconds_per_clip": seconds,
        "peak_bytes": peak(),
    }


def _clips(arguments: argparse.Namespace, split: Split) -> tuple[list[np.ndarray], np.ndarray]:
    """The codes of a split's clips, no more of each than LONGEST, and their labels."""
    pieces = parse_modality(TOLD).splits(str(arguments.folder / "data")).pieces(split)
    bounds = pieces.bounds.tolist()
    assert pieces.labels is not None
    places = zip(bounds[:-1], bounds[1:], strict=True)
    return [pieces.read(begin, min(end, begin + LONGEST)) for begin, end in places], pieces.labels


def _padded(arguments: argparse.Namespace, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """The samples that these codes mean, as M5 reads them."""
    clips, labels = _clips(arguments, split)
    return m5.padded([decode(clip) for clip in clips], LONGEST), labels


def _weights() -> int:
    """Those of the density model once it classifies."""
    shape = asdict(recipe("sound-tiny").model) | {"vocab_size": 256 + DIGITS}
    with torch.device("meta"):
        model = AsterismForSequenceClassification(AsterismConfig(num_labels=DIGITS, **shape))
    return sum(one.numel() for one in model.parameters())


_STAGES = {"density": _density, "attention": _attention, "probe": _probe, "m5": _m5, "generated": _generated}


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """What came out, in Markdown."""
    density = record["density"]
    print("| samples of the test clips by | bits per sample |\n|---|---|")
    for name, bits in density["baselines"].items():
        print(f"| {name} | {bits:.3f} |")
    minutes = density["training_seconds"] / 60
    print(f"| `sound-tiny`, {density['steps']:,} steps, {minutes:.1f} min | {density['bits_per_sample']:.3f} |")
    print("\n| digits by | weights | steps | processor, minutes | accuracy | ms per clip |\n|---|---|---|---|---|---|")
    for name in ("attention", "probe", "m5"):
        if row := record.get(name):
            costs = f"{row['training_seconds'] / 60:.1f} | {row['accuracy']:.3f} | {1000 * row['seconds_per_clip']:.1f}"
            print(f"| {name} | {row['weights']:,} | {row.get('steps', '')} | {costs} |")
    if spoken := record.get("generated"):
        heard = spoken["heard_by_m5"]
        right = sum(digit == one for digit, one in enumerate(heard))
        print(f"\nGenerated digits 0 to 9 as M5 hears them: {heard} ({right} of {len(heard)})")
    print(f"\n{record['date']}, {record['settings']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="the archive of recordings")
    parser.add_argument("folder", type=Path, nargs="?", help="where data and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--steps", type=int, default=700, help="of the density model (default 700)")
    parser.add_argument(
        "--attention-steps", type=int, default=600, help="of the density model as a classifier (default 600)"
    )
    parser.add_argument("--m5-steps", type=int, default=1000, help="of the convolutions (default 1,000)")
    parser.add_argument("--temperature", type=float, default=0.9, help="of what is generated (default 0.9)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
