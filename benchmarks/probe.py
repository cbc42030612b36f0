"""What a density model knows of classes that it was not told: its states, and a logistic regression on top of them.

The states behind the embedding and behind each block are taken as they are, with their means and standard deviations
over a clip; only the regression learns. Its penalty is chosen on validation clips.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from asterism.training import Run
from asterism.training.run.arithmetic import arithmetic

TOKENS = 16_384
"""So many are computed at once, padding counted."""

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)


@torch.no_grad()
def states(run: Run, clips: Sequence[np.ndarray]) -> torch.Tensor:
    """Means and deviations of the states over clips, uint8 [values] each: float32 [clips, 2 * states * width].

    A causal model reads padding behind a clip without a trace in it. The first token is 0: no class is told.
    """
    rows: dict[int, torch.Tensor] = {}
    for numbers in _batches(clips):
        ids = torch.zeros(len(numbers), 1 + max(len(clips[one]) for one in numbers), dtype=torch.int64)
        for row, one in zip(ids, numbers, strict=True):
            row[1 : 1 + len(clips[one])] = torch.from_numpy(clips[one].astype(np.int64))
        with arithmetic(run.config.dtype, ids.device):
            hidden = run.model.base_model(ids, output_hidden_states=True).hidden_states
        for at, one in enumerate(numbers):
            own = [state[at, 1 : 1 + len(clips[one])].float() for state in hidden]
            rows[one] = torch.cat([part for state in own for part in (state.mean(0), state.std(0, correction=0))])
    return torch.stack([rows[one] for one in range(len(clips))])


def _batches(clips: Sequence[np.ndarray]) -> Iterator[list[int]]:
    """Clips of like lengths together."""
    batch: list[int] = []
    for one in sorted(range(len(clips)), key=lambda number: len(clips[number])):
        if batch and (len(batch) + 1) * (1 + len(clips[one])) > TOKENS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def regress(
    training: tuple[torch.Tensor, torch.Tensor], validation: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.nn.Linear, float]:
    """The regression that says most of the validation clips right, and its penalty; each part is (features, labels)."""
    best, chosen, most = torch.nn.Linear(1, 1), 0.0, -1.0
    for penalty in PENALTIES:
        layer = _logistic(*training, penalty)
        right = float((layer(validation[0]).argmax(1) == validation[1]).float().mean())
        if right > most:
            best, chosen, most = layer, penalty, right
    return best, chosen


def _logistic(features: torch.Tensor, labels: torch.Tensor, penalty: float) -> torch.nn.Linear:
    """Weights from zero, by L-BFGS: the same each time."""
    layer = torch.nn.Linear(features.shape[1], int(labels.max()) + 1)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(features), labels) + penalty * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return layer
