"""Models with windows of their own, by transformers' attention and by ours: seconds, CPU seconds and peak memory.

    python benchmarks/native.py benchmarks/results/native.json [--tokens 8192 32768] [--models mistral modernbert]
        [--dtypes float32 bfloat16] [--steps forward training]

Each call runs in a process of its own, after one that is not timed, with one thread unless OMP_NUM_THREADS says
otherwise; contenders take turns, and the median of the turns counts. A contender that needs more memory than --limit
gigabytes is written down as such. Rows of the file that are not measured anew stay, each with its date.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

WINDOW = 512
MODELS = ("mistral", "modernbert", "minimax")
CONTENDERS = ("eager", "sdpa", "asterism")
STEPS = ("forward", "training")

Key = tuple[str, str, int, str]
"""Model, dtype, tokens and step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--models", nargs="+", default=["mistral", "modernbert"], choices=MODELS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20.0, help="gigabytes that a process may take")
    parser.add_argument(
        "--one", nargs=5, metavar=("MODEL", "DTYPE", "TOKENS", "CONTENDER", "STEP"), help="measure this, print it"
    )
    arguments = parser.parse_args()
    if arguments.one:
        kind, dtype, tokens, contender, step = arguments.one
        print(json.dumps(_measure(kind, dtype, int(tokens), contender, step, arguments.layers)))
        return
    rows = {} if not arguments.output.exists() else _by_key(json.loads(arguments.output.read_text())["rows"])
    for key in itertools.product(arguments.models, arguments.dtypes, arguments.tokens, arguments.steps):
        rows[key] = _row(*key, arguments)
        arguments.output.write_text(json.dumps(_document(list(rows.values()), arguments.layers), indent=1) + "\n")


def _by_key(rows: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {(row["model"], row["dtype"], row["tokens"], row["step"]): row for row in rows}


def _document(rows: list[dict[str, Any]], layers: int) -> dict[str, Any]:
    machine = {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
        "torch": torch.__version__,
    }
    return {"machine": machine, "layers": layers, "window": WINDOW, "rows": rows}


def _row(kind: str, dtype: str, tokens: int, step: str, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.contenders}
    for _ in range(arguments.turns):
        for name in arguments.contenders:
            if found[name] and "failed" in found[name][-1]:
                continue
            found[name].append(_run(kind, dtype, tokens, name, step, arguments))
    row: dict[str, Any] = {"model": kind, "dtype": dtype, "tokens": tokens, "step": step, "date": str(date.today())}
    for name, turns in found.items():
        good = [turn for turn in turns if "failed" not in turn]
        row[name] = {key: statistics.median(turn[key] for turn in good) for key in good[0]} if good else turns[-1]
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _run(
    kind: str, dtype: str, tokens: int, contender: str, step: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    limit = int(arguments.limit * 2**30)
    command = [sys.executable, __file__, os.devnull, "--layers", str(arguments.layers)]
    command += ["--one", kind, dtype, str(tokens), contender, step]
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


def _measure(kind: str, dtype: str, tokens: int, contender: str, step: str, layers: int) -> dict[str, float]:
    from asterism.models import use_pattern

    model = build(kind, layers).to(getattr(torch, dtype))
    if contender == "asterism":
        use_pattern(model)
    else:
        model.set_attn_implementation(contender)
    ids = torch.randint(3, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))

    def call() -> None:
        if step == "forward":
            with torch.no_grad():
                model(ids, **quiet)
        else:
            model.zero_grad()
            model(ids, **quiet)[0].float().square().mean().backward()

    quiet = {} if kind == "modernbert" else {"use_cache": False}
    call()  # kernels are built and imported, and memory is touched for the first time
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": after.ru_maxrss / 1024}


def build(kind: str, layers: int) -> Any:
    """A model without a head, 768 wide, heads of 64: as Mistral with a window of 512, as ModernBERT-base, or as
    MiniMax-M3, whose queries choose 8 blocks of 64 keys in all layers but the first; without its experts."""
    from transformers import MistralConfig, MistralModel, ModernBertConfig, ModernBertModel

    torch.manual_seed(0)
    sizes = dict(vocab_size=1000, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12)
    if kind == "mistral":
        config = MistralConfig(**sizes, num_key_value_heads=4, intermediate_size=2048, sliding_window=WINDOW)
        return MistralModel(config).train()
    if kind == "minimax":
        return _minimax(layers, sizes).train()
    tokens = dict(pad_token_id=0, bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2)
    config = ModernBertConfig(**sizes, **tokens, intermediate_size=1152, max_position_embeddings=65536)
    return ModernBertModel(config).train()


def _minimax(layers: int, sizes: dict[str, Any]) -> Any:
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLTextModel

    own = dict(index_n_heads=4, index_head_dim=32, index_block_size=64, index_topk_blocks=8, num_local_experts=1)
    kinds = dict(
        layer_types=["full_attention", *["minimax_m3_sparse"] * (layers - 1)], mlp_layer_types=["dense"] * layers
    )
    heads = dict(num_key_value_heads=4, head_dim=64, rotary_dim=32, dense_intermediate_size=2048)
    tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return MiniMaxM3VLTextModel(MiniMaxM3VLTextConfig(**sizes, **heads, **own, **kinds, **tokens))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
