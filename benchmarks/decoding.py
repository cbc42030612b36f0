"""What a generated token costs: a Llama with a pattern after short and long texts, beside dense attention.

    python benchmarks/decoding.py benchmarks/results/decoding.json

The Llama has 8 layers, 512 wide, 8 heads, random weights in float32; a token is one call of the model with the cache,
as transformers' `generate` makes it. All contenders are filled first and then take turns, in a random order: each
generates some tokens from the same place, which are taken back (`crop`) before the next turn. All Llamas have the
same weights in the same memory. Bytes are counted, not
measured: the slots of the cache and the weights, against the living keys and values and the weights. Then our own model
of the same size, plain and with a compiled step. About ten minutes on two cores.
"""

import argparse
import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache

from asterism.bench.machine import describe
from asterism.models import AsterismConfig, AsterismForCausalLM, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import PatternCacheLayer

SIZES = {"vocab_size": 256, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
PATTERNS = ("window(left=511)", "sinks(first=4, window=508)", "fixed(stride=128, summary=8)")


@dataclass
class Contender:
    """A model with a filled cache; rates in tokens per second, one for each turn."""

    name: str
    context: int
    step: Callable[..., Any]
    cache: Cache
    prefills: list[float]
    bytes: dict[str, int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def main() -> None:
    """Measure, record, print."""
    arguments = _arguments()
    torch.manual_seed(0)
    contenders = _llamas(arguments.contexts) + _own_models(min(arguments.contexts))
    order = random.Random(0)
    for turn in range(arguments.turns + 1):
        print(f"turn {turn} of {arguments.turns}", file=sys.stderr)
        for contender in order.sample(contenders, len(contenders)):
            rate = rate_of(contender.step, contender.cache, arguments.tokens)
            contender.rates += [rate] * (turn > 0)  # the first turn warms up
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "threads": torch.get_num_threads(),
        "tokens_a_turn": arguments.tokens,
        "contenders": [_row(contender) for contender in contenders],
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    report(record["contenders"], max(arguments.contexts))


def _llamas(contexts: list[int]) -> list[Contender]:
    contenders = [_filled("dense", _llama(None), DynamicCache, 512)]
    for pattern in PATTERNS:
        for context in contexts:
            contenders.append(_filled(pattern, _llama(pattern), PatternCache, context))
    for fixed in [contender for contender in contenders if contender.name == PATTERNS[-1]]:
        kept = max(map(len, fixed.cache.layers[0].kept().values()))
        contenders.append(
            _filled(f"dense, as many keys as fixed after {fixed.context:,}", _llama(None), DynamicCache, kept)
        )
    contenders.append(_filled("dense", _llama(None), DynamicCache, max(contexts)))
    return contenders


@functools.cache
def _weights() -> dict[str, torch.Tensor]:
    """The same memory for all contenders: reading weights is most of what a token costs, and not equally fast from
    everywhere."""
    torch.manual_seed(0)
    return LlamaForCausalLM(_config()).state_dict()


def _config() -> LlamaConfig:
    return LlamaConfig(**SIZES, intermediate_size=2048, max_position_embeddings=2**20)


def _llama(pattern: str | None) -> PreTrainedModel:
    model = LlamaForCausalLM(_config()).eval()
    model.load_state_dict(_weights(), assign=True)
    return model if pattern is None else use_pattern(model, pattern)


def _own_models(context: int) -> list[Contender]:
    torch.manual_seed(0)
    config = AsterismConfig(
        **SIZES, intermediate_size=2048, mixers=PATTERNS[0], position_type="rotary", max_position_embeddings=2**20
    )
    model = AsterismForCausalLM(config).eval()
    compiled = torch.compile(model, fullgraph=True)
    new_cache = functools.partial(PatternCache, config, max_tokens=2**30)
    return [
        _filled(f"own model, {PATTERNS[0]}", model, new_cache, context),
        _filled(f"own model, compiled, {PATTERNS[0]}", model, new_cache, context, step=compiled),
    ]


@torch.inference_mode()
def _filled(
    name: str,
    model: PreTrainedModel,
    new_cache: Callable[[], Cache],
    context: int,
    step: Callable[..., Any] | None = None,
) -> Contender:
    print(f"{name}: {context} tokens", file=sys.stderr)
    tokens = torch.randint(256, (1, context), generator=torch.Generator().manual_seed(1))
    prefills = []
    for _ in range(3):  # the first also compiles plans
        cache, start = new_cache(), time.perf_counter()
        model(tokens, past_key_values=cache, logits_to_keep=1)
        prefills.append(time.perf_counter() - start)
    weights = sum(parameter.nbytes for name, parameter in model.named_parameters() if "embed_tokens" not in name)
    slots = living = bytes_of(cache.layers)
    if isinstance(cache.layers[0], PatternCacheLayer):
        living = sum(len(kept) for layer in cache.layers for kept in layer.kept().values()) * 2 * 64 * 4
    counted = {"weights": weights, "slots": slots, "living": living}
    return Contender(name, context, model if step is None else step, cache, prefills, counted)


@torch.inference_mode()
def rate_of(step: Callable[..., Any], cache: Cache, tokens: int) -> float:
    """Tokens per second of so many likeliest tokens, which are taken back."""
    token = torch.zeros(1, 1, dtype=torch.int64)
    start = time.perf_counter()
    for _ in range(tokens):
        out = step(token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(dim=-1)
    seconds = time.perf_counter() - start
    cache.crop(-tokens)
    return tokens / seconds


def bytes_of(layers: Sequence[Any]) -> int:
    """Of the slots of a pattern's cache, or of the keys and values of any other."""
    return sum(
        one.nbytes if isinstance(one, PatternCacheLayer) else one.keys.nbytes + one.values.nbytes for one in layers
    )


def _row(contender: Contender) -> dict[str, Any]:
    counted = contender.bytes
    needed = counted["living"] + counted["weights"]
    return {
        "name": contender.name,
        "context": contender.context,
        "tokens_per_second": contender.rate,
        "rates": contender.rates,
        "prefill_seconds": statistics.median(contender.prefills),
        "prefills": contender.prefills,
        "bytes": counted,
        "bytes_over_needed": (counted["slots"] + counted["weights"]) / needed,
    }


def report(rows: list[dict[str, Any]], longest: int) -> None:
    """A table in Markdown, and the ratios that the library promises."""
    dense = rows[0]["tokens_per_second"]
    prefill = next(row["prefill_seconds"] for row in rows if row["name"] == "dense" and row["context"] == longest)
    print("| | after tokens | tokens/s | over dense at 512 | bytes over needed | prefill over dense |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        faster = f"{prefill / row['prefill_seconds']:.1f}" if row["context"] == longest else ""
        rate, read = row["tokens_per_second"], row["bytes_over_needed"]
        print(f"| {row['name']} | {row['context']:,} | {rate:.1f} | {rate / dense:.2f} | {read:.2f} | {faster} |")
    for pattern in PATTERNS:
        short, *_, long = (row["tokens_per_second"] for row in rows if row["name"] == pattern)
        print(f"{pattern}: a token after {longest:,} costs {short / long:.2f} times what it costs after the shortest")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, help="a JSON file for the results")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2000, 16000], help="tokens read before")
    parser.add_argument("--tokens", type=int, default=32, help="generated in each turn, at most 64")
    parser.add_argument("--turns", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
