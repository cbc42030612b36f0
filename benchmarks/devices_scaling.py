"""Weak scaling: two processes of one thread each with 2n tokens, beside one process with n of them.

    python benchmarks/devices_scaling.py --output benchmarks/results/<device>-devices-scaling.json

Both processes hold n tokens, so at best a step takes as long as one process alone takes with n: the ratio is that of
the time per token. Also timed are both processes with n tokens each and nothing to say to each other: what two cores do
to each other's memory and clock, whatever they compute. A step is forward and backward in float32: of attention alone,
8 heads of 64, or of a masked language model of two such layers of width 512, whose gradients are then summed. As in
training, freed memory stays with a process. A round takes the three one after another, so that a slow moment of the
machine meets all; the time of two processes is that of the later one. Run it alone on two cores.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from asterism.bench.machine import describe
from asterism.compiler.devices import RowShape, Shards, communicate
from asterism.models import AsterismConfig, AsterismForMaskedLM
from asterism.parallel import attend, sequence_parallel, shard
from asterism.patterns import parse
from asterism.training.run.allocator import kept_memory

PATTERNS = ("window(left=256, right=256)", "bigbird(block=64)")
LENGTHS = (8192, 16_384)
RANKS, HEADS, DIM, LAYERS = 2, 8, 64, 2
WAYS = ("one process", "two with n each", "two with 2n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="a JSON file for the record")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=tuple(STEPS))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of each process")
    arguments = parser.parse_args(argv)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        told = (folder, arguments.steps, arguments.lengths, arguments.rounds)
        mp.start_processes(_work, told, RANKS, start_method="fork")
        cases = json.loads(Path(folder, "cases.json").read_text())
    for case in cases:
        print(_line(case))
    if arguments.output:
        record = {"machine": describe("cpu"), "heads": HEADS, "dim": DIM, "rounds": arguments.rounds, "cases": cases}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def _work(rank: int, folder: str, steps: Sequence[str], lengths: Sequence[int], rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    with kept_memory():
        cases = [
            _case(rank, what, pattern, tokens, rounds) for what in steps for tokens in lengths for pattern in PATTERNS
        ]
    if rank == 0:
        Path(folder, "cases.json").write_text(json.dumps(cases))
    dist.barrier()
    dist.destroy_process_group()


def _case(rank: int, what: str, pattern: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of each way by round, and the bytes that a process sends, forward and backward, by plan of a layer."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    step = STEPS[what](rank, pattern, tokens)
    for turn in range(rounds + 1):
        for way in WAYS:
            seconds = _timed(lambda way=way: step(way == WAYS[2]), idle=rank > 0 and way == WAYS[0])
            if turn:  # the first finds plans and warms caches
                times[way].append(seconds)
    shards, shape = Shards.even(RANKS * tokens, RANKS), RowShape(HEADS, HEADS, DIM, DIM, 4)
    plan = communicate(parse(pattern), shards, shards, shape)
    sent = [int(traffic.sent.max()) for traffic in (plan.traffic(shape), plan.backward(shape))]
    return {"step": what, "pattern": pattern, "tokens": tokens, "bytes": sent, "seconds": times}


def _attention(rank: int, pattern: str, tokens: int) -> Callable[[bool], None]:
    """Attention forward and backward of `tokens` tokens, which are this process's shard of more, or all there are."""
    generator = torch.Generator().manual_seed(rank)
    q, k, v = (torch.randn(1, HEADS, tokens, DIM, generator=generator).requires_grad_() for _ in range(3))
    weight = torch.randn(1, HEADS, tokens, DIM, generator=generator)
    shards = Shards.even(RANKS * tokens, RANKS)
    group = dist.group.WORLD
    assert group is not None, "all processes are in the group of all"

    def step(sharded: bool) -> None:
        if sharded:
            with sequence_parallel(group, dense_exchange=True):
                out = attend(q, k, v, pattern, queries=shards, keys=shards)
        else:
            out = attend(q, k, v, pattern)
        torch.autograd.grad(out, (q, k, v), weight)

    return step


def _model(rank: int, pattern: str, tokens: int) -> Callable[[bool], None]:
    """A model forward and backward, as in training, of `tokens` tokens, which are this process's shard, or all."""
    shape = {"hidden_size": HEADS * DIM, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
    config = AsterismConfig(vocab_size=256, mixers=pattern, position_type="rotary", **shape)
    model = AsterismForMaskedLM(config)
    generator = torch.Generator().manual_seed(0)
    group = dist.group.WORLD
    assert group is not None, "all processes are in the group of all"
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02, generator=generator)
    row = torch.randint(256, (1, RANKS * tokens), generator=generator)

    def step(sharded: bool) -> None:
        model.zero_grad()
        if not sharded:
            model(input_ids=row[:, :tokens], labels=row[:, :tokens]).loss.backward()
            return
        with sequence_parallel(group, dense_exchange=True) as context:
            model(**shard({"input_ids": row, "labels": row}, context)).loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=group)

    return step


STEPS = {"attention": _attention, "model": _model}


def _timed(run: Callable[[], None], idle: bool) -> float:
    """Seconds of the later process; one that is idle waits."""
    dist.barrier()
    began = time.perf_counter()
    if not idle:
        run()
    seconds = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def _line(case: dict[str, Any]) -> str:
    """Ratios to one process: of minima, of medians, and the median of the ratios by round."""
    alone = case["seconds"][WAYS[0]]
    told = [f"{case['step']}, {case['pattern']}, {case['tokens']:,} tokens a process,"]
    told.append(f"{statistics.median(alone):.3f} s alone:")
    for way in WAYS[1:]:
        seconds = case["seconds"][way]
        least, middle = min(seconds) / min(alone), statistics.median(seconds) / statistics.median(alone)
        paired = statistics.median(a / b for a, b in zip(seconds, alone, strict=True))
        told.append(f"{way} {middle:.3f} by medians, {least:.3f} by minima, {paired:.3f} by round;")
    forward, backward = case["bytes"]
    told.append(f"{forward / 1e6:.1f} MB sent forward, {backward / 1e6:.1f} backward")
    return " ".join(told)


if __name__ == "__main__":
    main()
