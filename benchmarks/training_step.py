"""Memory and time of one training step of an encoder at growing length, ours next to BERT and Hugging Face's BigBird.

    python benchmarks/training_step.py benchmarks/results/<device>-training-step.json

Two layers of the published base size (hidden size 768, 12 heads), batch 1, float32, AdamW, no dropout, one thread; each
figure comes from a process of its own. Time is processor time. Also draws a picture beside the file, and times a layer
of Fourier mixing next to layers of attention.
"""

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import BertConfig, BertModel, BigBirdConfig, BigBirdModel

from asterism.bench.machine import describe
from asterism.bench.memory import extra_bytes
from asterism.layers import FourierMixing, SparseAttention
from asterism.models import AsterismConfig, AsterismModel

LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 65_536)
BUDGET = 8 * 2**30
WIDTH, HEADS, LAYERS = 768, 12, 2
SIZES = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 4 * WIDTH,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def ours(mixers: str, positions: int) -> AsterismModel:
    """In the manner of BERT."""
    manner = {"block": "post_norm", "embedding_norm": True, "hidden_act": "gelu", "initializer_range": 0.02}
    return AsterismModel(AsterismConfig(mixers=mixers, max_position_embeddings=positions, **manner, **SIZES))


def bert(implementation: str, positions: int) -> BertModel:
    fields = {"attn_implementation": implementation, "max_position_embeddings": positions}
    return BertModel(BertConfig(**fields, **NO_DROPOUT, **SIZES), add_pooling_layer=False)


def bigbird(positions: int) -> BigBirdModel:
    fields = {"attention_type": "block_sparse", "max_position_embeddings": positions}
    return BigBirdModel(BigBirdConfig(**fields, **NO_DROPOUT, **SIZES), add_pooling_layer=False)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "Asterism, bigbird(block=64)": partial(ours, "bigbird(block=64)"),
    "Asterism, fourier()": partial(ours, "fourier()"),
    "BERT, eager": partial(bert, "eager"),
    "BERT, SDPA": partial(bert, "sdpa"),
    "Hugging Face BigBird": bigbird,
}
"""Models that take so many tokens at most."""

WARM_UP = 1024
"""Tokens of the step before the timed one: after one of 704 or less, Hugging Face's BigBird stays dense for good."""
MOST = {"bytes": 18 * 2**30, "seconds": 300.0}
"""What a step may take."""

MIXERS: dict[str, Callable[[], nn.Module]] = {
    "Fourier mixing": FourierMixing,
    "dense attention": lambda: SparseAttention(WIDTH, HEADS, "dense()"),
    "bigbird(block=64)": lambda: SparseAttention(WIDTH, HEADS, "bigbird(block=64)"),
}


def step(name: str, length: int) -> dict[str, float]:
    """Peak bytes beyond weights, gradients and optimiser state, and seconds, of a step after a short one."""
    torch.manual_seed(0)
    model = MODELS[name](length).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def once(tokens: int) -> None:
        model(input_ids=torch.arange(tokens)[None] % 64).last_hidden_state.square().mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    once(min(length, WARM_UP))
    gc.collect()
    seconds = []

    def timed() -> None:
        began = time.process_time()
        once(length)
        seconds.append(time.process_time() - began)

    return {"bytes": extra_bytes(timed, "cpu"), "seconds": seconds[0]}


@torch.no_grad()
def layer(name: str, length: int) -> dict[str, float]:
    """Seconds of a layer, forward: the least of five."""
    torch.manual_seed(0)
    mixer, hidden = MIXERS[name]().eval(), torch.randn(1, length, WIDTH)
    seconds = []
    for _ in range(6):
        began = time.process_time()
        mixer(hidden)
        seconds.append(time.process_time() - began)
    return {"seconds": min(seconds[1:])}


