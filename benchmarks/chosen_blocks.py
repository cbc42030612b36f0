"""Blocks of keys chosen by content: how fast they are chosen and read, and what a trained model loses by them.

    python benchmarks/chosen_blocks.py speed benchmarks/results/chosen_blocks.json
    MALLOC_MMAP_THRESHOLD_=65536 python benchmarks/chosen_blocks.py memory benchmarks/results/chosen_blocks.json
    python benchmarks/chosen_blocks.py losses benchmarks/results/chosen_blocks.json smollm2 texts/long.jsonl \\
        --picture docs/images/chosen_blocks.svg
    python benchmarks/chosen_blocks.py distil benchmarks/results/chosen_blocks.json smollm2 texts/long.jsonl \\
        --learn texts/train.jsonl --branches branches.pt --picture docs/images/chosen_blocks.svg

`speed`: attention alone, 64 features a head, float32: dense, `window(left=1023)` and 1,024 chosen keys, forward and in
training; medians of turns. The choice is that of random queries and keys, which stand nowhere near each other: for the
kernel the worst one. `memory`: the most that training takes beyond q, k and v, with the output, the choice and the
gradients; the threshold has the C library give back what is freed. `losses`: SmolLM2-135M reads RFCs, with the weights
and texts of benchmarks/smollm2.py, and in every layer each query reads its own block, the first one, and those that a
score ranks highest; `mass` is an oracle, which knows how much attention each block would get. `distil`: an index branch
for each layer learns that from texts, while the model stays as it is; then the model reads what these choose. The
record keeps what it has, and goes on where it stopped, and so does the file of branches.
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
from asterism.bench.memory import extra_bytes
from asterism.layers import IndexBranch, Rotary
from asterism.layers.index import Index, index_loss

FEATURES, KEYS = 64, 1024
LENGTHS, BLOCKS, HEADS = (32768, 131072), (32, 64, 128), ((3, 3), (9, 3))
SCORES, BUDGETS, READ = ("mass", "mean", "max", "minmax", "antidiagonal"), (256, 512, 1024), 2048
"""A text has READ tokens, and the loss is that of its second half."""
DOCUMENTS = 6
ROUNDS, LEARNING_RATE, WIDTH, ASKED, START = (80, 60), 3e-3, 32, 512, 0.4
"""An index branch of WIDTH features a head learns from ASKED queries in a row of each text. In the second half of each
round of texts the learning rate falls to 0. Its queries begin with START of those of the model."""
LEARNT_BLOCK, LEARNT_SCORES = 64, ("max", "mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "memory", "losses", "distil"])
    parser.add_argument("record", type=Path)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("texts", type=Path, nargs="?")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--learn", type=Path, help="texts of prompt and completion that index branches learn from")
    parser.add_argument("--branches", type=Path, help="the file that keeps them")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    rows = record.setdefault("losses" if arguments.part == "distil" else arguments.part, {})

    def keep(name: str, found: dict[str, Any]) -> None:
        rows[name] = found | {"machine": describe("cpu"), "date": time.strftime("%Y-%m-%d")}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)

    if arguments.part == "speed":
        _measure_speed(keep, set(rows), arguments.turns)
    elif arguments.part == "memory":
        _measure_memory(keep, set(rows))
    elif arguments.part == "losses":
        _measure_losses(keep, set(rows), arguments.model, arguments.texts)
    else:
        _distil(keep, set(rows), arguments)
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


def _measure_memory(keep: Callable[[str, dict[str, Any]], None], done: set[str]) -> None:
    patterns = {"window": f"window(left={KEYS - 1})"}
    patterns |= {f"blocks of {block}": f"selected(block={block}, topk={KEYS // block}) & causal()" for block in BLOCKS}

    def train(length: int, pattern: str) -> Callable[[], None]:
        generator = torch.Generator().manual_seed(0)
        q, k, v, grad = (torch.randn(1, 3, length, FEATURES, generator=generator) for _ in range(4))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        return lambda: torch.autograd.grad(attend(*leaves, pattern), leaves, grad) and None

    for length in LENGTHS:
        name = f"{length} tokens, 3 heads"
        if name not in done:
            found = {}
            for each, pattern in patterns.items():
                train(1024, pattern)()  # loads what is loaded once
                found[each] = extra_bytes(train(length, pattern), "cpu")
            keep(name, {"bytes": found, "of which output and gradients": 4 * 3 * length * FEATURES * 4})


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
    """What transformers calls in each layer, by the pattern and the score that are set.

    indices, asked  of each layer, as the model reads: its index, and its queries and keys
    """

    pattern, score = "causal()", ""

    def __init__(self) -> None:
        self.indices: dict[int, Index] = {}
        self.asked: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: object, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        choice = None
        if self.score == "mass":
            block = int(self.pattern.partition("block=")[2].partition(",")[0])
            choice = select(q, k, self.pattern, scores=_mass(q, k, scaling, block))
        elif self.score == "learn":
            self.asked[module.layer_idx] = q, k
        elif self.score.startswith("index"):
            choice = select(*self.indices[module.layer_idx], self.pattern)
        out = attend(q, k, v, self.pattern, scale=scaling, choice=choice)
        return out.transpose(1, 2), None


def _mass(q: Tensor, k: Tensor, scale: float, block: int) -> Tensor:
    """The attention that each query gives each block, [1, key heads, N, blocks], summed over a group of heads."""
    length, group = q.shape[2], q.shape[1] // k.shape[1]
    place = torch.arange(length)
    scores = q.unflatten(1, (-1, group)) @ k[:, :, None].transpose(-1, -2) * scale
    weights = scores.masked_fill(place > place[:, None], -torch.inf).softmax(dim=-1).sum(dim=2)
    return torch.nn.functional.pad(weights, (0, -length % block)).unflatten(-1, (-1, block)).sum(dim=-1)


def _read_with(attention: _Attention, model: Path) -> tuple[Any, Any]:
    """The tokenizer and the model, whose attention that is."""
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("chosen_blocks", attention)
    AttentionMaskInterface.register("chosen_blocks", lambda *_, **__: None)
    read: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="chosen_blocks")
    return AutoTokenizer.from_pretrained(model), read.eval().requires_grad_(False)


def _held_out(tokenizer: Any, texts: Path) -> list[Tensor]:
    rows = [json.loads(line)["text"] for line in texts.read_text().splitlines()[:DOCUMENTS]]
    return [tokenizer(text, return_tensors="pt").input_ids[:, :READ] for text in rows]


def _measure_losses(keep: Callable[[str, dict[str, Any]], None], done: set[str], model: Path, texts: Path) -> None:
    attention = _Attention()
    tokenizer, read = _read_with(attention, model)
    ids = _held_out(tokenizer, texts)

    def measure(name: str, pattern: str, score: str = "") -> None:
        if name in done:
            return
        attention.pattern, attention.score = pattern, score
        keep(name, {"nats": [_loss(read, row) for row in ids]})

    measure("dense", "causal()")
    for keys in BUDGETS:
        measure(f"sinks, {keys} keys", f"sinks(first=4, window={keys - 4})")
        for score in SCORES:
            for block in (16, *BLOCKS):
                kind = "given" if score == "mass" else score
                measure(f"{score}, blocks of {block}, {keys} keys", _chosen(block, keys, kind), score)


def _chosen(block: int, keys: int, score: str) -> str:
    shared = ", query_block=16" if score == "antidiagonal" else ""  # so a query knows later ones of its 16
    return f"selected(block={block}, topk={keys // block}, score='{score}'{shared}) & causal()"


@torch.no_grad()
def _loss(model: Any, ids: Tensor) -> float:
    """Nats per token of the second half."""
    logits = model(ids, use_cache=False).logits[0, READ // 2 - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, ids[0, READ // 2 :]))


# --- index branches ---------------------------------------------------------------------------------------------------


def _distil(keep: Callable[[str, dict[str, Any]], None], done: set[str], arguments: argparse.Namespace) -> None:
    """Index branches learn from the model, which then reads what they choose, also in blocks of other sizes."""
    attention = _Attention()
    tokenizer, read = _read_with(attention, arguments.model)
    branches = {score: _branches(read) for score in LEARNT_SCORES}
    hidden: dict[int, Tensor] = {}
    for layer in read.model.layers:

        def found(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            states = named["hidden_states"] if "hidden_states" in named else given[0]
            hidden[module.layer_idx] = states
            if attention.score.startswith("index"):
                branch = branches[attention.score.removeprefix("index ")][module.layer_idx]
                attention.indices[module.layer_idx] = branch(states)

        layer.self_attn.register_forward_pre_hook(found, with_kwargs=True)
    attention.score = "learn"
    texts = [json.loads(line) for line in arguments.learn.read_text().splitlines()]
    _learn(branches, read, attention, hidden, lambda text: _tokens(tokenizer, texts[text]), len(texts), arguments)
    ids = _held_out(tokenizer, arguments.texts)
    for block in (LEARNT_BLOCK, 32, 16, 128):
        for score in LEARNT_SCORES:
            for keys in BUDGETS:
                name = f"index {score}, blocks of {block}, {keys} keys"
                if name not in done:
                    attention.pattern, attention.score = _chosen(block, keys, score), f"index {score}"
                    keep(name, {"nats": [_loss(read, row) for row in ids]})


def _tokens(tokenizer: Any, text: dict[str, str]) -> Tensor:
    ids: Tensor = tokenizer(text["prompt"] + text["completion"], return_tensors="pt").input_ids[:, :READ]
    return ids


def _branches(read: Any) -> torch.nn.ModuleList:
    """An index branch for each layer. It begins with every second pair of features of the layer's own keys, and of the
    sum of the queries that share them: rotary positions turn these alike."""
    config, found = read.config, torch.nn.ModuleList()
    heads, rotary = config.num_key_value_heads, Rotary(config.rope_parameters["rope_theta"])
    own = config.head_dim
    pairs = torch.cat([torch.arange(first, first + own // 2, own // WIDTH) for first in (0, own // 2)])
    for layer in read.model.layers:
        branch = IndexBranch(config.hidden_size, heads, WIDTH, rotary=rotary)
        q, k = (side.weight.detach() for side in (layer.self_attn.q_proj, layer.self_attn.k_proj))
        of_group = q.unflatten(0, (heads, -1, own)).sum(dim=1) * START
        branch.query.load_state_dict({"weight": of_group[:, pairs].flatten(0, 1)})
        branch.key.load_state_dict({"weight": k.unflatten(0, (heads, own))[:, pairs].flatten(0, 1)})
        found.append(branch)
    return found


def _learn(
    branches: dict[str, torch.nn.ModuleList],
    read: Any,
    attention: _Attention,
    hidden: dict[int, Tensor],
    tokens: Callable[[int], Tensor],
    count: int,
    arguments: argparse.Namespace,
) -> None:
    """Steps of one text each, of which every layer's branch learns from the same stretch of queries."""
    optimisers = {score: torch.optim.Adam(each.parameters(), betas=(0.9, 0.95)) for score, each in branches.items()}
    losses: dict[str, list[float]] = {score: [] for score in branches}
    path = arguments.branches
    if path.exists():
        kept = torch.load(path, weights_only=True)
        losses = kept["losses"]
        for score in branches:
            branches[score].load_state_dict(kept[score])
            optimisers[score].load_state_dict(kept[f"optimiser {score}"])
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(count, generator=generator)[: sum(ROUNDS)].tolist()
    ends = torch.rand(sum(ROUNDS), generator=generator).tolist()
    left = [1 - step / steps for steps in ROUNDS for step in range(steps)]
    for step in range(len(losses[LEARNT_SCORES[0]]), sum(ROUNDS)):
        ids = tokens(order[step])
        with torch.no_grad():
            read.model(ids, use_cache=False)
        past = ASKED + round(ends[step] * (ids.shape[1] - ASKED))
        for score, each in branches.items():
            optimisers[score].param_groups[0]["lr"] = LEARNING_RATE * min(1, 2 * left[step])
            optimisers[score].zero_grad()
            total = 0.0
            for layer, branch in enumerate(each):
                (q, k), index = attention.asked[layer], branch(hidden[layer][:, :past])
                index = Index(index.q[:, :, -ASKED:], index.k)
                pattern = _chosen(LEARNT_BLOCK, BUDGETS[0], score)
                loss = index_loss(index, q[:, :, past - ASKED : past], k[:, :, :past], pattern).mean()
                loss.backward()
                total += loss.item() / len(each)
            optimisers[score].step()
            losses[score].append(total)
        print(step, {score: round(some[-1], 4) for score, some in losses.items()}, flush=True)
        if step % 10 == 9 or step == sum(ROUNDS) - 1:
            states = {score: each.state_dict() for score, each in branches.items()}
            states |= {f"optimiser {score}": each.state_dict() for score, each in optimisers.items()}
            torch.save(states | {"losses": losses}, path)


