"""Run folders made by hand, sealed as a run seals them, so that tests of pages need no training."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from asterism.training.run.integrity import seal
from asterism.training.settings.configuration import FineTuneConfig, ModelConfig, RunConfig, config_to_dict

MODEL = ModelConfig(
    mixers="window(left=3)", hidden_size=8, num_hidden_layers=2, num_attention_heads=2, position_type="learned"
)
SHAPES = {
    "lm_head.weight": (256, 8),
    "model.embed_tokens.weight": (256, 8),
    "model.positions.weight": (32, 8),
    "model.layers.0.mixer.query.weight": (8, 8),
    "model.layers.0.mixer.query.bias": (8,),
}


def causal(**changes: Any) -> RunConfig:
    """Settings of a small run on bytes."""
    settings = {"recipe": "small", "model": MODEL, "context": 32, "batch_size": 4, "steps": 40, "data": "code.txt"}
    return RunConfig(**settings | changes)


def history(steps: int = 40, every: int = 10) -> list[dict[str, Any]]:
    """A history that falls from 5 nats on."""
    lines: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        loss = 5.0 / step**0.25
        figures = {"loss": loss, "bits_per_byte": loss * 1.4427, "learning_rate": 0.01, "bytes_per_second": 1000.0}
        lines.append({"step": step, "seconds": step / 10, **figures})
        lines.append({"step": step, "seconds": step / 10, "validation_bits_per_byte": 1.5 * loss})
    return lines


def write_run(folder: Path, config: RunConfig | FineTuneConfig | None = None, /, **changes: Any) -> Path:
    """A run folder; `changes` are fields of run.json. A result makes it a finished one."""
    config = causal() if config is None else config
    folder.mkdir(parents=True)
    record = {
        "kind": config.kind,
        "config": config_to_dict(config),
        "dtype": "float32",
        "decided": {},
        "corpus": {"name": "code.txt", "sha256": "0" * 64, "bytes": {"train": 9000, "validation": 1000}},
        "readers": {},
        "notes": ["a note"],
        "prices": {},
        "versions": {"python": "3.11", "asterism": "0.1.0"},
        "machine": {"processor": "a processor", "instruction_set": "avx2"},
        "result": None,
        **changes,
    }
    (folder / "run.json").write_text(json.dumps(seal(record)))
    write_lines(folder / "history.jsonl", history())
    return folder


def finished(folder: Path, **changes: Any) -> Path:
    """A finished run on bytes, with a model."""
    result = {
        "parameters": 4456,
        "steps": 40,
        "minutes": 0.5,
        "notes": ["a note", "another"],
        "validation_bits_per_byte": 2.5,
        "validation_bytes": 1000,
        "baselines": {"zlib": 3.25},
    }
    write_run(folder, **{"result": result, "peak_memory": 10**9, **changes})
    write_model(folder / "model")
    return folder


def write_model(folder: Path, **fields: Any) -> None:
    """A model folder: a configuration, and weights of zeros."""
    folder.mkdir(parents=True)
    shape = {"model_type": "asterism", "mixers": MODEL.mixers, "hidden_size": 8, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps({**shape, "num_attention_heads": 2, **fields}))
    save_file({name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}, folder / "model.safetensors")


def tuned(folder: Path, task: str, data: Path, predictions: list[dict[str, Any]], **changes: Any) -> Path:
    """A finished fine-tuning on the data in a file, with its predictions."""
    config = FineTuneConfig(task=task, model="encoder", data=str(data), batch_size=4, steps=40, **changes)
    digest = hashlib.sha256(hashlib.sha256(data.read_bytes()).digest()).hexdigest()
    result = {"steps": 40, "minutes": 0.5, "parameters": 7, "notes": [], "validation_examples": len(predictions)}
    result |= {"metric": "accuracy", "scores": {"accuracy": 0.5}, "baselines": {"most frequent": {"accuracy": 0.25}}}
    corpus = {"name": str(data), "sha256": digest, "examples": {"train": 8, "validation": len(predictions)}}
    write_run(folder, config, result=result, corpus=corpus, decided={"length": 32})
    write_lines(folder / "predictions.jsonl", predictions)
    return folder


def write_lines(path: Path, records: list[Any]) -> Path:
    """A file with a JSON document in each line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