def alone(what: str, name: str, length: int) -> dict[str, float] | None:
    """The figures of `step` or `layer`, in a process of its own; None if it fails."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, what, name, str(length)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def measure() -> list[dict[str, Any]]:
    """All rows; a step that would take too much memory or time, growing as it did, is left out."""
    rows = []
    for name in MODELS:
        known: list[tuple[int, dict[str, float]]] = []
        for length in LENGTHS:
            fits = all(predicted(known, length, what) < most for what, most in MOST.items())
            figures = alone("step", name, length) if fits else None
            rows.append({"what": "step", "name": name, "length": length, "figures": figures})
            known += [(length, figures)] if figures else []
            print(rows[-1], file=sys.stderr)
    for name in MIXERS:
        for length in LENGTHS[:-2]:
            rows.append({"what": "layer", "name": name, "length": length, "figures": alone("layer", name, length)})
    return rows


def predicted(known: list[tuple[int, dict[str, float]]], length: int, what: str) -> float:
    """Bytes or seconds at a length, growing as they did between the last two lengths."""
    if len(known) < 2:
        return 0.0
    (short, less), (long, more) = known[-2:]
    growth = math.log(more[what] / less[what]) / math.log(long / short)
    return more[what] * (length / long) ** growth


def longest(rows: list[dict[str, Any]], name: str) -> float:
    """Tokens whose step fits the budget, between the measured lengths by a power law."""
    points = [(row["length"], row["figures"]["bytes"]) for row in rows if row["name"] == name and row["figures"]]
    for (short, less), (long, more) in zip(points, points[1:], strict=False):
        if less <= BUDGET < more:
            return short * (BUDGET / less) ** (math.log(long / short) / math.log(more / less))
    return float("nan") if points[0][1] > BUDGET else float(points[-1][0])


def report(rows: list[dict[str, Any]]) -> None:
    """The tables of the README."""
    print(f"{'one training step':<30}" + "".join(f"{length:>20,}" for length in LENGTHS))
    for name in MODELS:
        cells = [row["figures"] for row in rows if row["what"] == "step" and row["name"] == name]
        told = [
            "-" if x is None else f"{x['bytes'] / 2**20:,.0f} MiB {x['seconds'] / n * 1e6:.0f} us"
            for x, n in zip(cells, LENGTHS, strict=True)
        ]
        print(
            f"{name:<30}" + "".join(f"{cell:>20}" for cell in told) + f"   {longest(rows, name):,.0f} tokens fit 8 GiB"
        )
    print(f"\n{'a layer, forward':<30}" + "".join(f"{length:>20,}" for length in LENGTHS[:-2]))
    times = {
        name: [row["figures"]["seconds"] for row in rows if row["what"] == "layer" and row["name"] == name]
        for name in MIXERS
    }
    for name, cells in times.items():
        print(f"{name:<30}" + "".join(f"{x * 1e3:>17.1f} ms" for x in cells))
    ratios = zip(times["dense attention"], times["Fourier mixing"], strict=True)
    print(f"{'dense over Fourier':<30}" + "".join(f"{dense / fourier:>20.1f}" for dense, fourier in ratios))


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Memory, and time for each token, against length."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    memory, pace = figure.subplots(1, 2)
    for name in MODELS:
        shown = [row for row in rows if row["what"] == "step" and row["name"] == name and row["figures"]]
        lengths = [row["length"] for row in shown]
        memory.plot(lengths, [row["figures"]["bytes"] / 2**30 for row in shown], "o-", label=name)
        pace.plot(lengths, [row["figures"]["seconds"] / row["length"] * 1e3 for row in shown], "o-", label=name)
    memory.axhline(BUDGET / 2**30, color="grey", linestyle=":")
    memory.set(title="Memory of a training step", ylabel="GiB")
    pace.set(title="Time of a training step for each token", ylabel="processor ms")
    for axes in (memory, pace):
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    memory.legend(fontsize=8)
    figure.savefig(file, dpi=120)


def main(output: Path) -> None:
    rows = measure()
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe("cpu"), "rows": rows}
    output.write_text(json.dumps(record, indent=1) + "\n")
    draw(rows, output.with_suffix(".png"))
    report(rows)


if __name__ == "__main__":
    if sys.argv[1] in ("step", "layer"):
        print(json.dumps({"step": step, "layer": layer}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
    else:
        main(Path(sys.argv[1]))