def draw(rows: dict[str, Any], path: Path) -> None:
    """The mean loss against the size of blocks, a line for each score, a panel for each number of keys."""
    from matplotlib.figure import Figure

    means = {name: statistics.mean(row["nats"]) for name, row in rows.items()}
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    blocks = [16, *BLOCKS]
    labels = dict(zip(SCORES, ("attention itself", "mean", "max", "min and max", "antidiagonal"), strict=True))
    labels |= {"index max": "index branch, max", "index mean": "index branch, mean"}
    for panel, keys in zip(figure.subplots(1, len(BUDGETS), sharey=True), BUDGETS, strict=True):
        for score, label in labels.items():
            points = {b: means.get(f"{score}, blocks of {b}, {keys} keys") for b in blocks}
            some = {b: mean for b, mean in points.items() if mean is not None}
            dashes = "--" if score.startswith("index") else "-"
            panel.plot(list(some), list(some.values()), dashes, marker="o", label=label)
        panel.axhline(means[f"sinks, {keys} keys"], color="grey", linestyle=":", label="first and latest keys")
        panel.axhline(means["dense"], color="black", linestyle="--", label="all keys")
        panel.set_xscale("log", base=2)
        panel.set_xticks(blocks, [str(b) for b in blocks])
        panel.set(title=f"{keys} keys per query", xlabel="keys in a block")
    figure.axes[0].set_ylabel("nats per token")
    figure.axes[0].set_ylim(2.25, 2.85)  # 256 keys in blocks of 128 leave nothing to choose, and are far above
    figure.axes[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
