"""Lesser machines, emulated on this one: training steps by share, attention, `auto` and decoding for each class.

    python benchmarks/machines.py FOLDER [--classes avx2 avx512] [--threads N]
    python benchmarks/machines.py FOLDER --report

Each class of processor that this one can play runs in a process of its own, in which oneDNN, MKL, ATen and the fused
kernel are held to its instructions. A process first shows that this works, by the rates of products in float32 and
bfloat16. Every recipe whose name ends in "-tiny", and bytes-small, then computes a few steps on blank batches; every
operation is timed where PyTorch dispatches it, and the products are computed again in float32. The record of a class is
FOLDER/machines-CLASS.json. Exit code 1 if a bar is missed. About four minutes for each class, alone on the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from choice import QUICK, regret, taken
from choice import measure as measure_choice
from choice import patterns as patterns_of_choice
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from asterism import attend
from asterism.bench.clock import TimedCall, in_turns
from asterism.bench.machine import describe
from asterism.compiler import compile_pattern
from asterism.kernels.choice import prices
from asterism.kernels.cpu.processor import features, limited_to, processor_class
from asterism.kernels.cpu.sources import INSTRUCTION_SETS
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.randomness import isolated
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.arithmetic import loss_of, settled, weights_dtype
from asterism.training.run.optimizer import make_optimizer
from asterism.training.settings.configuration import RunConfig
from asterism.training.settings.registry import OBJECTIVES

HELD = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
CLASSES = {
    "avx2": ("AVX2", "avx2", "AVX2"),
    "avx512": ("AVX512_CORE", "avx512", "AVX512"),
    "avx512_bf16": ("AVX512_CORE_BF16", "avx512", "AVX512"),
    "amx": ("AVX512_CORE_AMX", "avx512", "AVX512"),
}
"""What the variables say for each class, weakest first; the last that a machine has is its own, and not emulated."""

BARS = {"optimiser": 0.15, "products": 1.5, "auto": 1.15}
"""The optimiser's share of a step; products over the same in float32; the way that `auto` takes over the best."""

PATTERNS = ("bigbird(block=64)", "window(left=511)", "strided(stride=128)", "fixed(stride=128, summary=8)")
TOKENS, HEADS, HEAD_DIM = 4096, 8, 64
STEPS = 3
LONGEST_STEP = 8.0
"""Seconds; a recipe whose second step takes longer is not computed again."""

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "linear", "dot", "mv", "addmv"}
MIXING = {"_fft_c2c", "_fft_r2c", "_fft_c2r"}
KINDS = ("attention", "products", "optimiser", "elementwise", "rest")

Record = dict[str, Any]


# --- the classes -----------------------------------------------------------------------------------------------------


def playable() -> list[str]:
    """The classes that this processor can play, its own last."""
    return [name for name in CLASSES if features() >= set(INSTRUCTION_SETS["x86_64"][name])]


def environment(name: str) -> dict[str, str]:
    """The variables that hold a process to a class; the fused kernel is built for what they leave."""
    limits = {} if name == playable()[-1] else dict(zip(HELD, CLASSES[name], strict=True))
    return os.environ | limits


def rates() -> dict[str, float]:
    """FLOP/s of one product by dtype: how one sees that a class is really played."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).to(dtype) for _ in range(2))
        task = TimedCall(partial(torch.mm, a, b), "cpu")
        task.warm_up(0.5)
        in_turns([task], 20, 3.0)
        found[str(dtype).removeprefix("torch.")] = 2 * 512**3 / min(task.seconds)
    return found


# --- a training step by share ----------------------------------------------------------------------------------------


class Clock(TorchDispatchMode):
    """Seconds of every operation by kind; the products as (operation, dtypes and shapes of its operands)."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)
        self.products: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        began = time.perf_counter()
        result = func(*args, **kwargs)
        taken = time.perf_counter() - began
        kind = kind_of(func)
        self.seconds[kind] += taken
        if kind == "products":
            described = tuple((x.shape, x.stride()) if isinstance(x, Tensor) else x for x in args)
            self.products.append((func, described, dict(kwargs)))
        return result


def kind_of(func: Any) -> str:
    """Which share of a step an operation belongs to."""
    name = func.overloadpacket.__name__
    if func.namespace == "asterism" or "scaled_dot_product" in name or name in MIXING:
        return "attention"
    return "products" if name in PRODUCTS else "elementwise"


