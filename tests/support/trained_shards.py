"""Small models of transformers trained by its Trainer, on one process without shards and on several with them."""

import json
import multiprocessing as mp
import os
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from native_models import softmax_in_float64
from repository import docs_page
from torch.nn import functional

from asterism.errors import ConfigurationError
from asterism.models import shard_sequences, use_pattern

GRACE = 5.0
"""Seconds after the first error in which the other processes may tell theirs."""

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
    "gpt_oss_packed": Case("gpt_oss", packed=True),
    "resumed": Case(resumes=True, predicts=True),
    "two_groups": Case("gemma3", ranks=2, resumes=True, predicts=True),
    "of_each_batch": Case(settings={"average_tokens_across_devices": False}),
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
    drawn = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 14, (ROWS * STEPS,), generator=drawn).tolist()
    found = [torch.randint(3, VOCABULARY, (length,), generator=drawn).tolist() for length in lengths]
    return [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in found]


def pad(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Rows padded on the right."""
    width = max(len(row["input_ids"]) for row in batch)

    def padded(name: str, filler: int) -> Any:
        return torch.tensor([row[name] + [filler] * (width - len(row[name])) for row in batch])

    real = [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in batch]
    return {"input_ids": padded("input_ids", 0), "attention_mask": torch.tensor(real), "labels": padded("labels", -100)}


def built(name: str, in_shards: bool) -> Any:
    """The model; without shards it attends as transformers does, and its loss is not rounded to float32."""
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
    _widen_norms(model)
    if in_shards:
        return use_pattern(model)
    model.loss_function = _exact_loss
    return model


def _widen_norms(model: Any) -> None:
    """Norms of transformers round to float32, also gradients, and so differ where a loss is three times as large."""
    for norm in model.modules():
        if type(norm).__name__.endswith("RMSNorm"):
            norm.forward = partial(_normed, norm, 1 if type(norm).__name__.startswith("Gemma") else 0)


def _normed(norm: Any, more: int, x: torch.Tensor) -> torch.Tensor:
    epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    return (norm.weight + more) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def _exact_loss(
    logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, shift_labels: Any = None, **_: Any
) -> Any:
    labels = functional.pad(labels, (0, 1), value=-100)[..., 1:] if shift_labels is None else shift_labels
    summed = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return summed / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def trainer_of(case: Case, folder: Path, in_shards: bool, **settings: Any) -> Any:
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
        "ddp_find_unused_parameters": False,
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
    trainer = trainer_of(case, folder, in_shards)
    before = set(vars(trainer))
    context = shard_sequences(trainer, case.ranks, dense_exchange=True) if in_shards else nullcontext()
    with context:
        if case.resumes:
            trainer.train()
            trainer = trainer_of(case, folder, in_shards)
            before = set(vars(trainer))
    again = shard_sequences(trainer, case.ranks, dense_exchange=True) if in_shards else softmax_in_float64()
    with again:
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if case.resumes else None)
        found = trainer.predict(rows()[:ROWS]) if case.predicts else None
    logs = trainer.state.log_history
    return Trained(
        losses=[log["loss"] for log in logs if "loss" in log],
        evaluated=[log["eval_loss"] for log in logs if "eval_loss" in log],
        norms=[log["grad_norm"] for log in logs if "grad_norm" in log],
        weights=[x for weight in trainer.model.parameters() for x in weight.detach().flatten().tolist()],
        predicted=[] if found is None else found.predictions[found.label_ids != -100].ravel().tolist(),
        is_clean=not {"training_step", "prediction_step", "compute_loss"} & (set(vars(trainer)) | before),
    )


def launch(processes: int, function: Callable[..., Any], *arguments: Any, patience: float = 300) -> list[Any]:
    """What function(folder, *arguments) returns in each of new processes that have joined as torchrun joins them;
    AssertionError with what they raised where one fails or is silent.

    The Trainer needs a world of its own, so these are not the workers of gloo.py.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["asterism.parallel", "asterism.models", "asterism.models.drop_in.trainer"])
    with tempfile.TemporaryDirectory() as folder:
        given = [(Path(folder), rank, processes, function, arguments) for rank in range(processes)]
        started = [context.Process(target=_run, args=one, daemon=True) for one in given]
        for process in started:
            process.start()
        end = time.monotonic() + patience
        while any(process.is_alive() for process in started) and time.monotonic() < end:
            time.sleep(0.05)
            if any(process.exitcode for process in started):
                end = min(end, time.monotonic() + GRACE)
        for process in started:
            process.kill()
            process.join()
        found = [json.loads(path.read_text()) if path.exists() else "silent" for path in _reports(folder, processes)]
    assert all(isinstance(one, dict) for one in found), "\n".join(map(str, found))
    return [one["found"] for one in found]


def _reports(folder: str, processes: int) -> list[Path]:
    return [Path(folder, f"{rank}.json") for rank in range(processes)]


