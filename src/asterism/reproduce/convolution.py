"""Models without attention that tell sequences of bases apart: a convolutional net, and two logistic regressions.

The net follows DeePromoter (Oubounyt 2019): parallel convolutions of widths 27, 14 and 7 over one-hot bases,
max-pooling, a bidirectional LSTM, dense layers. Sequences of thousands of bases are pooled until about 100 places are
left. Each model is chosen by its F1 on the validation examples. Invariant: equal examples, seeds, numbers of steps and
threads give equal models, and global generators stay as they were.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from asterism.randomness import isolated
from asterism.reproduce.data.promoters import Labelled
from asterism.training.data.genomes.letters import indices
from asterism.training.tasks.kinds.promoter import COLUMN, PromoterAnswers

WIDTHS, CHANNELS, PLACES = (27, 14, 7), 32, 100
BATCH, CHECKS, RATE = 32, 8, 1e-3
DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)
LONGEST_WORD = 6
MIDDLE = 800


@dataclass(frozen=True)
class Learned:
    """The scores of a model on the test examples, and how many parameters it has."""

    scores: dict[str, float]
    parameters: int


class Convolution(nn.Module):
    """Logits, float32 [batch], of bases by number, int64 [batch, length]: 0 to 3, and 4 for what is none."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.pool = max(6, length // PLACES)
        self.convolutions = nn.ModuleList(nn.Conv1d(4, CHANNELS, width, padding=width // 2) for width in WIDTHS)
        self.lstm = nn.LSTM(CHANNELS * len(WIDTHS), CHANNELS, batch_first=True, bidirectional=True)
        self.dense = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(2 * CHANNELS * (length // self.pool), 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        bits = nn.functional.one_hot(numbers, 5)[..., :4].float().transpose(1, 2)
        seen = torch.cat([torch.relu(one(bits))[..., : bits.shape[2]] for one in self.convolutions], dim=1)
        pooled = nn.functional.dropout(nn.functional.max_pool1d(seen, self.pool), 0.2, self.training)
        states, _ = self.lstm(pooled.transpose(1, 2))
        logits: torch.Tensor = self.dense(states.flatten(1))[:, 0]
        return logits


def learn_convolution(train: Labelled, validation: Labelled, test: Labelled, *, seed: int, steps: int) -> Learned:
    """Train the net for `steps` batches of 32; of eight times on the way, the best on validation answers the test.

    All sequences have one length. The net stays on the CPU.
    """
    inputs, watched, asked = (torch.from_numpy(_numbers(part.letters)) for part in (train, validation, test))
    labels = torch.from_numpy(train.labels).float()
    with isolated(seed):
        net = Convolution(inputs.shape[1])
        best, weights = -1.0, net.state_dict()
        optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
        batches = _batches(len(inputs), seed)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - step / steps)
            rows = next(batches)
            loss = nn.functional.binary_cross_entropy_with_logits(net(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            is_check = (step + 1) * CHECKS // steps > step * CHECKS // steps
            if is_check and (found := scores(_probabilities(net, watched), validation.labels)["f1"]) > best:
                best, weights = found, {name: one.clone() for name, one in net.state_dict().items()}
        net.load_state_dict(weights)
    parameters = sum(one.numel() for one in net.parameters())
    return Learned(scores(_probabilities(net, asked), test.labels), parameters)


def learn_kmers(train: Labelled, validation: Labelled, test: Labelled) -> Learned:
    """Regress labels on how often each word of 1 to 6 bases occurs; validation chooses the decay."""
    return _learn_regression(lambda letters: np.stack([_words(one) for one in letters]), (train, validation, test))


def learn_places(train: Labelled, validation: Labelled, test: Labelled) -> Learned:
    """Regress labels on which base stands at each of the 800 places in the middle; validation chooses the decay."""
    return _learn_regression(_middle, (train, validation, test))


def scores(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of the task `promoter`, `f1` and others.

    `probabilities` of 1 are float32 [examples], and `labels` int64 [examples] of 0 and 1.
    """
    there = ["yes" if one else "no" for one in labels]
    return PromoterAnswers(columns=(COLUMN,)).score(probabilities.tolist(), there)


def _learn_regression(
    features: Callable[[Sequence[str]], np.ndarray], parts: tuple[Labelled, Labelled, Labelled]
) -> Learned:
    """`features` of letters are float32 [sequences, features]."""
    train, validation, test = parts
    counts = [torch.from_numpy(features(part.letters)) for part in parts]
    mean, spread = counts[0].mean(0), counts[0].std(0) + 1e-6
    inputs = [(one - mean) / spread for one in counts]
    best, chosen = -1.0, np.zeros(0)
    for decay in DECAYS:
        weights = _fitted(inputs[0], torch.from_numpy(train.labels).float(), decay)
        watched, asked = ((one @ weights[1:] + weights[0]).sigmoid().numpy() for one in inputs[1:])
        if (found := scores(watched, validation.labels)["f1"]) > best:
            best, chosen = found, asked
    return Learned(scores(chosen, test.labels), inputs[0].shape[1] + 1)


def _fitted(inputs: torch.Tensor, labels: torch.Tensor, decay: float) -> torch.Tensor:
    """The constant, then a weight for each feature: float32 [features + 1]."""
    weights = torch.zeros(inputs.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        logits = inputs @ weights[1:] + weights[0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels) + decay * (weights**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def _batches(count: int, seed: int) -> Iterator[torch.Tensor]:
    """The rows of each batch, of 32 or of all if there are fewer; every pass has its own order."""
    random, batch = np.random.Generator(np.random.Philox(seed)), min(BATCH, count)
    while True:
        order = random.permutation(count)
        for at in range(0, count - batch + 1, batch):
            yield torch.from_numpy(order[at : at + batch])


def _numbers(letters: Sequence[str]) -> np.ndarray:
    """int64 [sequences, length] of 0 to 4."""
    return np.stack([indices(np.frombuffer(one.encode(), dtype=np.uint8)) for one in letters]).astype(np.int64)


def _words(letters: str) -> np.ndarray:
    """How often each word of 1 to 6 bases occurs, as a share of the places: float32 [5460]."""
    (numbers,) = _numbers([letters])
    parts = []
    for size in range(1, LONGEST_WORD + 1):
        places = np.stack([numbers[at : len(numbers) - size + 1 + at] for at in range(size)])
        codes = (places * 4 ** np.arange(size)[:, None]).sum(0)[(places < 4).all(0)]
        parts.append(np.bincount(codes, minlength=4**size) / max(1, len(codes)))
    return np.concatenate(parts).astype(np.float32)


def _middle(letters: Sequence[str]) -> np.ndarray:
    """Four numbers for each of the `MIDDLE` places in the middle, 1 for the base that stands there: float32."""
    first = max(0, (len(letters[0]) - MIDDLE) // 2)
    numbers = _numbers([one[first : first + MIDDLE] for one in letters])
    return np.eye(5, dtype=np.float32)[numbers][..., :4].reshape(len(letters), -1)


@torch.no_grad()
def _probabilities(net: nn.Module, inputs: torch.Tensor) -> np.ndarray:
    """Of 1, float32 [inputs]; dropout is off meanwhile."""
    net.eval()
    found: np.ndarray = torch.cat([net(part) for part in inputs.split(64)]).sigmoid().numpy()
    net.train()
    return found