def in_float32(products: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> float:
    """Seconds of the same products of numbers in float32, each different one timed three times."""
    counts: dict[Any, int] = defaultdict(int)
    known = {}
    for func, described, named in products:
        key = (func, str(described), str(named))
        counts[key] += 1
        known[key] = (func, described, named)
    return sum(count * _least_in_float32(*known[key]) for key, count in counts.items())


def _least_in_float32(func: Any, described: tuple[Any, ...], named: dict[str, Any]) -> float:
    operands = [_numbers(*x) if isinstance(x, tuple) and isinstance(x[0], torch.Size) else x for x in described]
    named = {name: value for name, value in named.items() if name != "dtype"}
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        func(*operands, **named)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _numbers(shape: torch.Size, strides: tuple[int, ...]) -> Tensor:
    """Drawn numbers laid out as the operand of the step was."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.randn(max(1, size), generator=torch.Generator().manual_seed(0)).as_strided(shape, strides)


@dataclass
class Phase:
    """A part of a step: seconds of all of it, by kind, and of its products in float32."""

    seconds: float
    by_kind: dict[str, float]
    float32: float = 0.0
    products: list[Any] = field(default_factory=list)


def timed(work: Callable[[], object]) -> Phase:
    with Clock() as clock:
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    return Phase(seconds, dict(clock.seconds), products=clock.products)


def step(name: str) -> Record:
    """A training step of a recipe as its run would compute it, by share."""
    config = settled(recipe(name))
    assert isinstance(config, RunConfig)
    objective: Any = OBJECTIVES.load(config.objective)
    with isolated(0):
        model: nn.Module = objective.model_class(config)(objective.foundations(config)[2])
        model.to(weights_dtype(config.dtype)).train()
        optimizer = make_optimizer(model, config)
        batch = objective.blank_batch(config, config.micro_batch_size)

        def slice_() -> None:
            loss_of(model, batch, config.dtype, seed=0).backward()

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip or 1.0)
            optimizer.step()
            optimizer.zero_grad()

        timed(slice_), timed(update)  # what is compiled and allocated once
        computed, updated = timed(slice_), timed(update)
        for _ in range(STEPS if computed.seconds < LONGEST_STEP else 0):
            computed, updated = (
                min((before, timed(work)), key=lambda one: one.seconds)
                for before, work in ((computed, slice_), (updated, update))
            )
        for phase in (computed, updated):
            phase.float32 = in_float32(phase.products)
    return {"recipe": name, "dtype": config.dtype, **shares(computed, updated, config.gradient_accumulation_steps)}


def shares(computed: Phase, updated: Phase, slices: int) -> Record:
    """Seconds of a step by kind, and what its products take next to the same products in float32."""
    seconds = {kind: slices * computed.by_kind.get(kind, 0.0) for kind in KINDS}
    seconds["optimiser"] = updated.seconds
    seconds["rest"] = slices * (computed.seconds - sum(computed.by_kind.values()))
    return {
        "seconds": seconds,
        "products_over_float32": _over(computed),
        "optimiser_products_over_float32": _over(updated),
    }


def _over(phase: Phase) -> float | None:
    """None where products are too few to be timed: less than a tenth of a millisecond."""
    return phase.by_kind.get("products", 0.0) / phase.float32 if phase.float32 > 1e-4 else None


# --- attention, the choice, decoding ---------------------------------------------------------------------------------


def attention() -> Iterator[Record]:
    """Efficiency, as `asterism bench` defines it, by minima of calls that take turns with dense attention."""
    for dtype in (torch.float32, torch.bfloat16):
        for backward in (False, True):
            tasks = {"dense": TimedCall(_call("dense()", dtype, backward, "dense"), "cpu")}
            tasks |= {pattern: TimedCall(_call(pattern, dtype, backward, "cpu"), "cpu") for pattern in PATTERNS}
            for task in tasks.values():
                task.warm_up(2.0)
            in_turns(list(tasks.values()), 5, 6.0)
            rate = TOKENS**2 / min(tasks["dense"].seconds)
            for pattern in PATTERNS:
                pairs, seconds = compile_pattern(pattern, TOKENS).pairs, min(tasks[pattern].seconds)
                yield {
                    "pattern": pattern,
                    "dtype": str(dtype).removeprefix("torch."),
                    "backward": backward,
                    "seconds": seconds,
                    "efficiency": pairs / seconds / rate,
                }


def _call(pattern: str, dtype: torch.dtype, backward: bool, implementation: str) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, HEADS, TOKENS, HEAD_DIM, generator=generator).to(dtype) for _ in range(4))
    compute = partial(attend, pattern=pattern, implementation=implementation)
    if not backward:
        return partial(compute, q, k, v)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(compute(*leaves), leaves, grad)


def choices() -> dict[str, Record]:
    """What `auto` takes over the best way, after calibration and by the figures that come with the library."""
    prices.calibrate()
    rows = [
        measure_choice(pattern, length, dtype, backward, QUICK.seconds)
        for dtype in (torch.float32, torch.bfloat16)
        for length in QUICK.lengths
        for pattern in patterns_of_choice(length, QUICK.shares)
        for backward in (False, True)
    ]
    found = {"calibrated": _worst([confirmed(row) for row in rows])}
    with _only_shipped():
        for row in rows:
            dtype = getattr(torch, row["dtype"])
            q = torch.zeros(1, row["heads"], row["length"], HEAD_DIM, dtype=dtype)
            row["taken"] = taken(q, q, q, row["pattern"], row["backward"])
        return found | {"shipped": _worst([confirmed(row) for row in rows if row["taken"] in row["fastest"]])}


def confirmed(row: Record) -> Record:
    """The row; one above the bar is timed again, four times as long: of 80 short ones some are disturbed by chance."""
    if regret(row) <= BARS["auto"]:
        return row
    dtype = getattr(torch, row["dtype"])
    return measure_choice(row["pattern"], row["length"], dtype, row["backward"], 4 * QUICK.seconds)


def _worst(rows: Sequence[Record]) -> Record:
    most = max(rows, key=regret)
    named = {name: most[name] for name in ("pattern", "length", "dtype", "backward", "taken")}
    return {
        "cells": len(rows),
        "above": sum(regret(row) > BARS["auto"] for row in rows),
        "worst": regret(most),
        **named,
    }


@contextmanager
def _only_shipped() -> Iterator[None]:
    with prices.pinned({}):
        yield


def decoding() -> Iterator[Record]:
    """Tokens a second of a small model of ours after 1,000 tokens, by dtype of its weights."""
    shape = {"vocab_size": 256, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    with isolated(0):
        config = AsterismConfig(mixers="window(left=255)", max_position_embeddings=2048, **shape)
        model = AsterismForCausalLM(config).eval()
        prompt = torch.randint(256, (1, 1000))
    for dtype in (torch.float32, torch.bfloat16):
        with torch.no_grad():
            cast = model.to(dtype)
            cache = cast(prompt, use_cache=True).past_key_values
            seconds = []
            for _ in range(40):
                began = time.perf_counter()
                cast(prompt[:, :1], past_key_values=cache, use_cache=True)
                seconds.append(time.perf_counter() - began)
        yield {"dtype": str(dtype).removeprefix("torch."), "tokens_per_second": 1 / sorted(seconds)[len(seconds) // 2]}


# --- the record of a class -------------------------------------------------------------------------------------------


def record(name: str) -> Record:
    """Everything about one class; this process is held to it."""
    say(f"{name}: rates")
    found: Record = {
        "class": name,
        "is_emulated": limited_to() is not None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "seen_as": processor_class(),
        "products_per_second": rates(),
        "auto_dtype": settled(recipe("bytes-small")).dtype,
        "steps": [],
    }
    for one in ("bytes-small", *(known for known in RECIPES if known.endswith("-tiny"))):
        say(f"{name}: {one}")
        found["steps"].append(step(one))
    say(f"{name}: attention")
    found["attention"] = list(attention())
    say(f"{name}: auto")
    found["auto"] = choices()
    say(f"{name}: decoding")
    found["decoding"] = list(decoding())
    return found


def missed(found: Record) -> list[str]:
    """The bars that a class does not keep, one line each; and that an emulation did not bite."""
    lines = []
    rate, own = found["products_per_second"], found["class"]
    if {found["seen_as"], found["machine"]["kernel"]} != {own}:
        lines.append(f"{own}: seen as {found['seen_as']}, the kernel is built for {found['machine']['kernel']}")
    if own == "avx2" and (found["machine"]["capability"] != "AVX2" or rate["bfloat16"] > 0.5 * rate["float32"]):
        lines.append(f"{own}: the emulation does not bite: {rate}")
    for one in found["steps"]:
        whole = sum(one["seconds"].values())
        share = one["seconds"]["optimiser"] / whole
        if share > BARS["optimiser"]:
            lines.append(f"{own}: {one['recipe']}: the optimiser takes {share:.0%} of a step")
        for part in ("products_over_float32", "optimiser_products_over_float32"):
            if one[part] is not None and one[part] > BARS["products"]:
                lines.append(f"{own}: {one['recipe']}: {part} {one[part]:.2f}")
    for figures, seen in found["auto"].items():
        if seen["worst"] > BARS["auto"]:
            lines.append(
                f"{own}: auto by {figures} figures: {seen['worst']:.2f} ({seen['above']} of {seen['cells']} cells)"
            )
    return lines


def report(found: Record) -> None:
    """The tables of a class, in Markdown."""
    rate, machine = found["products_per_second"], found["machine"]
    origin = "emulated" if found["is_emulated"] else "its own class"
    print(f"\n### `{found['class']}` ({origin})\n")
    print(f"{machine['processor']}, {machine['threads']} threads, {found['date'][:10]}; kernel {machine['kernel']};")
    print(f"products {rate['float32'] / 1e9:.0f} GFLOP/s in float32, {rate['bfloat16'] / 1e9:.0f} in bfloat16;")
    print(f"`dtype: auto` takes {found['auto_dtype']}.\n")
    print("| recipe | step | " + " | ".join(KINDS) + " | products over float32 | the optimiser's |")
    print("|---" * (len(KINDS) + 4) + "|")
    for one in found["steps"]:
        whole = sum(one["seconds"].values())
        cells = [f"{one['seconds'][kind] / whole:.0%}" for kind in KINDS]
        ratios = [
            "" if one[part] is None else f"{one[part]:.2f}"
            for part in ("products_over_float32", "optimiser_products_over_float32")
        ]
        print(f"| `{one['recipe']}` | {whole * 1e3:,.0f} ms | {' | '.join([*cells, *ratios])} |")
    print("\n| pattern, 4,096 tokens | float32 forward, with backward | bfloat16 |\n|---|---|---|")
    for pattern in PATTERNS:
        rows = {(row["dtype"], row["backward"]): row for row in found["attention"] if row["pattern"] == pattern}
        told = [
            ", ".join(f"{rows[dtype, way]['efficiency']:.2f}" for way in (False, True))
            for dtype in ("float32", "bfloat16")
        ]
        print(f"| `{pattern}` | {' | '.join(told)} |")
    print()
    for figures, seen in found["auto"].items():
        where = f"{seen['pattern']}, {seen['length']:,} tokens, {seen['dtype']}"
        print(
            f"- `auto` by {figures} figures: at most {seen['worst']:.2f} of the best way, {seen['above']} of", end=" "
        )
        print(f"{seen['cells']} cells above {BARS['auto']} (worst: {where}).")
    told = ", ".join(f"{one['tokens_per_second']:.0f} in {one['dtype']}" for one in found["decoding"])
    print(f"- Decoding, tokens a second: {told}.")


def say(text: str) -> None:
    print(text, file=sys.stderr)


def file_of(folder: Path, name: str) -> Path:
    return folder / f"machines-{name}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", nargs="+", choices=CLASSES, help="which to play; all that can be")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--report", action="store_true", help="print the tables of the records that are there")
    parser.add_argument("--child", choices=CLASSES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        torch.set_num_threads(arguments.threads)
        text = json.dumps(record(arguments.child), indent=1)
        file_of(arguments.folder, arguments.child).write_text(text + "\n")
        return 0
    wanted = arguments.classes or playable()
    if unknown := set(wanted) - set(playable()):
        sys.exit(f"this processor cannot play {', '.join(sorted(unknown))}; it can play {', '.join(playable())}")
    faults = []
    for name in wanted:
        if not arguments.report:
            command = [sys.executable, __file__, str(arguments.folder), "--child", name]
            command += ["--threads", str(arguments.threads)]
            subprocess.run(command, env=environment(name), check=True)
        found: Mapping[str, Any] = json.loads(file_of(arguments.folder, name).read_text())
        report(dict(found))
        faults += missed(dict(found))
    print("\n".join(["", *(faults or ["every bar holds"])]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
