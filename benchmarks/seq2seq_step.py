"""One training step of an encoder-decoder at growing source length: ours, Hugging Face's BigBirdPegasus, dense BART.

    python benchmarks/seq2seq_step.py benchmarks/results/<device>-seq2seq-step.json [--lengths 1024 2048] [--rounds 3]

Two layers of each stack in the size of BigBird-Pegasus base (hidden size 768, 12 heads, 3,072 inside the feed-forward
layers), a small vocabulary, a target of 256 tokens, batch 1, no dropout, AdamW. A step is forward, backward, and the
optimiser's. In bfloat16 it runs under autocast, weights in float32. Times are medians of contenders that take turns,
after a step that is not counted; one whose first step takes longer than --patience has that step only. Memory is what a
step takes at its peak beyond weights, gradients and state of the optimiser, in a process of its own. What memory is
expected to reach beyond MOST_BYTES, growing as it did, is left out. About ten minutes on two cores; also draws a
picture beside the file.
"""

import argparse
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
)

from asterism.bench.clock import TimedCall, in_turns
from asterism.bench.machine import describe
from asterism.bench.memory import extra_bytes
from asterism.models import AsterismConfig, AsterismForConditionalGeneration

LENGTHS = (1024, 2048, 4096, 8192, 16_384)
TARGET = 256
WIDTH, HEADS, LAYERS, VOCABULARY, BLOCK = 768, 12, 2, 1024, 64
DTYPES = ("float32", "bfloat16")
MOST_BYTES = 12 * 2**30

_THEIRS = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    **{f"{stack}_layers": LAYERS for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": HEADS for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 4 * WIDTH for stack in ("encoder", "decoder")},
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def ours(positions: int) -> AsterismForConditionalGeneration:
    """In the manner of BigBird-Pegasus, as its checkpoints are imported."""
    blocks = f"block={BLOCK}, window=3, random=3, globals=(0, -1)"
    return AsterismForConditionalGeneration(
        AsterismConfig(
            mixers=[f"bigbird({blocks}, seed={layer}, heads={HEADS})" for layer in range(LAYERS)],
            decoder_mixers="causal()",
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS,
            attention_bias=False,
            hidden_act="gelu_new",
            initializer_range=0.02,
            embedding_scale=math.sqrt(WIDTH),
            tie_word_embeddings=True,
            max_position_embeddings=positions,
            pad_token_id=0,
            decoder_start_token_id=2,
        )
    )


def bigbird_pegasus(positions: int) -> BigBirdPegasusForConditionalGeneration:
    fields = {"attention_type": "block_sparse", "block_size": BLOCK, "max_position_embeddings": positions}
    return BigBirdPegasusForConditionalGeneration(BigBirdPegasusConfig(**fields, **_THEIRS))


def bart(positions: int) -> BartForConditionalGeneration:
    fields = {"attn_implementation": "sdpa", "max_position_embeddings": positions}
    return BartForConditionalGeneration(BartConfig(**fields, **_THEIRS))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "Asterism, bigbird(block=64)": ours,
    "Hugging Face BigBirdPegasus": bigbird_pegasus,
    "BART, dense, SDPA": bart,
}
"""Models of sources of so many tokens."""

WARM_UP = 1024
"""Tokens of the step before the one whose memory is measured: after one of 704 or less, Hugging Face's stays dense."""


