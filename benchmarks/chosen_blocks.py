"""Blocks of keys chosen by content: how fast they are chosen and read, and what a trained model loses by them.

    python benchmarks/chosen_blocks.py speed benchmarks/results/chosen_blocks.json
    python benchmarks/chosen_blocks.py losses benchmarks/results/chosen_blocks.json smollm2 texts/long.jsonl \\
        --picture docs/images/chosen_blocks.svg

`speed`: attention alone, 64 features a head, float32: dense, `window(left=1023)` and 1,024 chosen keys, forward and in
training; medians of turns. The choice is that of random queries and keys, which stand nowhere near each other: for the
kernel the worst one. `losses`: SmolLM2-135M reads RFCs, with the weights and texts of benchmarks/smollm2.py, and in
every layer each query reads its own block, the first one, and those that a score ranks highest; `mass` is an oracle,
which knows how much attention each block would get. The record keeps what it has, and goes on where it stopped.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism import attend, select
from asterism.bench.machine import describe

FEATURES, KEYS = 64, 1024
LENGTHS, BLOCKS, HEADS = (32768, 131072), (32, 64, 128), ((3, 3), (9, 3))
SCORES, BUDGETS, READ = ("mass", "mean", "max", "minmax"), (256, 512), 2048
"""A text has READ tokens, and the loss is that of its second half."""
DOCUMENTS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "losses"])
    parser.add_argument("record", type=Path)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("texts", type=Path, nargs="?")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    rows = record.setdefault(arguments.part, {})

    def keep(name: str, found: dict[str, Any]) -> None:
        rows[name] = found | {"machine": describe("cpu"), "date": time.strftime("%Y-%m-%d")}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)

    if arguments.part == "speed":
        _measure_speed(keep, set(rows), arguments.turns)
    else:
        _measure_losses(keep, set(rows), arguments.model, arguments.texts)
    if arguments.picture:
        draw(record["losses"], arguments.picture)


# --- speed ------------------------------------------------------------------------------------------------------------


def _measure_speed(keep: Callable[[str, dict[str, Any]], None], done: set[str], turns: int) -> None:
    for length in LENGTHS:
        for heads, key_heads in HEADS:
            name = f"{length} tokens, {heads} heads, {key_heads} of keys"
            if name not in done:
                keep(name, _speeds(length, heads, key_heads, turns))


def _speeds(length: int, heads: int, key_heads: int, turns: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(1, each, length, FEATURES, generator=generator) for each in (heads, key_heads, key_heads, heads)
    )
    calls: dict[str, Callable[[], object]] = {}
    pairs: dict[str, int] = {"window": length * KEYS - KEYS * (KEYS - 1) // 2}

    def add(name: str, pattern: str, **options: Any) -> None:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]

        def forward() -> None:
            with torch.no_grad():
                attend(q, k, v, pattern, **options)

        calls[f"{name} forward"] = forward
        calls[f"{name} training"] = lambda: torch.autograd.grad(attend(*leaves, pattern, **options), leaves, grad)

    add("window", f"window(left={KEYS - 1})")
    for block in BLOCKS:
        pattern = f"selected(block={block}, topk={KEYS // block}) & causal()"
        choice = select(q, k, pattern)
        pairs[f"blocks of {block}"] = _pairs(choice.indices, block)
        calls[f"blocks of {block} choosing"] = lambda pattern=pattern: select(q, k, pattern)
        add(f"blocks of {block}", pattern, choice=choice)
    seconds = _in_turns(calls, turns)
    if length < 2**17:  # of the longest, dense training takes many minutes
        add("dense", "causal()")
        seconds |= _in_turns({name: call for name, call in calls.items() if name.startswith("dense")}, 1)
    found: dict[str, Any] = {"seconds": seconds, "keys per query": {n: p / length for n, p in pairs.items()}}
    found["time per pair, of the window's"] = {
        f"{name} {step}": seconds[f"{name} {step}"] / pairs[name] / (seconds[f"window {step}"] / pairs["window"])
        for name in pairs
        if name != "window"
        for step in ("forward", "training")
    }
    return found


def _pairs(indices: Tensor, block: int) -> int:
    """Pairs of one head, of a choice int32 [1, heads, N, K]: all of a block before the query's own, and its part of
    that."""
    own = torch.arange(indices.shape[2], dtype=torch.int32)[:, None]
    before = ((indices >= 0) & (indices < own // block)).sum().item() * block
    return int(before / indices.shape[1]) + int((own % block + 1).sum())


def _in_turns(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median seconds of each, which take turns, after one call that is not timed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn or turns == 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) for name, some in times.items()}


# --- losses -----------------------------------------------------------------------------------------------------------


class _Attention:
    """What transformers calls in each layer, by the pattern and the score that are set."""

    pattern, score = "causal()", ""

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: object, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        choice = None
        if self.score == "mass":
            block = int(self.pattern.partition("block=")[2].partition(",")[0])
            choice = select(q, k, self.pattern, scores=_mass(q, k, scaling, block))
        out = attend(q, k, v, self.pattern, scale=scaling, choice=choice)
        return out.transpose(1, 2), None


def _mass(q: Tensor, k: Tensor, scale: float, block: int) -> Tensor:
    """The attention that each query gives each block, [1, key heads, N, blocks], summed over a group of heads."""
    length, group = q.shape[2], q.shape[1] // k.shape[1]
    place = torch.arange(length)
    scores = q.unflatten(1, (-1, group)) @ k[:, :, None].transpose(-1, -2) * scale
    weights = scores.masked_fill(place > place[:, None], -torch.inf).softmax(dim=-1).sum(dim=2)
    return torch.nn.functional.pad(weights, (0, -length % block)).unflatten(-1, (-1, block)).sum(dim=-1)


def _measure_losses(keep: Callable[[str, dict[str, Any]], None], done: set[str], model: Path, texts: Path) -> None:
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.masking_utils import AttentionMaskInterface

    attention = _Attention()
    AttentionInterface.register("chosen_blocks", attention)
    AttentionMaskInterface.register("chosen_blocks", lambda *_, **__: None)
    tokenizer = AutoTokenizer.from_pretrained(model)
    read: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="chosen_blocks")
    rows = [json.loads(line)["text"] for line in texts.read_text().splitlines()[:DOCUMENTS]]
    ids = [tokenizer(text, return_tensors="pt").input_ids[:, :READ] for text in rows]

    def measure(name: str, pattern: str, score: str = "") -> None:
        if name in done:
            return
        attention.pattern, attention.score = pattern, score
        keep(name, {"nats": [_loss(read.eval(), row) for row in ids]})

    measure("dense", "causal()")
    for keys in BUDGETS:
        measure(f"sinks, {keys} keys", f"sinks(first=4, window={keys - 4})")
        for score in SCORES:
            for block in (16, *BLOCKS):
                kind = "given" if score == "mass" else score
                pattern = f"selected(block={block}, topk={keys // block}, score='{kind}') & causal()"
                measure(f"{score}, blocks of {block}, {keys} keys", pattern, score)


@torch.no_grad()
def _loss(model: Any, ids: Tensor) -> float:
    """Nats per token of the second half."""
    logits = model(ids, use_cache=False).logits[0, READ // 2 - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, ids[0, READ // 2 :]))


def draw(rows: dict[str, Any], path: Path) -> None:
    """The mean loss against the size of blocks, a line for each score, a panel for each number of keys."""
    from matplotlib.figure import Figure

    means = {name: statistics.mean(row["nats"]) for name, row in rows.items()}
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    blocks = [16, *BLOCKS]
    for panel, keys in zip(figure.subplots(1, len(BUDGETS), sharey=True), BUDGETS, strict=True):
        for score, label in zip(SCORES, ("attention itself", "mean", "max", "min and max"), strict=True):
            panel.plot(blocks, [means[f"{score}, blocks of {b}, {keys} keys"] for b in blocks], marker="o", label=label)
        panel.axhline(means[f"sinks, {keys} keys"], color="grey", linestyle=":", label="first and latest keys")
        panel.axhline(means["dense"], color="black", linestyle="--", label="all keys")
        panel.set_xscale("log", base=2)
        panel.set_xticks(blocks, [str(b) for b in blocks])
        panel.set(title=f"{keys} keys per query", xlabel="keys in a block")
    figure.axes[0].set_ylabel("nats per token")
    figure.axes[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
