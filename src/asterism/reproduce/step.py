"""Seconds and peak memory of one training step of an encoder, measured in a process of its own."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from asterism.bench.memory import extra_bytes
from asterism.errors import AsterismError
from asterism.reproduce.experiment import Figures
from asterism.system import run_module

SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_TIMED = 3


def training_step(mixers: str, implementation: str, length: int, seed: int = 0) -> Figures:
    """Seconds of a step with one row of `length` tokens, float32, and peak bytes beyond what is there before it.

    The least of three steps, after one that loads what is loaded once. Raises AsterismError with what the process
    printed if it fails, as for lack of memory. Linux only, where the system knows the peak.
    """
    asked = {"mixers": mixers, "implementation": implementation, "length": length, "seed": seed}
    asked["threads"] = torch.get_num_threads()
    # With a fixed threshold freed arrays go back to the system at once and cannot hide what the next call takes.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": str(asked["threads"])}
    done = run_module(__name__, asked, environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise AsterismError("reproduce-step", f"a step of {mixers} with {length:,} tokens: {last}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measure(mixers: str, implementation: str, length: int, seed: int, threads: int) -> Figures:
    from asterism.models import AsterismConfig, AsterismModel

    torch.set_num_threads(threads)
    torch.manual_seed(seed)  # of this process, which measures and ends
    config = AsterismConfig(**SHAPE, mixers=mixers, implementation=implementation, max_position_embeddings=length)
    model = AsterismModel(config).train()
    seconds = []

    def step(tokens: int) -> None:
        began = time.perf_counter()
        model(input_ids=torch.arange(tokens)[None] % 256).last_hidden_state.square().mean().backward()
        seconds.append(time.perf_counter() - began)

    step(min(length, 256))
    seconds.clear()
    peaks = [extra_bytes(lambda: step(length), "cpu") for _ in range(_TIMED)]
    return {"seconds": min(seconds), "bytes": float(max(peaks))}


def main(asked: Mapping[str, Any]) -> None:
    """Print the figures of a request of `training_step`, as JSON."""
    print(json.dumps(_measure(**asked)))