def stepper(name: str, positions: int, dtype: str) -> Callable[[int], None]:
    """One training step of the named model on a source of so many tokens."""
    torch.manual_seed(0)
    model = MODELS[name](positions).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    labels = torch.arange(3, 3 + TARGET)[None]

    def step(tokens: int) -> None:
        source = 3 + torch.arange(tokens)[None] % (VOCABULARY - 3)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(input_ids=source, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    return step


def peak(name: str, length: int, dtype: str) -> int:
    """Bytes of a step, after a short one, beyond what is held between steps."""
    step = stepper(name, length, dtype)
    step(min(length, WARM_UP))
    gc.collect()
    return extra_bytes(partial(step, length), "cpu")


def times(names: Sequence[str], length: int, dtype: str, rounds: int, patience: float) -> dict[str, list[float]]:
    """Seconds of the steps of each."""
    tasks = {name: TimedCall(partial(stepper(name, length, dtype), length), "cpu") for name in names}
    for task in tasks.values():
        task.warm_up(patience)
    in_turns(list(tasks.values()), rounds, patience)
    return {name: task.seconds for name, task in tasks.items()}


def alone(*request: Any) -> Any:
    """What `peak` or `times` gives for a request, in a process of its own; None if it fails."""
    # With a fixed threshold freed arrays go back to the system at once and cannot hide what the next step takes.
    fixed = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"} if request[0] == "peak" else {}
    command = [sys.executable, __file__, "--answer", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | fixed)
    if done.returncode:
        print(f"{request} failed: {done.stderr.splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def peaks(name: str, dtype: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each length; what is expected to take too much is said to be cut, with what was expected."""
    rows: list[dict[str, Any]] = []
    for length in lengths:
        row: dict[str, Any] = {"name": name, "dtype": dtype, "length": length, "seconds": []}
        expected = predicted([(row["length"], row["bytes"]) for row in rows if row["bytes"]], length)
        is_cut = expected > MOST_BYTES
        row["bytes"] = None if is_cut else alone("peak", name, length, dtype)
        rows.append(row | ({"cut_at_bytes": round(expected)} if is_cut else {}))
    return rows


def predicted(known: Sequence[tuple[int, int]], length: int) -> float:
    """Bytes at a length, growing as they did between the last two lengths."""
    if len(known) < 2:
        return 0.0
    (short, less), (long, more) = known[-2:]
    return more * (length / long) ** (math.log(more / less) / math.log(long / short))


def measure(lengths: Sequence[int], rounds: int, patience: float) -> list[dict[str, Any]]:
    """All rows: first memory, two processes at a time, which do not disturb each other; then time, one at a time."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda case: peaks(*case, lengths), product(MODELS, DTYPES))
        rows = [row for part in found for row in part]
    for dtype, length in product(DTYPES, lengths):
        here = [row for row in rows if (row["dtype"], row["length"]) == (dtype, length)]
        fitting = [row["name"] for row in here if row["bytes"]]
        seconds = alone("times", fitting, length, dtype, rounds, patience) or {}
        for row in here:
            row["seconds"] = seconds.get(row["name"], [])
        print(dtype, length, {name: f"{middle(found):.2f} s" for name, found in seconds.items()}, file=sys.stderr)
    return rows


def middle(seconds: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(seconds)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def report(rows: list[dict[str, Any]]) -> None:
    """The table of the README: median seconds and peak memory."""
    lengths = sorted({row["length"] for row in rows})
    print("| one training step | dtype | " + " | ".join(f"{length:,}" for length in lengths) + " |")
    print("|---" * (len(lengths) + 2) + "|")
    for dtype, name in product(DTYPES, MODELS):
        cells = [_cell(row) for row in rows if (row["name"], row["dtype"]) == (name, dtype)]
        print(f"| {name} | {dtype} | " + " | ".join(cells) + " |")


def _cell(row: dict[str, Any]) -> str:
    if not row["bytes"]:
        return f"(about {row['cut_at_bytes'] / 2**30:.0f} GiB)" if "cut_at_bytes" in row else "failed"
    time = f"{middle(row['seconds']):.2f} s" if row["seconds"] else "-"
    return f"{time}, {row['bytes'] / 2**20:,.0f} MiB"


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Memory and time against the length of the source; bfloat16 dashed."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    memory, time = figure.subplots(1, 2)
    for (number, name), dtype in product(enumerate(MODELS), DTYPES):
        shown = [row for row in rows if (row["name"], row["dtype"]) == (name, dtype) and row["bytes"]]
        style = {"color": f"C{number}", "linestyle": "-" if dtype == "float32" else "--", "marker": "o"}
        label = f"{name}, {dtype}"
        memory.plot([row["length"] for row in shown], [row["bytes"] / 2**30 for row in shown], label=label, **style)
        timed = [row for row in shown if row["seconds"]]
        time.plot([row["length"] for row in timed], [middle(row["seconds"]) for row in timed], label=label, **style)
    memory.set(title="Memory of a training step", ylabel="GiB")
    time.set(title="Time of a training step", ylabel="seconds")
    lengths = sorted({row["length"] for row in rows})
    for axes in (memory, time):
        axes.set(xscale="log", yscale="log", xlabel="tokens of the source (target: 256)")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    memory.set_yticks([2.0**power for power in range(-3, 4)], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    time.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    figure.legend(*time.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(file, dpi=120)


def main(arguments: argparse.Namespace) -> None:
    rows = measure(arguments.lengths, arguments.rounds, arguments.patience)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "threads": torch.get_num_threads(),
        "sizes": {"hidden_size": WIDTH, "heads": HEADS, "layers_of_each_stack": LAYERS, "target": TARGET, "batch": 1},
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    draw(rows, arguments.output.with_suffix(".png"))
    report(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, help="a JSON file for the results")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the source, growing")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each contender that are timed")
    parser.add_argument("--patience", type=float, default=15.0, help="seconds of steps of a contender at a length")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        question, *asked = json.loads(sys.argv[2])
        print(json.dumps({"peak": peak, "times": times}[question](*asked)))
    else:
        main(_arguments())
