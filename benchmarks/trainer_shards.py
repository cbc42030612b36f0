"""Memory of a training step of the Trainer, with and without sequences in shards: the peak of each process.

    python benchmarks/trainer_shards.py benchmarks/results/trainer-shards.json [--tokens 8192] [--processes 1 2 4]

A Mistral-like model, 768 wide, windows of 512, attends by its own pattern. Each process reads one row of so
many tokens, takes one step with AdamW, and then tells the most memory that it held. One thread each.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

WINDOW, VOCABULARY = 512, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", default=["whole", "shards"], choices=["whole", "shards"])
    parser.add_argument(
        "--one", nargs=2, metavar=("TOKENS", "KIND"), help="be one process, write into the folder OUTPUT"
    )
    arguments = parser.parse_args()
    if arguments.one:
        tokens, kind = arguments.one
        _write(arguments.output, _measure(int(tokens), kind == "shards", arguments.layers))
        return
    rows = [
        _row(tokens, processes, kind, arguments.layers)
        for tokens in arguments.tokens
        for processes in arguments.processes
        for kind in arguments.kinds
        if (kind, processes) != ("shards", 1)
    ]
    machine = {"processor": _processor(), "cores": os.cpu_count()}
    document = {
        "date": str(date.today()),
        "machine": machine,
        "layers": arguments.layers,
        "window": WINDOW,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _row(tokens: int, processes: int, kind: str, layers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command += [__file__, folder, "--layers", str(layers), "--one", str(tokens), kind]
        subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1"} | os.environ)
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    row = {"tokens": tokens, "processes": processes, "kind": kind}
    row |= {name: max(one[name] for one in found) for name in found[0]}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _write(folder: Path, found: dict[str, float]) -> None:
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def _measure(tokens: int, in_shards: bool, layers: int) -> dict[str, float]:
    import torch
    from transformers import MistralConfig, MistralForCausalLM, Trainer, TrainingArguments

    from asterism.models import shard_sequences, use_pattern

    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12)
    config = MistralConfig(**sizes, num_key_value_heads=4, intermediate_size=2048, sliding_window=WINDOW)
    model = use_pattern(MistralForCausalLM(config))
    row = torch.randint(VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row}] * int(os.environ["WORLD_SIZE"])
    with tempfile.TemporaryDirectory() as folder:
        settings = dict(max_steps=1, save_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True)
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=1, ddp_find_unused_parameters=False, **settings
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        with shard_sequences(trainer) if in_shards else nullcontext():
            trainer.train()
        seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peaks = {"before_mib": before.ru_maxrss / 1024, "peak_mib": after.ru_maxrss / 1024}
    return peaks | {"seconds": seconds, "cpu_seconds": cpu}


if __name__ == "__main__":
    main()
