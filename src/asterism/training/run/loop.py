"""The training loop: slices of a batch forward and backward, sums over processes, and a clipped step of the optimiser.

Most of transformers' Trainer would have to be disabled (logging, evaluation, checkpoints, sampling, the environment of
launchers), and the remaining lines would be here anyway. The session does everything else.
"""

from collections.abc import Iterator, Mapping

import torch

from asterism.models import AsterismConfig
from asterism.randomness import derive
from asterism.training.run.allocator import Heap
from asterism.training.run.arithmetic import loss_of
from asterism.training.run.schedule import learning_rate_factor
from asterism.training.run.session import Session
from asterism.training.run.sharding import whole


def take_steps(session: Session) -> None:
    """Take steps until the run is finished or interrupted. Data and dropout of a step are functions of (seed, step)."""
    config, model, optimizer, state = session.config, session.model, session.optimizer, session.state
    heap = Heap()
    while not session.stops():
        heap.tidy()
        session.begin_step()
        for group in optimizer.param_groups:
            factor = learning_rate_factor(config, state.step, state.seconds, state.begun)
            group["lr"] = config.learning_rate * factor
        model.train()
        losses = [_backward(session, *one) for one in _slices(session)]
        session.processes.sum_gradients(model.parameters())
        norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip))
        loss, norm_value = torch.stack([torch.stack(losses).sum(), norm]).tolist()  # alone, the only wait for a device
        session.observe(loss, norm_value)  # raises for what is not finite: before the weights change
        optimizer.step()
        model.zero_grad()  # evaluations and checkpoints need no gradients in memory
        session.end_step()


def _slices(session: Session) -> Iterator[tuple[int, dict[str, torch.Tensor], tuple[float, float]]]:
    """The slices of a step: their number, of every tensor this process's part, and what their mean losses are
    multiplied by, of those over labels and of those over rows.

    If the tokens of a row are sharded, targets are shifted before, because a shard has only its own tokens.
    """
    processes, count = session.processes, session.config.gradient_accumulation_steps
    batch = session.objective.batch(session.corpus, session.state.step)
    rows, part_of = {"rows": next(iter(batch.values()))}, processes.row_part
    by_labels, by_rows = (slice_weights(one, count, processes.shape.row_parts)[part_of] for one in (batch, rows))
    parts = zip(*(tensor.chunk(count) for tensor in batch.values()), strict=True)
    for number, part in enumerate(parts):
        own = {name: processes.rows(tensor) for name, tensor in zip(batch, part, strict=True)}
        inputs = processes.tokens(session.model, own)
        on_device = {name: tensor.to(session.model.device) for name, tensor in inputs.items()}
        yield number, on_device, (by_labels[number], by_rows[number])


def _backward(
    session: Session, number: int, inputs: dict[str, torch.Tensor], weights: tuple[float, float]
) -> torch.Tensor:
    """Compute one slice forward and backward; returns its part of the step's loss.

    Dropout is keyed by (seed, step, slice), by the rows that the process reads, and by its tokens of them.
    """
    processes, config = session.processes, session.config
    part = (processes.row_part,) if processes.shape.row_parts > 1 else ()
    seed = derive(config.seed, session.state.step, number, *part)
    torch.manual_seed(derive(seed, processes.shard) if processes.shard else seed)
    with processes.sharing():
        loss = loss_of(
            session.model,
            inputs,
            config.dtype,
            seed if isinstance(session.model.config, AsterismConfig) else None,
            label_smoothing=session.objective.label_smoothing,
            positive_weight=session.objective.positive_weight,
            weights=weights,
            arguments=session.objective.arguments,
        )
        loss = loss / config.gradient_accumulation_steps
        loss.backward()
    return loss.detach()


def slice_weights(batch: Mapping[str, torch.Tensor], slices: int, parts: int = 1) -> list[list[float]]:
    """The factors of the mean losses of the slices, for each part of the rows: float [parts][slices].

    With them, the sum over the parts of their means over the slices is the mean of the whole batch. Weights differ if
    some labels are left out, as after the ends of texts, or if some parts have more rows than others.
    """
    labels = batch.get("labels", batch.get("shift_labels"))
    if labels is None or labels.ndim < 2 or labels.is_floating_point():
        labels = torch.zeros(len(next(iter(batch.values()))), 1)
    cut = [one.tensor_split(parts) for one in labels.chunk(slices)]
    known = torch.tensor([[(one[part] >= 0).sum() for one in cut] for part in range(parts)])
    return (slices * known.double() / known.sum().clamp(min=1)).tolist()
