"""The Trainer of transformers over sequences in shards: its batches, sums and files stay as they are.

Every process reads batches of its own, as ever. Where the Trainer computes one, the processes that share sequences
exchange theirs and take turns: all of them compute the batch of the first, each its shard of every row, then that of
the second, and so on. Gradients are summed by the Trainer's own means (DistributedDataParallel) after the last turn. So
a step is that of the Trainer without shards, and a process holds the activations of a part of a batch instead of all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError, shown
from asterism.labels import shifted
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.models.drop_in.sharded import target_of
from asterism.parallel import SequenceParallel, shard, share
from asterism.parallel.agreement import agree, one_call, refuse
from asterism.parallel.collectives import all_tokens, gather_numbers, has_processes, leave, neighbours, rank_of, size_of
from asterism.parallel.collectives import everyone as all_processes
from asterism.parallel.context import resumed

_STEPS = ("training_step", "prediction_step", "compute_loss")
"""The methods of a Trainer that compute a batch."""

_ITEMS = "num_items_in_batch"


@contextmanager
def shard_sequences(trainer: Trainer, ranks: int | None = None, *, dense_exchange: bool = False) -> Iterator[None]:
    """Run a Trainer of transformers with the tokens of each row divided among `ranks` neighbouring processes.

        with shard_sequences(trainer):
            trainer.train()

    Enter it in every process that torchrun (or accelerate launch) has started, around `train`, `evaluate` and
    `predict`. The model is one that `use_pattern` was given, or one of ours.

    A step computes what the Trainer computes without it on as many processes: the same rows, loss, gradients, clipping,
    checkpoints and metrics. Losses are computed in the dtype of the logits, without transformers' rounding to float32.
    Dropout of hidden states draws other values: each process draws for its own tokens. Together with dropout inside
    attention it is refused.

    ranks           how many processes share a row, by default all. The others read other rows: 4 processes with
                    ranks=2 are two groups.
    dense_exchange  whether layers may be computed that move as many bytes as dense attention, such as the full layers
                    of Gemma 3, and dropout inside attention

    Started as one process, it does nothing. At its end the Trainer is as before.

    Raises ConfigurationError, on every process, for models and settings that cannot work; within it steps raise for
    batches that cannot, such as rows padded on the left.
    """
    if not has_processes():
        _check_single(trainer, ranks)
        yield
        return
    everyone = SequenceParallel(all_processes(), rank_of(), size_of())
    device = torch.device("cpu") if not isinstance(trainer, Trainer) else trainer.args.device
    asked = {"call": "shard_sequences", "ranks": str(ranks), "dense_exchange": str(dense_exchange)}
    agree(everyone, asked, (0, 0), device, wants_numbers=False)
    with one_call(everyone, device, asked):
        _check(trainer, everyone.ranks if ranks is None else ranks, everyone.ranks)
    group = neighbours(everyone.ranks if ranks is None else ranks, timedelta(seconds=trainer.args.ddp_timeout))
    # A rank that left a group which others are still making, or computing with, would break their connections.
    agree(everyone, {"call": "the begin of shard_sequences"}, (0, 0), device, wants_numbers=False)
    try:
        context = SequenceParallel(group, rank_of(group), size_of(group), dense_exchange)
        with _installed(_Turns(trainer, context, everyone)):
            yield
        agree(everyone, {"call": "the end of shard_sequences"}, (0, 0), device, wants_numbers=False)
    finally:
        leave(group)


@contextmanager
def _installed(turns: "_Turns") -> Iterator[None]:
    """In the place of the methods of this one Trainer."""
    own = vars(turns.trainer)
    own |= {name: getattr(turns, name) for name in _STEPS}
    try:
        yield
    finally:
        for name in _STEPS:
            own.pop(name, None)


class _Turns:
    """The steps of a Trainer, each batch of whole rows computed by all ranks that share sequences."""

    def __init__(self, trainer: Trainer, context: SequenceParallel, everyone: SequenceParallel) -> None:
        self.trainer = trainer
        self.context = context
        self.everyone = everyone
        self.steps = {name: getattr(trainer, name) for name in _STEPS}
        self.items: Any = None
        """How many labels the loss of the batch whose turn it is is divided by."""

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of this process's batch, after the backward passes of all."""
        own = None
        self._by_all(partial(self._check_sums, model))
        for turn, part in self._parts(inputs, num_items_in_batch):
            # The others are added to the gradients of the last.
            waits = turn + 1 < self.context.ranks
            with resumed(self.context), self.trainer.accelerator.no_sync(model) if waits else nullcontext():
                loss = self.steps["training_step"](model, part, self.items)
            own = loss if turn == self.context.rank else own
        assert own is not None
        return own

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, Any]:
        """The loss, predictions [B, N, ...] and labels of this process's batch."""
        own: Any = None
        for turn, part in self._parts(inputs, self._count(inputs)):
            with resumed(self.context):
                loss, found, _ = self.steps["prediction_step"](model, part, prediction_loss_only, ignore_keys)
            found = None if found is None else self._whole(found, part)
            own = (loss, found) if turn == self.context.rank else own
        return (*own, None if prediction_loss_only else self._labels(inputs))

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """That of the batch whose turn it is: equal on all ranks that share its rows, with a part of its gradient."""
        items = None if num_items_in_batch is None else self.items  # evaluation counts labels of shards
        compute = partial(self.steps["compute_loss"], return_outputs=return_outputs, num_items_in_batch=items)
        return self._by_all(partial(compute, model, inputs))

    def _check_sums(self, model: Any) -> None:
        """Raises ConfigurationError for a model whose gradients nobody sums: one that was evaluated before training,
        which accelerate then leaves as it is."""
        if self.everyone.ranks > 1 and not isinstance(model, DistributedDataParallel):
            raise ConfigurationError(
                "gradients-not-summed",
                f"the Trainer trains {type(model).__name__} without DistributedDataParallel, so processes would end"
                " with different weights; this happens where evaluate or predict ran before train: set"
                " eval_on_start=True instead, or make a new Trainer to train",
            )

    def _parts(self, inputs: dict[str, Any], items: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """The turns, and this process's part of each one's batch."""
        batches = self._by_all(partial(share, {**inputs, _ITEMS: items}, self.context))
        for turn, batch in enumerate(batches):
            self.items = batch.pop(_ITEMS, None)
            yield turn, self._by_all(partial(self._part, batch))

    def _part(self, batch: dict[str, Any]) -> dict[str, Any]:
        labels, tokens = batch.get("labels"), batch.get("input_ids", batch.get("inputs_embeds"))
        if tokens is not None and tokens.ndim > 1 and 0 < tokens.shape[1] < self.context.ranks:
            raise ConfigurationError(
                "rows-shorter-than-ranks",
                f"a batch has rows of {tokens.shape[1]} tokens, but {self.context.ranks} processes share each, and need"
                " a token each: pad rows on the right, or drop them",
            )
        if target_of(self.trainer.model) == "shift_labels" and labels is not None and "shift_labels" not in batch:
            batch = batch | {"shift_labels": shifted(labels)}
        return shard(batch, self.context)

    def _by_all(self, compute: Callable[[], Any]) -> Any:
        """What it gives, if it raises on no process, also of those that share no row with this one."""
        device = self.trainer.args.device
        try:
            found = compute()
        except Exception as error:
            refuse(self.everyone, error, device)
            raise
        agree(self.everyone, {"call": "a step of Trainer"}, (0, 0), device, wants_numbers=False)
        return found

    def _count(self, inputs: dict[str, Any]) -> Any:
        """How many labels the loss of an evaluated batch is divided by, where the Trainer counts them."""
        count = getattr(self.trainer, "_get_num_items_in_batch", None)
        return None if count is None else count([inputs], self.trainer.args.device)

    def _whole(self, found: Any, part: dict[str, Any]) -> torch.Tensor:
        """[B, N of all, ...] of predictions [B, N of this rank, ...]."""
        tokens = next(part[name] for name in ("input_ids", "inputs_embeds") if name in part)
        if not isinstance(found, torch.Tensor) or found.shape[:2] != tokens.shape[:2]:
            raise ConfigurationError(
                "predictions-in-shards",
                "within shard_sequences predictions are logits of tokens, and the model returns others, too: set"
                " prediction_loss_only=True, or name them in ignore_keys",
            )
        sizes = gather_numbers([tokens.shape[1]], self.context.group, tokens.device)[:, 0]
        return all_tokens(found.detach(), Shards.of_sizes(tuple(sizes.tolist())), self.context.group)

    def _labels(self, inputs: dict[str, Any]) -> Any:
        """As the Trainer returns them: one tensor, or several."""
        found = tuple(inputs.get(name) for name in self.trainer.label_names)
        if not found or any(one is None for one in found):
            return None
        return found[0] if len(found) == 1 else found


# --- refusals --------------------------------------------------------------------------------------------------------


def _check_single(trainer: Any, ranks: int | None) -> None:
    if ranks not in (None, 1):
        raise ConfigurationError(
            "not-launched",
            f"shard_sequences(ranks={shown(ranks)}) needs processes, and this is the only one: start the script with"
            f" torchrun --nproc-per-node {ranks}",
        )
    _check(trainer, 1, 1)


def _check(trainer: Any, ranks: Any, processes: int) -> None:
    """Raises ConfigurationError for what cannot work."""
    if not isinstance(trainer, Trainer):
        raise ConfigurationError(
            "not-a-trainer", f"shard_sequences needs a Trainer of transformers, got {type(trainer).__name__}"
        )
    if type(ranks) is not int or ranks < 1 or processes % ranks:
        raise ConfigurationError(
            "ranks-of-processes",
            f"shard_sequences(ranks={shown(ranks)}): {processes} processes cannot be divided into groups of that many;"
            " give a divisor of their number",
        )
    _check_model(trainer.model)
    _check_steps(trainer)
    _check_settings(trainer)


def _check_model(model: Any) -> None:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    if getattr(config, "_attn_implementation", None) != IMPLEMENTATION and not _is_ours(config):
        raise ConfigurationError(
            "not-a-pattern-model",
            f"{type(base).__name__} attends by {getattr(config, '_attn_implementation', None)!r}, which cannot read"
            " shards: call use_pattern(model) before the Trainer is made",
        )


def _is_ours(config: Any) -> bool:
    return getattr(config, "model_type", None) == "asterism"


def _check_steps(trainer: Trainer) -> None:
    """Raises ConfigurationError for a Trainer that computes batches in its own way."""
    if any(name in vars(trainer) for name in _STEPS):
        raise ConfigurationError(
            "steps-replaced",
            f"this {type(trainer).__name__} has {' or '.join(_STEPS)} of its own, or is within shard_sequences already:"
            " a sequence is sharded once",
        )
    changed = [name for name in _STEPS if getattr(type(trainer), name) is not getattr(Trainer, name)]
    if changed:
        raise ConfigurationError(
            "steps-overridden",
            f"{type(trainer).__name__} overrides {', '.join(changed)}, which would get shards in place of whole rows:"
            " within shard_sequences use a Trainer that does not",
        )


def _check_settings(trainer: Any) -> None:
    """Raises ConfigurationError for a setting that shards and this Trainer do not allow together."""
    args = trainer.args
    unfit = {
        "compute_loss_func": trainer.compute_loss_func is not None,
        "label_smoothing_factor": bool(args.label_smoothing_factor),
        "auto_find_batch_size": args.auto_find_batch_size,
        "torch_compile": args.torch_compile,
        "use_liger_kernel": args.use_liger_kernel,
        "fsdp": trainer.is_fsdp_enabled,
        "deepspeed": trainer.is_deepspeed_enabled,
        "parallelism_config": getattr(trainer.accelerator, "parallelism_config", None) is not None,
        "several GPUs in one process": args.n_gpu > 1,
    }
    if found := [name for name, is_set in unfit.items() if is_set]:
        raise ConfigurationError(
            "trainer-settings",
            f"within shard_sequences the Trainer cannot have {', '.join(found)}: leave it out",
        )
