"""Answers that share a prompt: one row that is a tree, against a row for each answer and against a mask of n x n.

    python benchmarks/trees.py benchmarks/results/trees.json [--answers 8 64] [--prompt 2048] [--answer 256]

The model is Llama-like, without a head. "alone" runs each prompt with its answer by itself, by PyTorch's attention;
"mask" runs the tree's row by PyTorch's attention under a boolean mask [tokens, tokens]; "tree" runs it by ours. A step
is a forward pass, or one with the gradients of the squared states of all answers. Each runs in a process of its own,
one thread unless OMP_NUM_THREADS says otherwise, after a short call; contenders take turns, and the median counts.
"plan" is the time to compile the plans of trees and of documents of as many tokens.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from native import _processor

CONTENDERS = ("alone", "mask", "tree")
STEPS = ("forward", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--answers", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--answer", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20.0, help="gigabytes that a process may take")
    parser.add_argument("--one", nargs=3, metavar=("ANSWERS", "CONTENDER", "STEP"), help="measure this, print it")
    arguments = parser.parse_args()
    if arguments.one:
        answers, contender, step = arguments.one
        print(json.dumps(_measure(int(answers), contender, step, arguments)))
        return
    plans = _plans()
    rows = [_row(answers, step, arguments) for answers in arguments.answers for step in arguments.steps]
    machine = {"processor": _processor(), "threads": int(os.environ.get("OMP_NUM_THREADS", "1"))}
    names = ("prompt", "answer", "layers", "width")
    document = {
        "date": str(date.today()),
        "machine": machine | {"torch": torch.__version__},
        **{name: getattr(arguments, name) for name in names},
        "plans": plans,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


def _row(answers: int, step: str, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.contenders}
    for _ in range(arguments.turns):
        for name, turns in found.items():
            if not (turns and "failed" in turns[-1]):
                turns.append(_run(answers, name, step, arguments))
    row: dict[str, Any] = {"answers": answers, "step": step, "turns": arguments.turns}
    for name, turns in found.items():
        good = [turn for turn in turns if "failed" not in turn]
        row[name] = {key: statistics.median(turn[key] for turn in good) for key in good[0]} if good else turns[-1]
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _run(answers: int, contender: str, step: str, arguments: argparse.Namespace) -> dict[str, Any]:
    limit = int(arguments.limit * 2**30)
    command = [sys.executable, __file__, os.devnull, "--one", str(answers), contender, step]
    for name in ("prompt", "answer", "layers", "width"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1"} | os.environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode < 0 or "alloc" in done.stderr:  # the system ends what takes more than it has
        return {"failed": f"more than {arguments.limit:g} GB"}
    return {"failed": done.stderr.splitlines()[-1]}


def _measure(answers: int, contender: str, step: str, arguments: argparse.Namespace) -> dict[str, float]:
    model = _model(arguments.layers, arguments.width)
    _call(model, *_rows(2, 64, 32), contender, step)  # kernels are built and imported
    model.zero_grad()
    rows, prompt = _rows(answers, arguments.prompt, arguments.answer)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    loss = _call(model, rows, prompt, contender, step)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": after.ru_maxrss / 1024, "loss": loss}


def _rows(answers: int, prompt: int, answer: int) -> tuple[list[np.ndarray], int]:
    draw = np.random.Generator(np.random.Philox(0))
    shared = draw.integers(3, 1000, prompt)
    return [np.concatenate([shared, [number], draw.integers(3, 1000, answer - 1)]) for number in range(answers)], prompt


def _call(model: Any, rows: list[np.ndarray], prompt: int, contender: str, step: str) -> float:
    """The sum of the squared states of all answers."""
    total = 0.0
    with torch.set_grad_enabled(step == "training"):
        for states in _states(model, rows, prompt, contender):
            loss = states.square().sum()
            if step == "training":
                loss.backward()
            total += loss.item()
    return total


def _states(model: Any, rows: list[np.ndarray], prompt: int, contender: str) -> Any:
    """The states of answers: of one row after another, or of all at once."""
    from asterism.models import tree_of, use_pattern
    from asterism.patterns import tree

    if contender == "alone":
        model.set_attn_implementation("sdpa")
        for row in rows:
            yield model(torch.from_numpy(row)[None], use_cache=False)[0][0, prompt:]
        return
    packed = tree_of(rows)
    given: dict[str, Any] = {"position_ids": packed.position_ids, "use_cache": False}
    if contender == "tree":
        use_pattern(model, packed.pattern())
    else:
        model.set_attn_implementation("sdpa")
        mask = tree(packed.parents).dense(packed.input_ids.shape[1])
        given["attention_mask"] = torch.from_numpy(mask)[None]
    yield model(packed.input_ids, **given)[0][0, packed.index[:, prompt:]]


def _model(layers: int, width: int) -> Any:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": max(1, width // 128)}
    config = LlamaConfig(
        vocab_size=1000, hidden_size=width, num_hidden_layers=layers, intermediate_size=width * 8 // 3, **heads
    )
    return LlamaModel(config).train()


def _plans() -> list[dict[str, Any]]:
    """CPU seconds to make a pattern and its plan, of about 100,000 tokens."""
    from asterism import clear_caches, compile_pattern, patterns
    from asterism.patterns import documents, parents_in_row, tree

    def branching(prompt: int, answers: int, answer: int) -> list[int]:
        found = list(range(-1, prompt - 1))
        for _ in range(answers):
            found += [prompt - 1, *range(len(found), len(found) + answer - 1)]
        return found

    rows = []
    for count, prompt, answers, answer in ((24, 2000, 8, 260), (6, 2000, 60, 251), (1, 2000, 391, 251)):
        parents = branching(prompt, answers, answer) * count
        size = len(parents) // count
        parents = parents_in_row(parents, range(0, len(parents) + 1, size))
        lengths = np.random.Generator(np.random.Philox(1)).integers(1000, 4000, len(parents) // 2500).tolist()
        makers = {
            "tree": lambda parents=parents: tree(parents),
            "documents": lambda lengths=lengths: documents(patterns.causal(), *lengths),
        }
        row: dict[str, Any] = {"trees": count, "prompt": prompt, "answers": answers, "tokens": len(parents)}
        for name, make in makers.items():
            times = []
            for _ in range(3):
                clear_caches()
                start = time.process_time()
                compile_pattern(make(), len(parents) if name == "tree" else sum(lengths))
                times.append(time.process_time() - start)
            row[name] = statistics.median(times)
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
