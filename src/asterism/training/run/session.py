"""The work next to the training loop: counting, checking, recording, evaluating, saving, and deciding when to stop."""

import math
import time
from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from asterism.errors import NonFiniteLossError
from asterism.training.run.checkpoint import TrainingState, gathered, save_checkpoint
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.events import EventFile
from asterism.training.run.folder import RunFolder
from asterism.training.run.picture import draw_history
from asterism.training.run.processes import Processes
from asterism.training.run.progress import Display, Status, watching
from asterism.training.run.schedule import progress
from asterism.training.run.setup import Setup
from asterism.training.run.sharding import in_parts
from asterism.training.run.signals import SIGNALS, Interrupts


class Session:
    """One session of a run: from its start or a checkpoint until it is finished or interrupted."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        display: Display,
        interrupts: Interrupts,
        processes: Processes,
    ) -> None:
        self.config, self.objective, self.corpus = setup.config, setup.objective, setup.corpus
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.state = state
        self.display = display
        self.interrupts = interrupts
        self.processes = processes
        self.events = EventFile(folder.tensorboard, first_step=state.step + 1) if processes.leads else None
        self.started = time.monotonic() - state.seconds
        self.agreed_seconds = state.seconds
        self.step_began = self.started
        self.busy_seconds, self.busy_steps = 0.0, 0
        self.evaluation_seconds: float | None = None
        self.gradient_norm = 0.0
        self.learning_rate = 0.0
        self.validation: float | None = None

    def stops(self) -> bool:
        """Whether the run is finished, or a signal ends this session."""
        interrupted = self.interrupts.received if self.processes.alone else self.interrupts.agreed
        return self.is_over() or interrupted is not None

    def is_over(self) -> bool:
        """Whether the run is finished."""
        return progress(self.config, self.state.step, self.state.seconds, self.state.begun) >= 1

    def observe(self, loss: float, gradient_norm: float) -> None:
        """Record a step that is about to change the weights.

        `loss` is this process's part, in nats, the norm is that before clipping. Raises NonFiniteLossError, in all
        processes, if either is not finite.
        """
        if not self.processes.alone:
            loss = self._agree(loss)
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {gradient_norm}"
            raise NonFiniteLossError(
                "loss-not-finite",
                f"step {self.state.step + 1}: {what}; training stopped before the weights changed. "
                f"Use a lower learning rate (now {self.config.learning_rate:g}) or a longer warm-up"
                f"{', or dtype float32' if self.config.dtype == 'bfloat16' else ''}",
            )
        self.state.loss_sum += loss
        self.state.loss_steps += 1
        self.gradient_norm = gradient_norm
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

    def _agree(self, loss: float = 0.0) -> float:
        """Agree on the loss of all processes, on a signal to any of them, and on the leader's clock."""
        seconds = time.monotonic() - self.started if self.processes.leads else 0.0
        got = [self.interrupts.received == number for number in SIGNALS]
        share = loss / self.processes.shape.cp  # those who share rows all have the loss of whole rows
        loss, self.agreed_seconds, *noted = self.processes.total([share, seconds, *got])
        self.interrupts.agreed = next((number for number, count in zip(SIGNALS, noted, strict=True) if count), None)
        return loss

    def begin_step(self) -> None:
        """Called before the batch of a step is drawn."""
        self.step_began = time.monotonic()
        self.display.doing(f"step {self.state.step + 1:,}")

    def end_step(self) -> None:
        """Called after the weights have changed."""
        now = time.monotonic()
        self.busy_seconds += now - self.step_began
        self.busy_steps += 1
        self.state.step += 1
        self.state.seconds = now - self.started if self.processes.alone else self.agreed_seconds
        status = self.status()
        if self.state.step % self.config.log_every == 0:
            self.log()
        self.display.show(status)
        if not self.is_over() and self.state.step % self.config.evaluation_every == 0 and not self.ends_soon():
            self.evaluate()
        if not self.is_over() and self.state.step % self.config.checkpoint_every == 0:
            self.save()
            self._look_at_the_clock()
        if self.is_over() and self.state.loss_steps:
            self.log()

    def ends_soon(self) -> bool:
        """Whether `minutes` end the run before it has trained for as long again as an evaluation takes from now.

        Such an evaluation would delay the end, and be followed by the final one almost at once.
        """
        if self.config.minutes is None:
            return False
        return 60 * self.config.minutes - self.state.seconds <= 2 * self._evaluation_takes()

    def _evaluation_takes(self) -> float:
        """Seconds of an evaluation on the way: of the last one, or before the first a guess, that it costs a third of
        training on as much data, because it has no backward pass."""
        if self.evaluation_seconds is not None:
            return self.evaluation_seconds
        steps = (self.config.on_the_way.limit or 0) / self.objective.units_per_step
        return steps / 3 * self.state.seconds / self.state.step

    def _look_at_the_clock(self) -> None:
        """Count the time of an evaluation or checkpoint, lest another step begin after the end of `minutes`."""
        if self.processes.alone:
            self.state.seconds = time.monotonic() - self.started
        else:
            self._agree()
            self.state.seconds = self.agreed_seconds

    def status(self) -> Status:
        """The status of the run: means over the steps since the last record."""
        loss = self.state.loss_sum / self.state.loss_steps
        fraction = progress(self.config, self.state.step, self.state.seconds, self.state.begun)
        return Status(
            step=self.state.step,
            fraction=fraction,
            seconds_left=self.state.seconds * (1 / fraction - 1),
            loss=loss,
            metric=self.objective.metric.label,
            training=self.objective.training_metrics(loss).get(self.objective.metric.name),
            validation=self.validation,
            speed=self.speed(),
            unit=self.objective.unit,
        )

    def speed(self) -> float:
        """Units per second of the steps since the last record."""
        return self.busy_steps * self.objective.units_per_step / self.busy_seconds

    def log(self) -> None:
        """Record the mean of the steps since the last record."""
        loss = self.state.loss_sum / self.state.loss_steps
        self.record(
            loss=loss,
            **self.objective.training_metrics(loss),
            learning_rate=self.learning_rate,
            gradient_norm=self.gradient_norm,
            **{f"{self.objective.unit}_per_second": self.speed()},
        )
        self.state.loss_sum, self.state.loss_steps = 0.0, 0
        self.busy_seconds, self.busy_steps = 0.0, 0

    def evaluate(self) -> None:
        """Score the fixed sample of the validation split, record it, and draw the curve."""
        of_run = progress(self.config, self.state.step, self.state.seconds, self.state.begun)
        before = self.state.seconds
        evaluator = Evaluator(self.config.on_the_way, self.processes, watching(self.display, of_run))
        with in_parts(self.model):
            outcome = self.objective.evaluate(self.model, self.corpus, evaluator)
        metrics = outcome.metrics
        self.validation = metrics.get(self.objective.metric.name)
        self.record(**validation_metrics(metrics))
        with self.processes.agreed():
            if self.processes.leads:
                draw_history(self.folder.read_history(), self.objective.metric, self.folder.picture)
                self.folder.append_samples(self.state.step, outcome.samples)
        self._look_at_the_clock()
        self.evaluation_seconds = self.state.seconds - before

    def record(self, **figures: float) -> None:
        """Add figures of this step to the history and to TensorBoard."""
        with self.processes.agreed():
            if self.events is not None:
                line = {"step": self.state.step, "seconds": round(self.state.seconds, 3), **figures}
                self.folder.append_history(line)
                self.events.add(self.state.step, figures)

    def save(self) -> None:
        """Write a checkpoint of this step, unless there is one, and remove those before it."""
        checkpoint = self.folder.checkpoint(self.state.step)
        if self.processes.decided(checkpoint.exists):  # it is whole, and could be lost while it is written anew
            return
        tensors = gathered(self.model, self.optimizer, self.processes)
        with self.processes.agreed():
            if tensors is not None:
                self.folder.flush_history()
                save_checkpoint(checkpoint, self.model, tensors, self.state, self.objective.save_files)
                self.folder.keep_only(checkpoint)

    def end(self) -> None:
        """Write the last checkpoint; a signal to some processes is raised in all of them."""
        self.save()
        if not self.processes.alone:
            self._agree()
            self.interrupts.received = self.interrupts.agreed

    def close(self) -> None:
        """End the session."""
        if self.events is not None:
            self.events.close()


def validation_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation under their names in the history."""
    return {f"validation_{name}": value for name, value in metrics.items()}
