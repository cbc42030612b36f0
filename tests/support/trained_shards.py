"""Small models of transformers trained by its Trainer, on one process without shards and on several with them.

`python trained_shards.py FOLDER NAMES` in a process of a group (RANK, WORLD_SIZE) trains the cases of these names one
after another, and writes a report for each as FOLDER/NAME.RANK.json. The processes meet at FOLDER/store.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY, ROWS, STEPS, SHARED = 23, 24, 4, 12
"""Tokens; rows of the data; steps; rows that all processes together read at once."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TURNS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": 5}),
    "gemma2": ("Gemma2", _TURNS | {"query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3", _TURNS | {"query_pre_attn_scalar": 8}),
    "qwen2": ("Qwen2", _TURNS | {"use_sliding_window": True}),
    "qwen3": ("Qwen3", _TURNS | {"use_sliding_window": True}),
    "gpt_oss": ("GptOss", _TURNS | _EXPERTS),
}


@dataclass(frozen=True)
class Case:
    """What is trained: a model, how rows are laid, and settings of the Trainer; `ranks` share a row (None: all)."""

    model: str = "mistral"
    packed: bool = False
    ranks: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    predicts: bool = False


CASES: dict[str, Case] = {
    **{name: Case(name) for name in MODELS},
    "packed": Case(packed=True),
    "packed_gpt_oss": Case("gpt_oss", packed=True),
    "resumed": Case(resumes=True, predicts=True),
    "two_groups": Case("gemma3", ranks=2, resumes=True, predicts=True),
    "per_batch": Case(settings={"average_tokens_across_devices": False}),
    "recomputed": Case(settings={"gradient_checkpointing": True}),
}


@dataclass
class Trained:
    """What a process saw: losses of steps and evaluations, norms of gradients before clipping, the weights at the end,
    predictions, and whether the Trainer is as it was before."""

    losses: list[float]
    evaluated: list[float]
    norms: list[float]
    weights: list[float]
    predicted: list[float] = field(default_factory=list)
    is_clean: bool = True

    def far_from(self, other: "Trained") -> float:
        """The largest difference of any number."""
        pairs = [(mine, getattr(other, name)) for name, mine in asdict(self).items() if isinstance(mine, list)]
        assert all(len(mine) == len(theirs) for mine, theirs in pairs), [(len(m), len(t)) for m, t in pairs]
        return max(abs(a - b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))


def rows() -> list[dict[str, list[int]]]:
    """Rows of 4 to 13 tokens, which differ in their lengths."""
    import torch

    drawn = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 14, (ROWS * STEPS,), generator=drawn).tolist()
    found = [torch.randint(3, VOCABULARY, (length,), generator=drawn).tolist() for length in lengths]
    return [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in found]


def pad(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Rows padded on the right."""
    import torch

    width = max(len(row["input_ids"]) for row in batch)

    def padded(name: str, filler: int) -> Any:
        return torch.tensor([row[name] + [filler] * (width - len(row[name])) for row in batch])

    real = [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in batch]
    return {"input_ids": padded("input_ids", 0), "attention_mask": torch.tensor(real), "labels": padded("labels", -100)}


def built(name: str, in_shards: bool) -> Any:
    """The model; without shards it attends as transformers does, and its loss is not rounded to float32."""
    import torch
    import transformers

    from asterism.models import use_pattern

    family, fields = MODELS[name]
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**SIZES | fields, use_cache=False)
    config._attn_implementation = "eager" if family in ("Gemma2", "GptOss") else "sdpa"
    config._experts_implementation = "eager"  # others have no float64
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).double()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():  # also sinks and norms, so that nothing is trivial
        weight.data.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=0.1)
    if in_shards:
        return use_pattern(model)
    model.loss_function = _exact_loss
    return model


def _exact_loss(
    logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, shift_labels: Any = None, **_: Any
) -> Any:
    from torch.nn.functional import cross_entropy, pad

    labels = pad(labels, (0, 1), value=-100)[..., 1:] if shift_labels is None else shift_labels
    summed = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return summed / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def trainer_of(case: Case, folder: Path, in_shards: bool, **settings: Any) -> Any:
    import transformers

    processes = int(os.environ.get("WORLD_SIZE", 1))
    asked = {
        "per_device_train_batch_size": SHARED // processes,
        "per_device_eval_batch_size": SHARED // processes,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "max_grad_norm": 0.5,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps" if case.resumes else "no",
        "save_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
        "remove_unused_columns": False,
    }
    collator = pad
    if case.packed:
        collator = transformers.DataCollatorWithFlattening(return_tensors="pt")
    arguments = transformers.TrainingArguments(output_dir=str(folder), **asked | case.settings | settings)
    data = rows()
    return transformers.Trainer(
        built(case.model, in_shards),
        arguments,
        train_dataset=data,
        eval_dataset=data[:ROWS],
        data_collator=collator,
        callbacks=[],
    )


def trained(case: Case, folder: Path, in_shards: bool) -> Trained:
    from contextlib import nullcontext

    from asterism.models import shard_sequences

    trainer = trainer_of(case, folder, in_shards)
    before = set(vars(trainer))
    context = shard_sequences(trainer, case.ranks, dense_exchange=True) if in_shards else nullcontext()
    with context:
        if case.resumes:
            trainer.train()
            trainer = trainer_of(case, folder, in_shards)
            before = set(vars(trainer))
    again = shard_sequences(trainer, case.ranks, dense_exchange=True) if in_shards else nullcontext()
    with again:
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if case.resumes else None)
        found = trainer.predict(rows()[:ROWS]).predictions if case.predicts else None
    logs = trainer.state.log_history
    return Trained(
        losses=[log["loss"] for log in logs if "loss" in log],
        evaluated=[log["eval_loss"] for log in logs if "eval_loss" in log],
        norms=[log["grad_norm"] for log in logs if "grad_norm" in log],
        weights=[x for weight in trainer.model.parameters() for x in weight.detach().flatten().tolist()],
        predicted=[] if found is None else found.ravel().tolist(),
        is_clean=not {"training_step", "prediction_step", "compute_loss"} & (set(vars(trainer)) | before),
    )


def launch(processes: int, names: Sequence[str], kind: str = "cases", patience: float = 300) -> list[dict[str, Any]]:
    """What each process reports of each case; AssertionError with what they wrote where one fails or is silent."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(processes):
            placed = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            environment = {**os.environ, **{name: str(x) for name, x in placed.items()}}
            environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
            environment |= {"MASTER_PORT": "0", "TRANSFORMERS_VERBOSITY": "error"}
            command = [sys.executable, __file__, folder, kind, *names]
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        try:
            said = [process.communicate(timeout=patience)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        assert all(process.returncode == 0 for process in started), "\n".join(said)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]


def _join(folder: Path) -> int:
    """This process's rank, when it has met the others."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # of what the Trainer adds losses to
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes > 1:
        store = f"file://{folder / 'store'}"
        patience = timedelta(seconds=120)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes, timeout=patience)
    return rank


def main(folder: Path, kind: str, names: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    rank = _join(folder)
    in_shards = int(os.environ["WORLD_SIZE"]) > 1
    found: dict[str, Any] = {}
    if kind == "cases":
        for name in names:
            found[name] = asdict(trained(CASES[name], folder / name, in_shards))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
