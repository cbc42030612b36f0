"""Measure every contender of every case: check it, then time it in turns. Each gives one row of plain data."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from asterism.bench.case import DTYPES, Case
from asterism.bench.check import check, first_line
from asterism.bench.clock import TimedCall, in_turns
from asterism.bench.contenders import OURS, Contender, DenseContender, Implementation, Prepared
from asterism.bench.machine import describe
from asterism.bench.memory import peaks
from asterism.bench.peers import PEERS
from asterism.bench.rate import matrix_rate
from asterism.compiler import compile_pattern
from asterism.kernels import IMPLEMENTATIONS

SCHEMA = 1
"""Raised when the meaning of a field changes."""

DEFINITIONS = {
    "seconds": "median over the samples; contenders take turns, one sample each a round",
    "useful FLOP": "4 x pairs x head_dim forward, 3.5 times that forward and backward; pairs are those the contender"
    " computes by its pattern, over batch and heads",
    "efficiency": "useful FLOP/s over the FLOP/s of dense attention (row sdpa: scaled_dot_product_attention of all"
    " n^2 pairs, not causal) in the same case and run",
    "break_even_density": "the density at which the contender would take as long as dense attention, if its time"
    " grew with the pairs; dense is causal attention (row sdpa causal) for a causal pattern, else all pairs",
    "matmul_share": "useful FLOP/s over the rate of a large matrix product in the same dtype",
    "extra_bytes": "peak memory beyond q, k, v, the output and, with backward, the gradients",
    "plan_seconds": "compiling the plan for the first time in this process; for FlexAttention, making its block mask",
}

Operands = tuple[Tensor, Tensor, Tensor, Tensor]
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchSettings:
    """What to measure. `patience` limits the seconds, roughly, of one contender in one case and direction."""

    patterns: tuple[str, ...] = (
        "bigbird(block=64)",
        "window(left=511)",
        "strided(stride=128)",
        "fixed(stride=128, summary=8)",
        "grid(width=64, radius=2, channels=3) & causal()",
    )
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    implementations: tuple[str, ...] = OURS
    peers: bool = True
    heads: int = 8
    head_dim: int = 64
    batch: int = 1
    backward: bool = True
    memory: bool = True
    repeats: int = 7
    patience: float = 60.0
    device: str = "cpu"

    def cases(self) -> Iterator[Case]:
        """Every case, in the order in which they are measured."""
        for pattern in self.patterns:
            for length in self.lengths:
                for dtype in self.dtypes:
                    yield Case(pattern, length, dtype, self.batch, self.heads, self.head_dim, self.device)


@dataclass
class _Entry:
    """A contender in a case: its row, and the calls that are timed."""

    contender: Contender
    row: Row
    prepared: Prepared
    tasks: dict[str, TimedCall]


def contender_named(name: str) -> Contender:
    """The contender of a row."""
    known: list[Contender] = [
        DenseContender(False),
        DenseContender(True),
        *PEERS,
        *map(Implementation, IMPLEMENTATIONS),
    ]
    return next(contender for contender in known if contender.name == name)


def measure(settings: BenchSettings, say: Say = lambda text: None, keep: Callable[[Row], None] | None = None) -> Row:
    """Run a benchmark and return its record. `say` gets progress in words, and `keep` the unfinished record after each
    case.
    """
    record: Row = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(settings.device),
        "settings": asdict(settings),
        "definitions": DEFINITIONS,
        "matmul_flops_per_second": {},
        "rows": [],
    }
    rates = record["matmul_flops_per_second"]
    for dtype in settings.dtypes:
        rates[dtype] = matrix_rate(DTYPES[dtype], settings.device)
    plan_seconds = _PlanSeconds()
    for case in settings.cases():
        say(f"{case.pattern}, {case.length:,} tokens, {case.dtype}")
        record["rows"] += _measure_case(case, settings, rates[case.dtype], plan_seconds(case), say)
        if keep is not None:
            keep(record)
    return record


class _PlanSeconds:
    """Seconds that a plan took to compile. The first time counts, because later calls find it in memory."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], float] = {}

    def __call__(self, case: Case) -> float:
        asked = (case.pattern, case.length)
        if asked not in self.known:
            started = time.perf_counter()
            compile_pattern(*asked)
            self.known[asked] = time.perf_counter() - started
        return self.known[asked]


def _contenders(settings: BenchSettings, rate: float) -> list[Contender]:
    dense = [DenseContender(False), DenseContender(True)]
    for contender in dense:
        contender.rate = rate
    peers = PEERS if settings.peers else ()
    return [*dense, *map(Implementation, settings.implementations), *peers]


