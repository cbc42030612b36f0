"""Golden runs: what eight small runs come to, to the last bit, so that two versions of the source can be compared.

    PYTHONPATH=OLD/src python benchmarks/golden.py old.json
    PYTHONPATH=NEW/src python benchmarks/golden.py new.json
    python benchmarks/golden.py --compare old.json new.json

A record holds a SHA-256 of every tensor of a run's weights, of every line of its history and every figure of its report
(but for those that a clock decides), and of what `predict` writes. The comparison prints a line for each run and ends
with 1 where any of them differs. Digests are those of one machine, one PyTorch and one thread: make both records there.

Everything goes through the command line, in float32, on data that are made here: five minutes of one core. Models,
patterns and batches are those of the recipes, tokenizers are smaller. `classify` begins with the weights of
`bigbird-tiny`, and `summarize` with those of `span-corruption-tiny`, so where one of these differs, so does what
follows from it. The runs of two processes are bytes-small.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Digests = dict[str, dict[str, str]]
"""Of one run: for each part of it (weights, history, ...), the digest of each thing in that part, by its name."""

ALL = "--minutes null --dtype float32 --log-every 1"
PRETRAINING = f"train --data text.txt --evaluation-every 20 --evaluation-bytes 8192 --report-bytes 16384 {ALL}"
FINE_TUNING = f"finetune --epochs 100 --evaluation-every 10 {ALL}"
SHARED = f"{PRETRAINING} --recipe bytes-small --steps 10"
RUNS = {
    "bytes-small": f"{PRETRAINING} --recipe bytes-small --steps 60",
    "bigbird-tiny": f"{PRETRAINING} --recipe bigbird-tiny --steps 30 --tokenizer bpe:1000",
    "classify": f"{FINE_TUNING} --task classify --model bigbird-tiny --data reviews.jsonl --steps 30 --length 128"
    " --learning-rate 0.003",
    "span-corruption-tiny": f"{PRETRAINING} --recipe span-corruption-tiny --steps 10 --tokenizer bpe:1000",
    "summarize": f"{FINE_TUNING} --task summarize --model span-corruption-tiny --data notes.jsonl --steps 20"
    " --length 256 --target-length 24 --num-beams 2 --learning-rate 0.003",
    "cifar-tiny": f"train --recipe cifar-tiny --data pictures --steps 10 --evaluation-every 5 --evaluation-bytes 3072"
    f" --report-bytes 3072 {ALL}",
    "cp=2": f"{SHARED} --parallel cp=2",
    "fsdp=2": f"{SHARED} --parallel fsdp=2",
}
"""What the command line is told, by the name of the run, which is its folder too."""

ASKED = {"classify": "reviews.jsonl", "summarize": "notes.jsonl"}
"""What runs are asked to predict when they are done."""

LEFT_OUT = ("seconds", "minutes", "per_second", "notes")
"""What the names contain of what a clock decides, or what is told in words."""

THINGS = ["soup", "bread", "tea", "cake", "room", "bed", "view", "garden", "lamp", "window", "road", "river"]
WORDS = {"good": ["fine", "lovely", "fresh", "warm", "bright"], "bad": ["stale", "cold", "dirty", "dull", "broken"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, nargs="?", help="where the digests are written, as JSON")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="two records")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; by default they are thrown away")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="these runs and no others")
    asked = parser.parse_args()
    if asked.compare:
        one, other = (json.loads(file.read_text()) for file in asked.compare)
        sys.exit(compared(one, other, asked.only))
    if not asked.record:
        parser.error("say where the record is written, or --compare two of them")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        make_data(folder)
        record = {name: timed(name, folder) for name in RUNS if name in asked.only}
    asked.record.write_text(json.dumps(record, indent=1) + "\n")


def compared(one: Mapping[str, Digests], other: Mapping[str, Digests], names: list[str]) -> int:
    """Prints a line for each of these runs in two records; 1 if any of them differs or is in neither, else 0."""
    found = {name: list(differences(one.get(name, {}), other.get(name, {}))) for name in names}
    for name, parts in found.items():
        print(f"{name}: {'differs: ' + '; '.join(parts) if parts else 'equal'}")
    return int(any(found.values()))


def differences(one: Digests, other: Digests) -> Iterator[str]:
    """A clause for each part of a run of which anything differs."""
    if not one and not other:
        yield "neither record has it"
    for part in one | other:
        mine, theirs = one.get(part, {}), other.get(part, {})
        names = list(mine | theirs)
        if differing := [name for name in names if mine.get(name) != theirs.get(name)]:
            yield f"{part} ({len(differing)} of {len(names)}, {differing[0]} first)"


def timed(name: str, folder: Path) -> Digests:
    """The digests of a run, which is done now; says on stderr how long it took."""
    began = time.monotonic()
    digests = run(name, folder)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return digests


def run(name: str, folder: Path) -> Digests:
    """Trains in the folder of the run, asks for predictions where there are any, and digests all of it."""
    words = [*RUNS[name].split(), "--folder", name, "--json"]
    report = json.loads(asterism(words, folder, processes=2 if "--parallel" in words else 1))
    history = [json.loads(line) for line in (folder / name / "history.jsonl").read_text().splitlines()]
    tensors = load_file(folder / name / "model" / "model.safetensors")
    digests = {
        "weights": {key: digest(f"{tensor.dtype} {tensor.shape}", tensor.tobytes()) for key, tensor in tensors.items()},
        "history": {f"line {at}": digest(lasting(line)) for at, line in enumerate(history, 1)},
        "report": {key: digest(value) for key, value in lasting(report).items()},
    }
    if name in ASKED:
        written = f"{name}.predicted.jsonl"
        asterism(["predict", name, "--data", ASKED[name], "--output", written], folder)
        digests["predictions"] = {written: digest((folder / written).read_bytes())}
    return digests


def asterism(words: list[str], folder: Path, processes: int = 1) -> str:
    """What the command line prints, run in the folder with one thread by one process or two that share the work."""
    spec = find_spec("asterism")
    assert spec is not None and spec.origin is not None, "PYTHONPATH says which source"
    source = str(Path(spec.origin).parents[1])
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    launcher = f"torch.distributed.run --standalone --nproc-per-node {processes} -m".split() if processes > 1 else []
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "asterism.cli.main", *words],
        cwd=folder,
        env=os.environ | threads | {"ASTERISM_CALIBRATE": "0", "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"asterism {' '.join(words)}\n{done.stderr}")
    return done.stdout


def lasting(figures: Any) -> Any:
    """The same figures without those that are left out, at any depth."""
    if isinstance(figures, dict):
        return {key: lasting(value) for key, value in figures.items() if not any(word in key for word in LEFT_OUT)}
    return [lasting(value) for value in figures] if isinstance(figures, list) else figures


def digest(*parts: Any) -> str:
    """SHA-256 of bytes as they are, and of anything else as JSON, which keeps every bit of a float."""
    encoded = (part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode() for part in parts)
    return hashlib.sha256(b"\0".join(encoded)).hexdigest()


def make_data(folder: Path) -> None:
    """A text, reviews with labels, notes with summaries and pictures as CIFAR-10 has them, the same each time."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    reviews = [review(draw, label) for label in ("good", "bad") * 100]
    notes = [note(draw) for _ in range(100)]
    for name, rows in {"reviews": reviews, "notes": notes}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("\n".join(note(draw)["document"] for _ in range(600)))
    pictures = np.random.default_rng(0).integers(0, 256, (120, 3, 32, 32)).cumsum(-1) // 32  # not mere noise
    records = np.concatenate([np.arange(120)[:, None] % 10, pictures.reshape(120, -1) % 256], axis=1).astype(np.uint8)
    (folder / "pictures").mkdir(exist_ok=True)
    records[:100].tofile(folder / "pictures" / "data_batch_1.bin")
    records[100:].tofile(folder / "pictures" / "test_batch.bin")


def review(draw: random.Random, label: str) -> dict[str, str]:
    """Three clauses, all of them good or all of them bad."""
    clauses = [f"the {draw.choice(THINGS)} was {draw.choice(WORDS[label])}" for _ in range(3)]
    return {"text": f"{', '.join(clauses)}.".capitalize(), "label": label}


def note(draw: random.Random) -> dict[str, str]:
    """Six sentences, and a summary of the first."""
    labels = [draw.choice(list(WORDS)) for _ in range(6)]
    sentences = [review(draw, label)["text"] for label in labels]
    return {"document": " ".join(sentences), "summary": f"{labels[0]}: {sentences[0].split(',')[0]}"}


if __name__ == "__main__":
    main()
