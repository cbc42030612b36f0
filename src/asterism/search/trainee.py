"""One candidate in training: a small causal model, its optimiser and its checkpoint.

Run folders are for corpora and files of examples, and score by tasks of their own. Here examples are drawn step by
step and count by their answers only, so the loop is a small one, with the optimisers and checkpoints of runs. The
learning rate is constant between warm-up and the last fifth, so that no rung sees a schedule of its own.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from asterism.errors import NonFiniteLossError
from asterism.labels import IGNORED
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.quiet import quiet_transformers
from asterism.randomness import derive, isolated
from asterism.search.settings import SearchSettings
from asterism.search.tasks import Examples, SearchTask
from asterism.training.run.checkpoint import TrainingState, gathered, load_checkpoint, save_checkpoint
from asterism.training.run.optimizer import make_optimizer
from asterism.training.run.processes import Processes
from asterism.training.settings.configuration import TrainingConfig

CHECKPOINT_EVERY = 200
"""Steps."""
_WARM_UP, _DECAY, _CLIP = 50, 0.2, 1.0


class Score(NamedTuple):
    """Of held-out examples: the loss in the task's unit, and the share of predictions that are right."""

    loss: float
    accuracy: float


class Trainee:
    """A candidate with one seed of weights and examples, from its checkpoint in `folder` if there is one.

    Raises PatternError or ConfigurationError for a schedule that no causal model can have, and CheckpointError for a
    damaged checkpoint.
    """

    def __init__(self, schedule: str, settings: SearchSettings, task: SearchTask, seed: int, folder: Path) -> None:
        self.settings, self.task, self.seed, self.folder = settings, task, seed, folder
        with isolated(derive(settings.seed, seed)):
            self.model = AsterismForCausalLM(_configuration(schedule, settings))
        self.optimizer = make_optimizer(
            self.model,
            TrainingConfig(
                optimizer="muon",
                learning_rate=settings.learning_rate,
                beta2=0.98,
                dtype="float32",
                steps=settings.steps,
            ),
        )
        self.state = load_checkpoint(folder, self.model, self.optimizer) if folder.exists() else TrainingState()

    def advance(self, steps: int) -> None:
        """Train until so many steps are done, and save a checkpoint now and then, and at the end.

        Raises NonFiniteLossError.
        """
        self.model.train()
        begun = time.perf_counter()
        while self.state.step < steps:
            self._step()
            if self.state.step % CHECKPOINT_EVERY == 0 or self.state.step == steps:
                self.state.seconds += time.perf_counter() - begun
                self._save()
                begun = time.perf_counter()

    @torch.no_grad()
    def score(self) -> Score:
        """Score the held-out examples. Raises NonFiniteLossError."""
        self.model.train(False)
        examples, batch = self.task.held_out(self.settings.held_out), self.settings.batch
        loss = right = count = 0.0
        for ids, targets in zip(examples.ids.split(batch), examples.targets.split(batch), strict=True):
            counts = targets != IGNORED
            logits, wanted = self.model(ids).logits[counts], targets[counts]
            loss += cross_entropy(logits, wanted, reduction="sum").item()
            right += (logits.argmax(dim=-1) == wanted).sum().item()
            count += len(wanted)
        self._require_finite(loss)
        return Score(loss / count * self.task.scale, right / count)

    def _step(self) -> None:
        state, settings = self.state, self.settings
        rate = settings.learning_rate * _rate(state.step, settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids, targets = self._examples()
        loss = self.model(ids, shift_labels=targets).loss
        self._require_finite(loss.item())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        self.optimizer.step()
        state.step += 1

    def _examples(self) -> Examples:
        """Those of this step; each seed has a stream of its own."""
        return self.task.draw(self.seed * self.settings.steps + self.state.step, self.settings.batch)

    def _require_finite(self, loss: float) -> None:
        if not abs(loss) < float("inf"):
            raise NonFiniteLossError(
                "search-loss", f"the loss is not finite at step {self.state.step}; give a lower --learning-rate"
            )

    def _save(self) -> None:
        tensors = gathered(self.model, self.optimizer, Processes())
        assert tensors is not None  # this process leads
        with quiet_transformers():
            save_checkpoint(self.folder, self.model, tensors, self.state, lambda folder: None)


def _configuration(schedule: str, settings: SearchSettings) -> AsterismConfig:
    return AsterismConfig(
        mixers=schedule,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=2 * settings.width,
        max_position_embeddings=settings.length,
        position_type="rotary",
        rope_theta=float(max(100, settings.length)),
        initializer_gain=1.0,
        embedding_scale=math.sqrt(settings.width),
    )


def _rate(step: int, steps: int) -> float:
    """The share of the peak learning rate for the step after `step` of `steps`."""
    warm = (step + 1) / min(_WARM_UP, max(1, steps // 10))
    return min(1.0, warm, (steps - step) / max(1.0, _DECAY * steps))