def _run(folder: Path, rank: int, processes: int, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    warnings.simplefilter("ignore")
    try:
        _join(folder, rank, processes)
        report: Any = {"found": function(folder, *arguments)}
    except BaseException:
        report = f"rank {rank} of {processes}: {traceback.format_exc()}"
    written = folder / f"{rank}.part"
    written.write_text(json.dumps(report))
    written.rename(folder / f"{rank}.json")
    os._exit(0 if isinstance(report, dict) else 1)  # at once: the others may wait in a collective


def _join(folder: Path, rank: int, processes: int) -> None:
    placed = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(x) for name, x in placed.items()} if processes > 1 else {}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # of what the Trainer adds losses to
    if processes > 1:
        store, patience = f"file://{folder / 'store'}", timedelta(seconds=120)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes, timeout=patience)


def train_whole(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    return {name: asdict(trained(CASES[name], folder / name, in_shards=False)) for name in names}


def train_in_shards(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    return {name: asdict(trained(CASES[name], folder / name, in_shards=True)) for name in names}


def run_the_loop(folder: Path) -> list[float]:
    """The loop of the page, with accelerate: the weights at its end, and those of DistributedDataParallel alone."""
    (text,) = re.findall(r"^```py\n(.*?)^```$", docs_page("howto/trainer.md").read_text(), re.MULTILINE | re.DOTALL)
    text = text.replace("CausalLM(config)", "CausalLM(config).double()")
    known: dict[str, Any] = {}
    exec(compile(text, "trainer.md", "exec"), known)
    torch.manual_seed(0)
    model = known["MistralForCausalLM"](known["config"]).double()
    alone = torch.nn.parallel.DistributedDataParallel(use_pattern(model))
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    for row in known["rows"].split(1)[dist.get_rank() :: dist.get_world_size()]:
        _exact_loss(alone(row).logits, row, 256).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(known["model"].parameters(), alone.parameters(), strict=True)
    return [(one - other).abs().max().item() for one, other in pairs]


# --- refusals --------------------------------------------------------------------------------------------------------


class OwnLoss(transformers.Trainer):
    """Reads the outputs of a model itself."""

    def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
        return super().compute_loss(model, inputs, **options)


def _pad_left(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    return {name: x.flip(1) for name, x in pad(batch).items()}


def _with_text(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    return pad(batch) | {"text": "what is in the rows"}


def _one_token(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    return {name: x[:, :1] for name, x in pad(batch).items()}


def _unknown_labels(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
    return pad(batch) | {"labels": pad(batch)["input_ids"] + VOCABULARY}


def refusals(folder: Path) -> dict[str, str]:
    """What this process is told, in turn, of all that cannot work; "of one" is wrong on the second process alone."""
    is_second = int(os.environ["RANK"]) == 1

    def trains(
        collator: Any = pad, model: str = "mistral", ranks: Any = None, dense: bool = False, **more: Any
    ) -> None:
        trainer = trainer_of(Case(model), folder, True, **more)
        trainer.data_collator = collator
        with shard_sequences(trainer, ranks, dense_exchange=dense):
            trainer.train()

    def evaluates_first() -> None:
        trainer = trainer_of(Case(), folder, True)
        with shard_sequences(trainer):
            trainer.evaluate()
            trainer.train()

    def enters(kind: Any = transformers.Trainer, in_shards: bool = True, twice: bool = False) -> None:
        model = built("mistral", in_shards)
        arguments = transformers.TrainingArguments(str(folder), report_to="none", use_cpu=True)
        trainer = kind(model, arguments)
        with shard_sequences(trainer), shard_sequences(trainer) if twice else nullcontext():
            pass

    asked: dict[str, Callable[[], None]] = {
        "no pattern": lambda: enters(in_shards=False),
        "no pattern of one": lambda: enters(in_shards=not is_second),
        "own loss": lambda: enters(OwnLoss),
        "twice": lambda: enters(twice=True),
        "no trainer of one": lambda: enters(lambda *_: 5 if is_second else transformers.Trainer(*_)),
        "ranks": lambda: trains(ranks=3),
        "ranks of one": lambda: trains(ranks=1 if is_second else 2),
        "evaluated first": evaluates_first,
        "smoothed": lambda: trains(label_smoothing_factor=0.1),
        "dense": lambda: trains(model="gpt_oss"),
        "padded left of one": lambda: trains(_pad_left if is_second else pad),
        "text": lambda: trains(_with_text),
        "text of one": lambda: trains(_with_text if is_second else pad),
        "short of one": lambda: trains(_one_token if is_second else pad),
        "unknown labels of one": lambda: trains(_unknown_labels if is_second else pad),
    }
    return {name: _told(call) for name, call in asked.items()}


def _told(call: Callable[[], None]) -> str:
    try:
        call()
    except ConfigurationError as error:
        return f"{error.code}: {error}"
    return "nothing"


def refuse_in_one_group(folder: Path) -> str:
    """What a process is told where another group of two has a batch that cannot be computed, amid its turns."""
    trainer = trainer_of(CASES["two_groups"], folder, True)
    trainer.data_collator = _unknown_labels if int(os.environ["RANK"]) == 3 else pad

    def call() -> None:
        with shard_sequences(trainer, 2, dense_exchange=True):
            trainer.train()

    return _told(call)


def default_run(folder: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Both in the same processes, whose start takes longest."""
    return train_in_shards(folder, names), refusals(folder)
