"""Runs of tasks whose answers are texts: small models and data, and a finished run of each task."""

import json
from pathlib import Path

import pytest
from small_encoders import write_lines
from small_writers import digit_texts, save_tiny_bart, save_tiny_t5

from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, train

TEXTS = digit_texts(48, longest=5)
NAMES = {"summarize": ("document", "summary"), "translate": ("source", "target"), "generate": ("input", "output")}


def answer_to(text: str) -> str:
    """What is learned here: the last word, and then all of them."""
    return f"{text.split()[-1]} : {text}"


def pairs(task: str, texts=TEXTS) -> list[dict[str, str]]:
    source, target = NAMES[task]
    return [{source: text, target: answer_to(text)} for text in texts]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with quiet_transformers():
        return {"bart": save_tiny_bart(folder / "bart"), "t5": save_tiny_t5(folder / "t5")}


@pytest.fixture(scope="module")
def settings(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files = {task: write_lines(folder / f"{task}.jsonl", pairs(task)) for task in NAMES}

    def make(task, /, kind="bart", **changes):
        values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 12}
        limits = {"length": 16, "target_length": 12} if kind == "t5" else {}
        where = {"model": str(models[kind]), "data": str(files[task])}
        return FineTuneConfig(**{"task": task, "epochs": 99.0} | where | values | limits | changes)

    return make


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """A finished run of each task; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for task, changes in (
        ("summarize", {"num_beams": 3, "length_penalty": 0.8, "no_repeat_ngram_size": 3}),
        ("translate", {"kind": "t5", "source_prefix": "short : ", "num_beams": 2}),
        ("generate", {}),
    ):
        made[task] = folder / task, train(settings(task, **changes), folder / task, progress=False)
    return made


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_pair(folder: Path, sources: list[str], targets: list[str], end: str = "\n") -> str:
    (folder / "x.de").write_bytes("".join(f"{one}{end}" for one in sources).encode())
    (folder / "x.en").write_bytes("".join(f"{one}{end}" for one in targets).encode())
    return f"{folder / 'x.de'},{folder / 'x.en'}"
