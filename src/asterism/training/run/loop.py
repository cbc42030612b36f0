"""The training loop: transformers' Trainer with its logging, evaluation, checkpoints and random sampling taken out.

What is left is what it is good at: the loop itself, accumulation, clipping, devices. Everything else is the session's.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from asterism.models import AsterismConfig
from asterism.randomness import derive
from asterism.training.run.arithmetic import loss_of
from asterism.training.run.folder import RunFolder
from asterism.training.run.heap import Heap
from asterism.training.run.processes import Processes
from asterism.training.run.session import Session
from asterism.training.run.sharding import whole
from asterism.training.settings.configuration import TrainingConfig

_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables by which accelerate finds that there are other processes."""


class Loop(Trainer):
    """Runs a session's steps until it says stop. Data and dropout of a step are functions of (seed, step)."""

    # What compute_loss returns is the mean over one slice; the Trainer divides it by the number of slices.
    loss_is_scaled_for_ga = False

    def __init__(self, session: Session, arguments: TrainingArguments) -> None:
        schedule = LambdaLR(session.optimizer, session.learning_rate_factor)
        own = dict(vars(session.model.config))
        super().__init__(session.model, arguments, optimizers=(session.optimizer, schedule), callbacks=[session])
        # The Trainer writes its `use_cache` into the model's configuration, which is saved with the model: a run that
        # was resumed at its end, and so needed no Trainer, would save another one.
        vars(session.model.config).clear()
        vars(session.model.config).update(own)
        # transformers 5.17 knows no `loss_is_scaled_for_ga`: it divides for models without arguments of the loss alone.
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)
        self.session = session
        self.losses: list[torch.Tensor] = []
        self.weights: list[tuple[float, float]] = []

    def get_train_dataloader(self) -> Iterator[dict[str, torch.Tensor]]:  # type: ignore[override]  # the Trainer iterates
        """Slices of batches without end: of every tensor, this process's part of micro_batch_size sequences.

        Where the tokens of a row are shared out, targets are shifted before, because a shard knows only its own.
        """
        processes, heap = self.session.processes, Heap()
        for step in count(self.session.state.step):
            heap.tidy()
            batch = self.session.objective.batch(self.session.setup.corpus, step)
            parts = self.session.config.gradient_accumulation_steps
            slices = zip(*(tensor.chunk(parts) for tensor in batch.values()), strict=True)
            by_labels, by_rows = (
                slice_weights(one, parts, processes.shape.readers)[processes.reader] for one in (batch, rows_of(batch))
            )
            self.weights = list(zip(by_labels, by_rows, strict=True))
            for part in slices:
                own = {name: processes.rows(tensor) for name, tensor in zip(batch, part, strict=True)}
                yield processes.tokens(self.session.model, own)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """One slice, forward and backward, with dropout keyed by (seed, step, slice) and the process's part."""
        shard_number = self.session.processes.shard
        torch.manual_seed(derive(self._seed(), shard_number) if shard_number else self._seed())
        with self.session.processes.sharing():
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses.append(loss)
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one slice, which is a mean over its labels, by their share in those of the step."""
        is_ours = isinstance(self.session.model.config, AsterismConfig)
        objective = self.session.objective
        return loss_of(
            model,
            inputs,
            self.session.config.dtype,
            self._seed() if is_ours else None,
            label_smoothing=objective.label_smoothing,
            positive_weight=objective.positive_weight,
            weights=self.weights[len(self.losses)],
        )

    def _seed(self) -> int:
        """Of this slice of this step, the same for all who share its rows."""
        processes = self.session.processes
        own = (processes.reader,) if processes.shape.readers > 1 else ()
        return derive(self.session.config.seed, self.session.state.step, len(self.losses), *own)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clip, and show loss and norm to the session, which raises if they are not finite: before the optimiser steps.

        Gradients are those of all processes. Alone, both numbers are read at once, the only time a step waits for the
        device.
        """
        self.session.processes.sum_gradients(model.parameters())
        norm = whole(torch.as_tensor(super()._clip_grad_norm(model)))
        loss, norm_value = torch.stack([torch.stack(self.losses).sum(), norm]).tolist()
        self.losses.clear()
        self.session.observe(loss, norm_value)
        return norm

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted here, where it would be counted anew for every slice; see `estimate`."""
        return 0


def slice_weights(batch: Mapping[str, torch.Tensor], slices: int, readers: int = 1) -> list[list[float]]:
    """What the mean losses of the slices of each reader are multiplied by: float [readers][slices].

    The sum over the readers of their means over the slices is then the mean of the whole batch. Weights differ where
    each column of the labels has one and some are left out, as behind the ends of texts, and where readers have more
    rows than others.
    """
    labels = batch.get("labels", batch.get("shift_labels"))
    if labels is None or labels.ndim < 2 or labels.is_floating_point():
        labels = torch.zeros(len(next(iter(batch.values()))), 1)
    parts = [part.tensor_split(readers) for part in labels.chunk(slices)]
    known = torch.tensor([[(part[reader] >= 0).sum() for part in parts] for reader in range(readers)])
    return (slices * known.double() / known.sum().clamp(min=1)).tolist()


def rows_of(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch that has nothing but its rows."""
    return {"rows": next(iter(batch.values()))}


def loop_arguments(config: TrainingConfig, folder: RunFolder, processes: Processes) -> TrainingArguments:
    """The Trainer's arguments for a run: it believes itself alone."""
    arguments = TrainingArguments(
        output_dir=str(folder.path),
        max_steps=config.steps,
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_grad_norm=config.gradient_clip,
        seed=config.seed % 2**32,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cache=True,
        log_level="error",
    )
    # One process drives one device: with more, the Trainer would split every batch over all it sees.
    arguments._n_gpu = min(1, arguments.n_gpu)
    if not processes.alone and arguments.device.type == "cuda":
        vars(arguments)["_setup_devices"] = torch.device("cuda", torch.cuda.current_device())
    return arguments


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the body only a run's configuration decides how it computes, whatever the caller or the environment says.

    accelerate reads its settings, the arithmetic among them, from variables of the environment, and joins a group of
    processes, which it waits for, if a launcher has left its own. They are hidden, and put back at the end. The
    caller's autocast, which the backward pass would see, and its `no_grad` do not hold.
    """
    before = {name: value for name, value in os.environ.items() if _is_a_launchers(name)}
    _put_in_environment({})
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        _put_in_environment(before)


def _is_a_launchers(name: str) -> bool:
    return name.startswith("ACCELERATE_") or name in _LAUNCHERS


def _put_in_environment(variables: dict[str, str]) -> None:
    """Have these of a launcher's variables, and no others."""
    for name in [name for name in os.environ if _is_a_launchers(name)]:
        del os.environ[name]
    os.environ.update(variables)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Only errors from transformers, and no progress bars of its own, within the body."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