def _measure_case(case: Case, settings: BenchSettings, rate: float, plan_seconds: float, say: Say) -> list[Row]:
    rows, entries, operands = [], [], case.operands()
    for contender in _contenders(settings, rate):
        row = _row(case, contender)
        rows.append(row)
        entry = _admit(contender, case, operands, row, settings)
        if row["status"] != "skipped":
            say(f"  {contender.name}: {row['status']}{': ' + row['reason'] if row['reason'] else ''}")
        if entry is not None:
            own = entry.prepared.plan_seconds
            row["plan_seconds"] = own if own is not None else plan_seconds if contender.kind == "asterism" else None
            entries.append(entry)
    tasks = [task for entry in entries for task in entry.tasks.values()]
    in_turns(tasks, settings.repeats, settings.patience)
    for entry in entries:
        for direction, task in entry.tasks.items():
            entry.row[direction] = _figures(entry, case, task, direction == "forward_backward", rate)
    _compare(rows, case)
    if settings.memory:
        say("  peak memory")
        for entry in entries:
            _add_memory(entry, case, settings)
    return rows


def _row(case: Case, contender: Contender) -> Row:
    return {
        **asdict(case),
        "contender": contender.name,
        "kind": contender.kind,
        "status": "timed",
        "reason": "",
        "computes": None,
        "note": "",
        "pairs": None,
        "density": None,
        "checked_length": None,
        "plan_seconds": None,
        "forward": None,
        "forward_backward": None,
        "no_backward": "",
    }


def _admit(contender: Contender, case: Case, operands: Operands, row: Row, settings: BenchSettings) -> _Entry | None:
    """Check, prepare and warm up a contender. Returns None if it is not to be timed, and puts the reason into its
    row.
    """
    if reason := contender.reason_against(case):
        row.update(status="skipped", reason=reason)
        return None
    checked = check(contender, case, settings.backward)
    row.update(checked_length=checked.length, no_backward=checked.no_backward)
    if not checked.passed:
        row.update(status="refused" if checked.refused else "failed", reason=checked.reason)
        return None
    try:
        prepared = contender.prepare(case)
        tasks = _tasks(prepared, operands, settings.backward and not checked.no_backward, case.device)
        for task in tasks.values():
            task.warm_up(settings.patience if contender.kind == "dense" else math.inf)
    except Exception as error:  # out of memory, say: the others are still worth measuring
        row.update(status="refused", reason=f"at {case.length:,} tokens: {first_line(error)}")
        return None
    row.update(computes=prepared.computes, note=prepared.note, pairs=prepared.pairs)
    row["density"] = prepared.pairs / case.square
    return _Entry(contender, row, prepared, tasks)


def _tasks(prepared: Prepared, operands: Operands, backward: bool, device: str) -> dict[str, TimedCall]:
    q, k, v, grad = operands
    if prepared.select is not None:
        grad = prepared.select(grad, k, v)[0]
        q, k, v = prepared.select(q, k, v)

    def forward() -> None:
        with torch.no_grad():
            prepared.compute(q, k, v)

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(prepared.compute(*leaves), leaves, grad)

    tasks = {"forward": TimedCall(forward, device)}
    return tasks | {"forward_backward": TimedCall(both, device)} if backward else tasks


def _figures(entry: _Entry, case: Case, task: TimedCall, backward: bool, rate: float) -> Row:
    scale = 1 / entry.prepared.share
    useful = case.flops(entry.prepared.pairs, backward) / (task.median * scale)
    return {
        "seconds": task.median * scale,
        "fastest": min(task.seconds) * scale,
        "slowest": max(task.seconds) * scale,
        "samples": len(task.seconds),
        "share_computed": entry.prepared.share,
        "useful_flops_per_second": useful,
        "matmul_share": useful / rate,
        "efficiency": None,
        "break_even_density": None,
        "extra_bytes": None,
    }


def _compare(rows: Sequence[Row], case: Case) -> None:
    """Compare every contender with dense attention over all pairs and, for causal patterns, over those of the past."""
    by_name = {row["contender"]: row for row in rows}
    for direction in ("forward", "forward_backward"):
        full = by_name["sdpa"][direction]
        if full is None:
            continue
        stand_in = (by_name["sdpa causal"][direction] if case.rule.is_causal else None) or full
        for row in rows:
            figures = row[direction]
            if figures is not None:
                figures["efficiency"] = figures["useful_flops_per_second"] / full["useful_flops_per_second"]
            if figures is not None and row["kind"] != "dense":
                figures["break_even_density"] = row["density"] * stand_in["seconds"] / figures["seconds"]


def _add_memory(entry: _Entry, case: Case, settings: BenchSettings) -> None:
    if entry.prepared.share < 1:  # the memory of a share of the heads says nothing about all of them
        return
    backward = "forward_backward" in entry.tasks
    found = peaks(entry.contender, case, backward, torch.get_num_threads(), 60 + 10 * settings.patience)
    for direction in entry.tasks:
        entry.row[direction]["extra_bytes"] = found[direction]
