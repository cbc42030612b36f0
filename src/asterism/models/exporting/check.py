"""Compares an exported model with the model that it was made from: its logits in transformers, without Asterism."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from asterism.errors import CheckpointError
from asterism.memory import machine_memory
from asterism.models.exporting import alone

TOLERANCE = 1e-5
"""The largest difference of a logit, in units of the largest one, or of 1 if that is larger."""

_NUMBERS = 2**25
"""Logits of a row that are compared at most; of large vocabularies not every column is looked at."""


@dataclass(frozen=True)
class Checked:
    """How the written model compares: largest difference of a logit, by the attention of transformers.

    tokens   columns of each of three rows: one without padding, one with it on the right, one with it on the left
    dtype    that of the computation; eager attention is computed in float32
    """

    tokens: int
    dtype: str
    errors: dict[str, float]


def dtype_for(parameters: int) -> torch.dtype:
    """float64 where a model of so many parameters fits into memory with room for what it computes, else float32."""
    return torch.float64 if 3 * 8 * parameters < machine_memory() else torch.float32


def inputs_for(vocabulary: int, window: int, padding: int) -> dict[str, torch.Tensor]:
    """The inputs int64 of both models: three rows of tokens [3, N], longer than the window also where they are padded.

    `input_ids` and `attention_mask` are [3, N], and `keep` [K] are the columns whose logits are compared.
    """
    n = window + window // 4 + 24
    short = window // 8 + 3
    ids = torch.randint(vocabulary, (3, n), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, n, dtype=torch.int64)
    mask[1, n - short :] = 0
    mask[2, :short] = 0
    most = max(16, _NUMBERS // vocabulary)
    keep = torch.arange(n) if n <= most else torch.linspace(0, n - 1, most).round().long()
    return {"input_ids": ids.where(mask.bool(), torch.tensor(padding)), "attention_mask": mask, "keep": keep}


def expected(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits [B, K, V] of the model as it is here, in the dtype of its weights, for `inputs_for` int64 [B, N]."""
    return alone.logits_of(model.eval(), **inputs)


def compare(folder: Path, kind: str, inputs: dict[str, torch.Tensor], wanted: torch.Tensor) -> Checked:
    """Load a written folder by the class `kind` of transformers in a new process, and compare its logits.

    `wanted` are the logits [B, K, V] of the model, float64 or float32, for `inputs` int64 [B, N] of `inputs_for`.

    Raises CheckpointError where they differ, where weights are missing or left over, and where it cannot be loaded.
    """
    found, told = _in_a_process(folder, kind, inputs, str(wanted.dtype).removeprefix("torch."))
    if imported := json.loads(told["imported"]):
        raise CheckpointError("check-not-alone", f"the check loaded {imported[0]}, so it shows nothing; report this")
    if lacks := {name: keys for name, keys in json.loads(told["keys"]).items() if keys}:
        name, keys = next(iter(lacks.items()))
        raise CheckpointError(
            "exported-weights-differ", f"{kind} has {len(keys)} {name.replace('_', ' ')}, such as {keys[0]}"
        )
    real = inputs["attention_mask"][:, inputs["keep"]].bool()
    scale = max(1.0, wanted[real].abs().max().item())
    errors = {name: (one - wanted)[real].abs().max().item() / scale for name, one in found.items()}
    for name, error in errors.items():
        if not error < TOLERANCE:  # nor for NaN
            raise CheckpointError(
                "exported-logits-differ",
                f"{kind} with {name} attention computes other logits than the model: they differ by {error:.2g} of the"
                f" largest, and {TOLERANCE:g} is allowed; nothing was written",
            )
    return Checked(inputs["input_ids"].shape[1], str(wanted.dtype).removeprefix("torch."), errors)


def _in_a_process(
    folder: Path, kind: str, inputs: dict[str, torch.Tensor], dtype: str
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with tempfile.TemporaryDirectory() as between:
        given, output = Path(between) / "inputs.safetensors", Path(between) / "output.safetensors"
        save_file(inputs, given, metadata={"class": kind, "dtype": dtype})
        run_alone(Path(alone.__file__), folder, given, output)
        with safe_open(output, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def run_alone(script: Path, exported: Path, given: Path, output: Path) -> None:
    """Run a script in a new process without Asterism, from one file to another. Raises CheckpointError if it fails."""
    words = [sys.executable, "-P", str(script), str(exported), str(given), str(output)]
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if ended.returncode != 0 or not output.exists():
        told = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode} (out of memory?)"]
        raise CheckpointError("export-not-loaded", f"the export cannot be run without Asterism: {told[-1]}")
